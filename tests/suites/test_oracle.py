"""Truth: float64 on rounded inputs, whatever the reference does; and what cannot be a truth."""

import threading
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernelward.suites import oracle
from kernelward.suites.compare import normalised_error
from kernelward.suites.draw import Drawn, draw_entry
from kernelward.suites.entry import Entry
from kernelward.suites.fan_in import fan_in
from kernelward.suites.oracle import (
    TRUE_FP32,
    OracleError,
    ReferenceFlags,
    compute_truth,
    free_memory,
    give_back_memory,
    reference_outputs,
)
from kernelward.suites.problem import problem_from_source
from kernelward.suites.slices import SlicePlan, find_plan
from torch import Tensor

torch.set_num_threads(1)

HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"


def drawn_from(
    forward: str, inputs: str = "[torch.rand(4, 33)]", init: str = "pass", entry: Entry | None = None, seed: int = 3
) -> Drawn:
    """A draw of a problem given by the body of its forward (arguments a, b, ...)."""
    count = len(eval(inputs, {"torch": torch}))
    names = ", ".join("abcd"[:count])
    source = (
        f"{HEAD}class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        {init}\n"
        f"    def forward(self, {names}):\n        {forward}\n"
        f"def get_inputs():\n    return {inputs}\ndef get_init_inputs():\n    return []\n"
    )
    return draw_entry(problem_from_source(source), entry or Entry(), seed)


def test_truth_is_the_reference_in_float64() -> None:
    drawn = drawn_from("return torch.softmax(a, -1)")
    truth = compute_truth(drawn)
    assert torch.equal(truth.outputs[0], torch.softmax(drawn.inputs[0].double(), -1))
    assert truth.output_dtypes == (torch.float32,)
    assert truth.shapes == ((4, 33),)
    assert truth.reference is None
    assert 0 < truth.reference_errors[0] < 16 * 2.0**-24
    assert truth.nbytes == 4 * 33 * 8


@pytest.mark.parametrize(
    "forward",
    [
        "return (a.to(torch.float32).pow(2).mean(-1) + 1).rsqrt().float()",
        "return (a.float() * torch.ones(33)).pow(2).mean(-1).add(1).rsqrt()",
        "return (a.pow(2).float().mean(-1, dtype=torch.float32) + 1).rsqrt()",
        "return (a.pow(2) @ self.w + 1).rsqrt()",
    ],
)
def test_explicit_casts_and_float32_constants_do_not_coarsen_the_truth(forward: str) -> None:
    drawn = drawn_from(forward, init="self.w = torch.full((33,), 1 / 33)")  # a plain attribute, no parameter
    truth = compute_truth(drawn)
    x = drawn.inputs[0].double()
    exact = (x.pow(2).mean(-1) + 1).rsqrt()
    if "self.w" in forward:
        exact = (x.pow(2) @ torch.full((33,), 1 / 33).double() + 1).rsqrt()
    assert normalised_error(truth.outputs[0], exact) < 1e-14
    assert truth.output_dtypes == (torch.float32,)


@pytest.mark.parametrize(
    ("init", "forward"),
    [
        ("self.h = torch.zeros(33)", "self.h.copy_(a.sum(0) / 3); return self.h + 1"),
        ("self.h = [torch.zeros(33)]", "self.h[0].add_(a.sum(0) / 3); return self.h[0] + 1"),
        ("self.h = {'0': torch.zeros(33)}; self.g = self.h['0']", "self.g.add_(a.sum(0) / 3); return self.h['0'] + 1"),
        ("self.register_buffer('h', torch.zeros(33))", "self.h.copy_(a.sum(0) / 3); return self.h + 1"),
        (
            "self.register_buffer('h', torch.zeros(33)); self.g = [self.h]",
            "self.g[0].add_(a.sum(0) / 3); return self.h + 1",
        ),
        ("self.h = torch.zeros(2, 33); self.g = self.h[1]", "self.h[1:].add_(a.sum(0) / 3); return self.g + 1"),
        (
            "self.h = __import__('types').SimpleNamespace(x=torch.zeros(33))",
            "self.h.x.add_(a.sum(0) / 3); return self.h.x + 1",
        ),
        (
            "self.h = {'0': torch.zeros(33)}; self.l = nn.Identity(); self.l.h = self.h",
            "self.h['0'] = a.sum(0) / 3; return self.l.h['0'] + 1",
        ),
        ("self.h = [torch.zeros(33)]; self.h.append(self.h)", "self.h[0].add_(a.sum(0) / 3); return self.h[0] + 1"),
    ],
)
def test_state_that_a_model_keeps_outside_of_its_parameters_does_not_coarsen_the_truth(init: str, forward: str) -> None:
    drawn = drawn_from(forward, init=init)
    truth = compute_truth(drawn)
    assert normalised_error(truth.outputs[0], drawn.inputs[0].double().sum(0) / 3 + 1) < 1e-14
    assert truth.output_dtypes == (torch.float32,)
    if "self.g = self.h[1]" not in init:  # autograd refuses what is written through one view and read through another
        assert fan_in(drawn, reference_outputs(drawn)) == (4,)


@pytest.mark.parametrize(("dtype", "unit"), [("float16", 2.0**-11), ("bfloat16", 2.0**-8)])
def test_inputs_and_parameters_are_rounded_before_they_are_widened(dtype: str, unit: float) -> None:
    drawn = drawn_from("return a @ self.w", init="self.w = nn.Parameter(torch.rand(33, 5))", entry=Entry(dtype=dtype))
    truth = compute_truth(drawn)
    kind = getattr(torch, dtype)
    weight = drawn.build_model().w.detach()
    assert (drawn.inputs[0].dtype, weight.dtype, truth.output_dtypes) == (kind, kind, (kind,))
    assert normalised_error(truth.outputs[0], drawn.inputs[0].double() @ weight.double()) < 1e-15
    assert truth.reference_errors[0] < 2 * unit  # only the result's own rounding is left


def test_reference_and_truth_start_from_the_same_random_state_and_parameters() -> None:
    drawn = drawn_from("return self.l(a) * torch.rand(1)", init="self.l = nn.Linear(33, 5)")
    truth = compute_truth(drawn, TRUE_FP32)
    assert truth.reference is not None
    again = reference_outputs(drawn)
    assert torch.equal(truth.reference[0], again[0])
    other = reference_outputs(drawn, seed=drawn.seed + 1)
    assert not torch.equal(again[0], other[0])


def test_a_reference_that_changes_its_inputs_leaves_the_draw_alone() -> None:
    drawn = drawn_from("a.mul_(2); return a + 1")
    before = drawn.inputs[0].clone()
    truth = compute_truth(drawn)
    assert torch.equal(drawn.inputs[0], before)
    assert torch.equal(truth.outputs[0], before.double() * 2 + 1)


def test_tf32_switches_are_set_for_the_run_and_restored() -> None:
    drawn = drawn_from("return a + float(torch.backends.cuda.matmul.allow_tf32) + 2 * torch.backends.cudnn.allow_tf32")
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    for matmul in (False, True):
        for cudnn in (False, True):
            out = reference_outputs(drawn, ReferenceFlags(matmul, cudnn))[0]
            assert torch.allclose(out - drawn.inputs[0], torch.tensor(matmul + 2.0 * cudnn))
    with pytest.raises(OracleError):
        reference_outputs(drawn_from("raise ValueError(1)"), ReferenceFlags(True, not before[1]))
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        ("raise ValueError('no')", "reference-raises"),
        ("return a.shape", "bad-output"),
        ("return None", "bad-output"),
        ("raise torch.OutOfMemoryError('full')", "out-of-memory"),
        ("return a[:, : 3 if a.dtype == torch.float64 else 4]", "bad-output"),
        ("assert a.dtype != torch.float64; return a", "float64-raises"),
    ],
)
def test_what_cannot_be_a_truth_says_why(forward: str, reason: str) -> None:
    with pytest.raises(OracleError) as caught:
        compute_truth(drawn_from(forward))
    assert caught.value.reason == reason


def test_truths_computed_in_threads_are_the_same() -> None:
    draws = [drawn_from("return self.l(a)", init="self.l = nn.Linear(33, 5)", seed=s) for s in range(4)]
    alone = [compute_truth(d).outputs[0] for d in draws]
    together: dict[int, Tensor] = {}

    def work(i: int) -> None:
        together[i] = compute_truth(draws[i]).outputs[0]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(torch.equal(alone[i], together[i]) for i in range(4))


# ---------------------------------------------------------------- indices


def test_first_of_equal_values_is_right_unless_ties_go_by_value() -> None:
    drawn = drawn_from("return torch.argmax(a, 1)", inputs="[torch.tensor([[1., 3., 3.], [2., 2., 0.]])]")
    last = torch.tensor([2, 1])
    strict, loose = compute_truth(drawn), compute_truth(drawn, ties="value")
    assert strict.outputs[0].tolist() == [1, 0]
    assert normalised_error(last, strict.outputs[0], None, strict.selection(0)) == float("inf")
    assert normalised_error(last, loose.outputs[0], None, loose.selection(0)) == 0
    assert normalised_error(torch.tensor([0, 0]), loose.outputs[0], None, loose.selection(0)) > 0.1


@pytest.mark.parametrize(
    ("forward", "output"),
    [
        ("return torch.topk(a, 2, dim=1)", 1),
        ("return torch.topk(a, 2, dim=1).indices", 0),
        ("return torch.sort(a, dim=1)", 1),
        ("return a.max(dim=1, keepdim=True)", None),
    ],
)
def test_only_indices_whose_ties_torch_leaves_open_go_by_value(forward: str, output: int | None) -> None:
    drawn = drawn_from(forward, inputs="[torch.tensor([[1., 3., 3., 0.], [2., 2., 0., 1.]])]")
    truth = compute_truth(drawn)
    found = [i for i in range(len(truth.outputs)) if truth.selection(i) is not None]
    assert found == ([] if output is None else [output])
    if output is not None:
        swapped = truth.outputs[output].clone()
        one, two = swapped[0] == 1, swapped[0] == 2  # where the equal threes are
        swapped[0, one], swapped[0, two] = 2, 1
        selection = truth.selection(output)
        assert normalised_error(swapped, truth.outputs[output], None, selection) == 0


def test_search_over_everything_has_a_flat_index() -> None:
    drawn = drawn_from("return torch.argmin(a)", inputs="[torch.tensor([[3., 1.], [1., 2.]])]")
    truth = compute_truth(drawn, ties="value")
    assert normalised_error(torch.tensor(2), truth.outputs[0], None, truth.selection(0)) == 0
    assert normalised_error(torch.tensor(3), truth.outputs[0], None, truth.selection(0)) > 0.1


# ---------------------------------------------------------------- scale pool


def test_pooled_scales_only_ever_raise() -> None:
    truth = compute_truth(drawn_from("return a.sum(1)[:2], a"))
    own = truth.scales[0]
    assert own is not None
    assert float(truth.with_scale_pool([[1e9], None]).scales[0]) == 1e9  # type: ignore[arg-type]
    assert torch.equal(truth.with_scale_pool([[1e-9], None]).scales[0], own)  # type: ignore[arg-type]
    assert truth.with_scale_pool([None, None]).scales[1] is truth.scales[1]
    assert compute_truth(drawn_from("return a.sum(1)[:2], a"), scale_pool=[[1e9], None]).reference_errors[0] < 1e-12


# ---------------------------------------------------------------- slices

SLICEABLE = [
    ("return torch.softmax(a, -1)", "[torch.rand(6, 33)]", "pass"),
    ("return a @ b", "[torch.rand(6, 6), torch.rand(6, 6)]", "pass"),  # only a may be cut
    ("return torch.bmm(a, b)", "[torch.rand(6, 3, 4), torch.rand(6, 4, 2)]", "pass"),
    ("return self.c(a)", "[torch.rand(6, 3, 8)]", "self.c = nn.Conv1d(3, 2, 3)"),
    ("return torch.topk(a, 3, dim=1)", "[torch.randint(0, 4, (6, 9)).float()]", "pass"),
]
WHOLE_ONLY = [
    ("return self.n(a)", "[torch.rand(6, 3, 8)]", "self.n = nn.BatchNorm1d(3)"),
    ("return torch.cumsum(a, 0)", "[torch.rand(6, 3)]", "pass"),
    ("return torch.softmax(a, 0)", "[torch.rand(6, 3)]", "pass"),
    ("return ((a - b) ** 2).mean()", "[torch.rand(6, 3), torch.rand(6, 3)]", "pass"),
    ("return a - a.flip(0)", "[torch.rand(6, 3)]", "pass"),
    ("return a.t() @ a", "[torch.rand(6, 6)]", "pass"),
]


@pytest.mark.parametrize(("forward", "inputs", "init"), SLICEABLE)
def test_a_truth_in_slices_is_the_truth(forward: str, inputs: str, init: str) -> None:
    drawn = drawn_from(forward, inputs, init)
    whole = compute_truth(drawn)
    sliced = compute_truth(drawn, memory_bytes=1)
    for i, (a, b) in enumerate(zip(whole.outputs, sliced.outputs, strict=True)):
        assert normalised_error(b, a, None, whole.selection(i)) < 1e-14
        assert (whole.selection(i) is None) == (sliced.selection(i) is None)
        if (selection := sliced.selection(i)) is not None:
            assert selection.values.shape == (6, 9)


@pytest.mark.parametrize(("forward", "inputs", "init"), SLICEABLE + WHOLE_ONLY)
def test_slices_are_used_only_where_they_give_the_same(forward: str, inputs: str, init: str) -> None:
    drawn = drawn_from(forward, inputs, init)
    model = drawn.build_model()
    plan = find_plan(lambda part: oracle.run_forward(model, part, 0), drawn.inputs, reference_outputs(drawn))
    assert (plan is not None) == ((forward, inputs, init) in SLICEABLE)
    if forward == "return a @ b":
        assert plan == SlicePlan((True, False), 6)


def test_a_reference_that_cannot_be_sliced_is_still_tried_whole() -> None:
    forward, inputs, init = WHOLE_ONLY[0]
    drawn = drawn_from(forward, inputs, init)
    assert torch.equal(compute_truth(drawn, memory_bytes=1).outputs[0], compute_truth(drawn).outputs[0])


@settings(deadline=None, max_examples=30)
@given(batch=st.integers(1, 40), pieces=st.integers(1, 50))
def test_steps_cover_the_batch_once(batch: int, pieces: int) -> None:
    covered = [i for start, stop in SlicePlan((True,), batch).steps(pieces) for i in range(start, stop)]
    assert covered == list(range(batch))


# ---------------------------------------------------------------- fan-in


@pytest.mark.parametrize(
    ("forward", "inputs", "init", "n"),
    [
        ("return torch.relu(a - 2)", "[torch.rand(4, 33)]", "pass", 1),  # dead outputs count as 1
        ("return a * 2", "[torch.rand(4, 33)]", "pass", 1),
        ("return a.sum(1)", "[torch.rand(4, 33)]", "pass", 33),
        ("return a @ b", "[torch.rand(4, 33), torch.rand(33, 5)]", "pass", 66),
        ("return self.l(a)", "[torch.rand(4, 33)]", "self.l = nn.Linear(33, 5)", 67),
        ("return torch.cumsum(a, 1)", "[torch.rand(4, 33)]", "pass", 33),  # only the last element needs all
        ("return torch.argmax(a, 1)", "[torch.rand(4, 33)]", "pass", 1),
        ("return (a * self.s).sum(1)", "[torch.rand(4, 33)]", "self.s = torch.rand(33)", 33),  # no parameter
        (
            "return (a * self.s[0]).sum(1)",
            "[torch.rand(4, 33)]",
            "self.p = nn.Parameter(torch.rand(33)); self.s = [self.p]",
            66,
        ),
        ("a.mul_(2); return a.float().sum()", "[torch.rand(4, 33)]", "pass", 132),
        ("return self.e(a).sum(1)", "[torch.randint(0, 50, (4, 7))]", "self.e = nn.Embedding(50, 3)", 7),
    ],
)
def test_fan_in_counts_what_an_element_depends_on(forward: str, inputs: str, init: str, n: int) -> None:
    drawn = drawn_from(forward, inputs, init)
    count = fan_in(drawn, reference_outputs(drawn))[0]
    assert count == n or ("Embedding" in init and 5 <= count <= 7)  # the same word twice is one parameter


def test_fan_in_looks_at_outputs_that_depend_on_something() -> None:
    """Of a transposed convolution with stride and dilation two, seven of eight outputs are nothing but the bias."""
    source = (
        "import torch\n"
        "class Model(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.conv = torch.nn.ConvTranspose3d(4, 2, 3, stride=2, padding=1, dilation=2)\n"
        "    def forward(self, x):\n"
        "        return self.conv(x)\n"
        "def get_inputs():\n"
        "    return [torch.rand(2, 4, 5, 7, 9)]\n"
        "def get_init_inputs():\n"
        "    return []\n"
    )
    drawn = draw_entry(problem_from_source(source), Entry.make(), 0)
    assert fan_in(drawn, reference_outputs(drawn)) == (2 * 4 * 27 + 1,)


def test_fan_in_is_per_output_and_the_same_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = drawn_from("return a.sum(1), a + 1, a @ b", "[torch.rand(6, 33), torch.rand(33, 2)]")
    whole = fan_in(drawn, reference_outputs(drawn))
    assert whole == (33, 1, 66)
    monkeypatch.setattr("kernelward.suites.fan_in._WHOLE", 1)
    assert fan_in(drawn, reference_outputs(drawn)) == whole


def test_fan_in_that_does_not_fit_says_so() -> None:
    drawn = drawn_from("return a.sum()")
    with pytest.raises(OracleError) as caught:
        fan_in(drawn, reference_outputs(drawn), memory_bytes=100)
    assert caught.value.reason == "out-of-memory"


# ---------------------------------------------------------------- the real thing


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["softmax", "conv2d", "matmul", "argmax", "layernorm"])
def test_truth_on_a_gpu_agrees_with_the_cpu(name: str) -> None:
    path = Path(__file__).parents[2] / "examples" / "problems" / f"{name}.py"
    problem = problem_from_source(path.read_text())
    drawn = draw_entry(problem, Entry(draw_device="cpu"), 5, "cuda")
    truth = compute_truth(drawn)
    there = compute_truth(draw_entry(problem, Entry(draw_device="cpu"), 5, "cpu"))
    for a, b in zip(truth.outputs, there.outputs, strict=True):
        assert a.is_cuda
        assert normalised_error(a.cpu(), b) < 1e-12


@pytest.mark.gpu
def test_memory_that_torch_keeps_unused_is_given_back_and_a_bound_is_what_is_free() -> None:
    device = torch.device("cuda", 0)
    give_back_memory(device, keep=0)
    before = torch.cuda.memory_reserved(device)
    torch.empty(1 << 30, dtype=torch.uint8, device=device)
    give_back_memory(device, keep=2 << 30)  # little enough to stay
    assert torch.cuda.memory_reserved(device) >= before + (1 << 30)
    give_back_memory(device, keep=0)
    assert torch.cuda.memory_reserved(device) <= before
    _, total = torch.cuda.mem_get_info(device)
    torch.cuda.set_per_process_memory_fraction((2 << 30) / total, device)
    try:
        assert free_memory(device) <= 2 << 30
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
