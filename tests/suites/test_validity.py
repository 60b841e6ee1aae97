"""The gate: what may judge, why the rest may not, and that correct kernels pass what it admits."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from kernelward.suites import envelope, validity
from kernelward.suites.compare import compare_outputs, normalised_error, row_scale
from kernelward.suites.controls import BANDS, control_errors, least_power, power
from kernelward.suites.draw import Drawn, draw_entry
from kernelward.suites.emulate import member_outputs
from kernelward.suites.entry import Entry
from kernelward.suites.oracle import OracleError, compute_truth
from kernelward.suites.problem import Problem, problem_from_source
from kernelward.suites.tolerance import TolerancePolicy
from kernelward.suites.validity import (
    POWER_DRAWS,
    REASONS,
    SEEDS,
    Admission,
    Measured,
    admission_seed,
    admit,
    uncovered_regions,
    unguarded_outputs,
)
from torch import Tensor

torch.set_num_threads(1)

U = 2.0**-24
HEAD = "import os\nimport torch\nfrom torch import nn\nimport torch.nn.functional as F\n"


def problem(forward: str, inputs: str = "[torch.randn(8, 70)]", init: str = "pass") -> Problem:
    """A problem given by the body of its forward, whose arguments are a and b."""
    return problem_from_source(
        f"{HEAD}class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        {init}\n"
        f"    def forward(self, a, b=None):\n        {forward}\n"
        f"def get_inputs():\n    return {inputs}\ndef get_init_inputs():\n    return []\n"
    )


def judge(
    found: Admission, source: Problem, answer: Callable[[Drawn], list[Tensor]], seeds: range = range(100, 104)
) -> list[bool]:
    """Verdicts on an implementation, on draws that the gate has not seen."""
    assert found.admitted, f"{found.reason}: {found.detail}"
    measured = found.measured
    assert measured is not None
    ties = TolerancePolicy.parse(measured.policy).ties
    verdicts = []
    for seed in seeds:
        drawn = draw_entry(source, found.entry, seed)
        truth = compute_truth(drawn, scale_pool=measured.scale_pool, ties=ties)
        verdicts.append(compare_outputs(answer(drawn), truth, measured.tolerance).ok)
    return verdicts


def accepted(found: Admission, source: Problem, f: Callable[..., Any], seeds: range = range(100, 104)) -> bool:
    """Whether a function of the inputs is right on every draw."""

    def answer(drawn: Drawn) -> list[Tensor]:
        result = f(*[x.clone() for x in drawn.inputs])
        return list(result) if isinstance(result, tuple) else [result]

    verdicts = judge(found, source, answer, seeds)
    assert len(set(verdicts)) == 1, verdicts
    return verdicts[0]


# ---------------------------------------------------------------- rejections


@pytest.mark.parametrize(
    ("reason", "forward", "inputs"),
    [
        ("reference-raises", "raise ValueError('no')", "[torch.randn(8, 70)]"),
        ("float64-raises", "assert a.dtype == torch.float32; return a", "[torch.randn(8, 70)]"),
        ("draw-raises", "return a", "[torch.randn(-1)]"),
        ("bad-output", "return [a, 3]", "[torch.randn(8, 70)]"),
        ("out-of-memory", "raise torch.OutOfMemoryError('full')", "[torch.randn(8, 70)]"),
        ("draw-not-reproducible", "return a", "[torch.full((8, 70), float(int.from_bytes(os.urandom(4), 'big')))]"),
        ("random", "return F.dropout(a, 0.5)", "[torch.randn(8, 70)]"),
        ("random", "return a + torch.rand_like(a) * 1e-4", "[torch.randn(8, 70)]"),
        ("random", "return a[torch.rand(8) > 0.5]", "[torch.randn(8, 70)]"),
        ("random", "return torch.randperm(8)", "[torch.randn(8, 70)]"),
        ("empty-output", "return a[:0]", "[torch.randn(8, 70)]"),
        ("not-finite", "return torch.log(a)", "[torch.randn(8, 70)]"),
        ("not-finite", "return 1 / (a * 0)", "[torch.randn(8, 70)]"),
        ("all-zero", "return torch.relu(a)", "[-torch.rand(8, 70)]"),
        ("all-zero", "return (a > 5).sum(1)", "[torch.rand(8, 70)]"),
        ("disagreement", "return (a - a.mean(1, keepdim=True)).mean(1)", "[torch.rand(80, 70)]"),
        ("disagreement", "return (1 + a * 1e-8) - 1", "[torch.rand(8, 70)]"),
        ("disagreement", "return torch.argmax(1 + a * 1e-8, 1)", "[torch.rand(8, 70)]"),
        ("above-cap", "return (a + 300).var(1)", "[torch.randn(80, 70)]"),
        ("powerless:constant", "return 3 + a * 1e-9", "[torch.randn(8, 70)]"),
        ("powerless:copy", "return torch.relu(a)", "[torch.rand(8, 70)]"),
        ("powerless:copy", "return (b, a)", "[torch.rand(8, 70), torch.rand(8, 70)]"),
        ("powerless:other_draw", "return a.mean() * 1e-9 + 1", "[torch.rand(8, 70)]"),
        ("powerless:constant", "return a.amax(1)", "[torch.randint(0, 3, (8, 70)).float()]"),
    ],
)
def test_what_may_not_judge_is_rejected_with_its_reason(reason: str, forward: str, inputs: str) -> None:
    policy = TolerancePolicy("fp32", ("one_pass_variance",)) if reason == "above-cap" else None
    found = admit(problem(forward, inputs), Entry(), policy=policy)
    assert (found.admitted, found.reason) == (False, reason), found.detail
    assert reason.partition(":")[0] in REASONS
    assert found.detail
    json.dumps(found.to_dict())


def test_an_unknown_shape_that_the_reference_cannot_take_is_a_rejection() -> None:
    source = problem_from_source(
        f"{HEAD}N = 8\nclass Model(nn.Module):\n    def forward(self, a):\n        return a.view(2, -1, 70)\n"
        "def get_inputs():\n    return [torch.randn(N, 70)]\ndef get_init_inputs():\n    return []\n"
    )
    assert admit(source, Entry()).reason == "powerless:copy"
    assert admit(source, Entry.make(constants={"N": 7})).reason == "reference-raises"


# ---------------------------------------------------------------- admissions


def test_what_was_measured_is_stated_and_survives_a_file() -> None:
    found = admit(problem("return torch.softmax(a, -1), torch.argmax(a, 1), a.sum()"), Entry())
    assert found.admitted, found.detail
    m = found.measured
    assert m is not None
    assert (m.device_class, m.policy, m.seeds) == ("cpu", "fp32", 8)
    assert m.fan_in == (70, 1, 560)
    assert m.tolerance[1] == 0.0
    assert m.tolerance[0] == max(16 * U, 2 * U * 70**0.5, 4 * m.envelope[0])
    assert m.envelope == tuple(max(row[i] for row in m.members.values()) for i in range(3))
    assert set(m.members) == {"reference", "reordered", "sequential", "exp2"}
    assert m.controls["zeros"] == (True, True, True)
    assert m.controls["constant"] == (True, True, None)
    assert m.controls["other_draw"] == (None, None, True)
    assert m.scale_pool[:2] == (None, None)
    assert m.scale_pool[2] is not None
    assert len(m.scale_pool[2]) == 1
    assert m.bytes == 4 * 8 * 70 * 2 + 8 * 8 + 4
    assert len(m.regions[0]) == BANDS * BANDS
    assert Measured.from_dict(yaml.safe_load(yaml.safe_dump(m.to_dict()))) == m
    with pytest.raises(TypeError, match="surprise"):
        Measured.from_dict(m.to_dict() | {"surprise": 1})


def test_measuring_again_gives_the_same() -> None:
    source = problem("return torch.softmax(a, -1)")
    assert admit(source, Entry()) == admit(source, Entry())


HONEST: list[tuple[str, str, str, list[Callable[..., Any]]]] = [
    (
        "softmax",
        "return torch.softmax(a, -1)",
        "[torch.randn(8, 700) * 5]",
        [
            lambda a: (e := torch.exp2((a - a.amax(-1, keepdim=True)) * 1.442695)) / e.flip(-1).sum(-1, keepdim=True),
            lambda a: torch.exp(a) / torch.exp(a).cumsum(-1)[:, -1:],
            lambda a: torch.exp(a - torch.logsumexp(a, -1, keepdim=True)),
            lambda a: torch.softmax(a.double(), -1).float(),
        ],
    ),
    (
        "tanh",
        "return torch.tanh(a)",
        "[torch.randn(8, 70)]",
        [lambda a: 1 - 2 / (torch.exp(2 * a) + 1), lambda a: (torch.exp(2 * a) - 1) / (torch.exp(2 * a) + 1)],
    ),
    (
        "mish with underflowed rows",
        "return F.mish(torch.cat([a, a * 0 - 50]))",
        "[torch.randn(8, 70)]",
        [lambda a: (x := torch.cat([a, a * 0 - 50])) * torch.tanh(torch.log(1 + torch.exp(x)))],
    ),
    (
        "signed scalar sum",
        "return a.sum()",
        "[torch.randn(20, 500)]",
        [
            lambda a: a.flatten()[torch.randperm(a.numel())].cumsum(0)[-1],
            lambda a: a.t().sum(0).sum(),
            lambda a: a.sum(1).flip(0).sum(),
            lambda a: a.double().sum().float(),
        ],
    ),
    (
        "layer norm",
        "return F.layer_norm(a, [700])",
        "[torch.randn(8, 700) + 1]",
        [lambda a: (a - a.mean(-1, True)) / torch.sqrt((a - a.mean(-1, True)).square().mean(-1, True) + 1e-5)],
    ),
    (
        "matrix product",
        "return a @ b",
        "[torch.randn(20, 700), torch.randn(700, 30)]",
        [
            lambda a, b: sum(a[:, k : k + 7] @ b[k : k + 7] for k in range(0, 700, 7)),
            lambda a, b: (b.t() @ a.t()).t().contiguous(),
            lambda a, b: a[:, 1::2] @ b[1::2] + a[:, ::2] @ b[::2],
        ],
    ),
    (
        "scan",
        "return torch.cumsum(a, 1)",
        "[torch.randn(8, 700)]",
        [
            lambda a: torch.stack([a[:, : k + 1].sum(1) for k in range(700)], 1),
            lambda a: a.flip(1).cumsum(1).flip(1) * 0 + a.sum(1, True) - (a.flip(1).cumsum(1).flip(1) - a),
        ],
    ),
    (
        "top k of ties",
        "return torch.topk(a, 3, dim=1)",
        "[torch.randint(0, 5, (8, 70)).float()]",
        [lambda a: (a.sort(1, descending=True).values[:, :3], 69 - a.flip(1).sort(1, descending=True).indices[:, :3])],
    ),
]


@pytest.mark.parametrize(("forward", "inputs", "kernels"), [h[1:] for h in HONEST], ids=[h[0] for h in HONEST])
def test_honest_implementations_pass_on_draws_that_the_gate_has_not_seen(
    forward: str, inputs: str, kernels: list[Callable[..., Any]]
) -> None:
    source = problem(forward, inputs)
    found = admit(source, Entry())
    for kernel in kernels:
        assert accepted(found, source, kernel, range(100, 110))


WRONG: list[tuple[str, str, str, Callable[..., Any]]] = [
    ("zeros for a softmax", "return torch.softmax(a, -1)", "[torch.randn(8, 7000)]", lambda a: a * 0),
    (
        "output through fp16",
        "return torch.softmax(a, -1)",
        "[torch.randn(8, 700)]",
        lambda a: F.softmax(a, -1).half().float(),
    ),
    (
        "operands through fp16",
        "return a @ b",
        "[torch.randn(20, 70), torch.randn(70, 30)]",
        lambda a, b: a.half().float() @ b.half().float(),
    ),
    ("mean over a part", "return a.mean(1)", "[torch.randn(80, 1000)]", lambda a: a[:, :999].mean(1)),
    ("scalar mean over a part", "return (a * a).mean()", "[torch.randn(50, 40)]", lambda a: (a * a)[:49].mean()),
    (
        "tanh for erf",
        "return F.gelu(a)",
        "[torch.randn(8, 70)]",
        lambda a: F.gelu(a, approximate="tanh"),
    ),
    (
        "one element",
        "return F.layer_norm(a, [70])",
        "[torch.randn(8, 70)]",
        lambda a: F.layer_norm(a, [70]).index_put_((torch.tensor(3), torch.tensor(9)), torch.tensor(0.0)),
    ),
    (
        "last of equal values",
        "return torch.argmax(a, 1)",
        "[torch.randint(0, 3, (8, 70)).float()]",
        lambda a: 69 - a.flip(1).argmax(1),
    ),
    ("identity for a relu", "return torch.relu(a)", "[torch.randn(8, 70)]", lambda a: a),
    ("off by one", "return torch.cumsum(a, 1)", "[torch.randn(8, 70)]", lambda a: torch.cumsum(a, 1) - a),
    ("biased variance", "return a.var(1)", "[torch.randn(80, 1000)]", lambda a: a.var(1, unbiased=False)),
]


@pytest.mark.parametrize(("forward", "inputs", "kernel"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_wrong_implementations_fail_on_every_draw(forward: str, inputs: str, kernel: Callable[..., Any]) -> None:
    source = problem(forward, inputs)
    assert not accepted(admit(source, Entry()), source, kernel, range(100, 106))


def test_ties_by_value_accept_the_last_of_equal_values_and_nothing_smaller() -> None:
    source = problem("return torch.argmax(a, 1)", "[torch.randint(0, 3, (8, 70)).float()]")
    found = admit(source, Entry(), policy=TolerancePolicy(ties="value"))
    assert accepted(found, source, lambda a: 69 - a.flip(1).argmax(1))
    assert not accepted(found, source, lambda a: (a == 1).int().argmax(1))


def test_what_a_policy_allows_is_accepted_and_what_it_does_not_is_refused() -> None:
    source = problem("return torch.tanh(a @ b)", "[torch.randn(20, 70), torch.randn(70, 30) / 8]")

    def tf32(a: Tensor, b: Tensor) -> Tensor:
        from kernelward.suites.emulate_pointwise import rounded_mantissa

        return torch.tanh(rounded_mantissa(a, 10, truncate=True) @ rounded_mantissa(b, 10, truncate=True))

    def half(dtype: torch.dtype) -> Callable[..., Tensor]:
        return lambda a, b: torch.tanh(a.to(dtype) @ b.to(dtype)).float()

    kernels = {"tf32": tf32, "fp16": half(torch.float16), "bf16": half(torch.bfloat16)}
    allowed = {"fp32": set(), "tf32": {"tf32"}, "fp16": {"tf32", "fp16"}, "bf16": {"tf32", "fp16", "bf16"}}
    for policy, expected in allowed.items():
        found = admit(source, Entry(), policy=TolerancePolicy.parse(policy))
        passed = {name for name, f in kernels.items() if accepted(found, source, f)}
        assert passed >= expected
        if policy in ("fp32", "fp16"):  # tf32 has the mantissa of fp16 and may hide it
            assert passed == expected
        assert not accepted(found, source, lambda a, b: torch.tanh(a @ b).roll(1, -1))


def test_indices_stay_exact_where_shorter_types_are_allowed() -> None:
    source = problem("return torch.argmax(a, 1)", "[1 + torch.rand(8, 70) * 1e-3]")  # many are equal in half precision
    found = admit(source, Entry(), policy=TolerancePolicy("fp16"))
    assert accepted(found, source, lambda a: a.argmax(1))
    assert not accepted(found, source, lambda a: a.half().argmax(1))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_entries_judge(dtype: str) -> None:
    kind = getattr(torch, dtype)
    source = problem("return F.layer_norm(a @ b, [30])", "[torch.randn(20, 700), torch.randn(700, 30)]")
    found = admit(source, Entry(dtype=dtype))
    assert accepted(found, source, lambda a, b: F.layer_norm(a.float() @ b.float(), [30]).to(kind))
    assert accepted(found, source, lambda a, b: F.layer_norm(a @ b, [30]))
    assert not accepted(found, source, lambda a, b: F.layer_norm(a[:, :600] @ b[:600], [30]))
    assert not accepted(found, source, lambda a, b: F.layer_norm(a.float() @ b.float(), [30]))  # dtype


# ---------------------------------------------------------------- small outputs


def test_scale_and_envelope_of_small_outputs_are_pooled_over_the_draws() -> None:
    source = problem("return a.sum()", "[torch.randn(30, 30)]")
    m = admit(source, Entry()).measured
    assert m is not None
    seeds = [admission_seed(source, Entry(), draw) for draw in range(m.seeds)]
    sums = torch.stack([draw_entry(source, Entry(), seed).inputs[0].double().sum() for seed in seeds])
    assert m.scale_pool[0] == pytest.approx([float(sums.square().mean().sqrt())])
    assert m.tolerance[0] < 1e-5
    assert admit(problem("return a.sum(1)", "[torch.randn(64, 30)]"), Entry()).measured.scale_pool == (None,)  # type: ignore[union-attr]


# ---------------------------------------------------------------- power


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(1, 12),
    columns=st.integers(1, 40),
    seed=st.integers(0, 2**31),
    spread=st.sampled_from([0, 3, 12]),
    tolerance=st.sampled_from([1e-6, 1e-3, 5e-3]),
    at=st.tuples(st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True)),
)
def test_a_zeroed_element_is_caught_exactly_where_power_says_so(
    rows: int, columns: int, seed: int, spread: int, tolerance: float, at: tuple[float, float]
) -> None:
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    truth *= 10.0 ** (spread * torch.randn(rows, columns, generator=generator, dtype=torch.float64))
    measured = power(truth, None, tolerance)
    noticed = truth.abs() > tolerance * (truth.abs() + row_scale(truth))
    assert measured.share == pytest.approx(float(noticed.double().mean()))
    i, j = int(at[0] * rows), int(at[1] * columns)
    broken = truth.clone()
    broken[i, j] = 0
    assert (normalised_error(broken, truth) > tolerance) == bool(noticed[i, j])


def test_regions_follow_the_place_in_the_output() -> None:
    truth = torch.ones(16, 24, dtype=torch.float64)
    truth[:2] = 1e-9  # the first row band is blinded by the rest
    truth[14:, 12:] = 0  # nothing is there
    shares = torch.tensor(power(truth, None, 1e-4).regions).reshape(BANDS, BANDS)
    assert (shares[0] == 0).all()
    assert (shares[1:7] == 1).all()
    assert (shares[7, :4] == 1).all()
    assert (shares[7, 4:] == -1).all()


@pytest.mark.parametrize("shape", [(), (1,), (3,), (5, 1), (2, 3, 4), (9, 100)])
def test_every_region_of_a_full_output_has_power_whatever_its_shape(shape: tuple[int, ...]) -> None:
    assert set(power(torch.ones(shape, dtype=torch.float64), None, 1e-3).regions) == {1.0}


def test_least_power_ignores_draws_that_are_zero_there() -> None:
    full, empty = torch.ones(8, 8, dtype=torch.float64), torch.ones(8, 8, dtype=torch.float64)
    empty[0] = 0
    found = least_power([power(full, None, 1e-3), power(empty, None, 1e-3)])
    assert found.share == pytest.approx(7 / 8)
    assert set(found.regions) == {1.0}
    assert set(least_power([power(empty, None, 1e-3)] * 2).regions[:8]) == {-1.0}
    blind = full.clone()
    blind[0] = 1e-9
    assert set(least_power([power(full, None, 1e-3), power(blind, None, 1e-3)]).regions[:8]) == {0.0}


def test_a_suite_is_told_which_regions_no_entry_has_power_in() -> None:
    spiky = "[torch.randn(16, 64) * torch.cat([torch.full((8, 64), 1e-9), torch.ones(8, 64)])]"
    blind = admit(problem("return a * a.abs()", spiky), Entry())
    seeing = admit(problem("return a * a.abs()", "[torch.randn(16, 64)]"), Entry())
    assert blind.measured is not None
    assert seeing.measured is not None
    regions = uncovered_regions([blind.measured])
    assert {r.row for r in regions} == {0, 1, 2, 3}
    assert {r.column for r in regions} == set(range(8))
    assert uncovered_regions([blind.measured, seeing.measured]) == []
    assert uncovered_regions([]) == []


def test_the_empty_half_of_a_triangle_needs_no_power() -> None:
    found = admit(problem("return torch.tril(a @ a)", "[torch.randn(64, 64)]"), Entry())
    assert found.admitted
    assert found.measured is not None
    assert 0.4 < found.measured.power[0] < 0.6
    assert uncovered_regions([found.measured]) == []


def test_an_output_without_power_among_several_is_an_uncovered_region() -> None:
    found = admit(problem("return a * 2, torch.relu(a - 100) + 1e-30 * a"), Entry())
    assert found.measured is not None
    partly = dataclasses.replace(found.measured, regions=(found.measured.regions[0], (0.0,) * 64))
    assert {r.output for r in uncovered_regions([partly])} == {1}


def test_an_output_that_a_copy_would_pass_for_is_unguarded_until_another_entry_guards_it() -> None:
    blind = admit(problem("return torch.relu(a), a.sum(1)", "[torch.rand(8, 70)]"), Entry())
    seeing = admit(problem("return torch.relu(a), a.sum(1)"), Entry())
    assert blind.admitted  # a copy has no answer for the second output
    assert blind.measured is not None
    assert seeing.measured is not None
    assert unguarded_outputs([blind.measured]) == [(0, "copy")]
    assert unguarded_outputs([blind.measured, seeing.measured]) == []


def test_controls_name_the_cheapest_answer_that_comes_close() -> None:
    truth = torch.rand(10, 10, dtype=torch.float64) + 0.5
    errors = control_errors(truth, row_scale(truth), [torch.zeros(3), truth.float(), torch.ones(100)])
    assert set(errors) == {"zeros", "constant", "copy"}
    assert errors["copy"] < 1e-7
    assert errors["zeros"] > 0.2
    small = control_errors(truth[0, 0], truth[0, 0], [], other=truth[0, 1])
    assert set(small) == {"zeros", "other_draw"}
    assert control_errors(torch.tensor([1, 2, 3]), None, [torch.rand(3)])["constant"] == float("inf")


# ---------------------------------------------------------------- means that run along


def warp_mean_std(x: Tensor, skipped: int = 0, correction: int = 1) -> tuple[Tensor, Tensor]:
    """[R, n]: Welford's recurrence in 32 lanes, merged by shuffles; the last `skipped` terms are left out."""
    x = x[:, : x.shape[1] - skipped]
    n = torch.zeros(32)
    mean, squares = torch.zeros(len(x), 32), torch.zeros(len(x), 32)
    for terms in F.pad(x, (0, -x.shape[1] % 32), value=float("nan")).unflatten(1, (-1, 32)).unbind(1):
        valid = ~terms[0].isnan()
        n = n + valid
        delta = torch.where(valid, terms - mean, torch.zeros(()))
        mean = mean + delta / n
        squares = squares + torch.where(valid, delta * (terms - mean), torch.zeros(()))
    for offset in (16, 8, 4, 2, 1):
        lanes = torch.arange(32) ^ offset
        delta, total = mean[:, lanes] - mean, n + n[lanes]
        squares = squares + (squares[:, lanes] + delta * delta * n * n[lanes] / total)
        mean, n = mean + delta * n[lanes] / total, total
    return mean[:, 0], torch.sqrt(squares[:, 0] / (n[0] - correction))


def test_an_honest_running_mean_is_accepted_where_terms_cancel_and_near_misses_are_not() -> None:
    path = Path(__file__).parents[2] / "examples" / "problems" / "mean_std.py"
    source = problem_from_source(path.read_text())
    found = admit(source, Entry.make(generator="alternating", constants={"batch_size": 33, "dim": 1021}))
    assert accepted(found, source, warp_mean_std)
    assert found.measured is not None
    # On a GPU torch's own mean and every order of summation err so little here that only this member covers the kernel.
    covered = 4 * found.measured.members["online"][0]
    for seed in range(100, 104):
        drawn = draw_entry(source, found.entry, seed)
        truth = compute_truth(drawn)
        err = normalised_error(warp_mean_std(drawn.inputs[0])[0], truth.outputs[0], truth.scales[0])
        assert 4.4e-6 < err < covered
    assert not accepted(found, source, lambda x: warp_mean_std(x, correction=0))
    assert not accepted(found, source, lambda x: warp_mean_std(x, skipped=1))
    assert not accepted(found, source, lambda x: (warp_mean_std(x)[0] * (1 + 1e-4), warp_mean_std(x)[1]))


# ---------------------------------------------------------------- members that do not fit


def test_a_member_that_does_not_fit_runs_on_slices_or_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    def small_memory(member: Any, drawn: Drawn, inputs: list[Any] | None = None) -> Any:
        if inputs is None:
            raise OracleError("out-of-memory", "full")
        return member_outputs(member, drawn, inputs)

    monkeypatch.setattr(envelope, "member_outputs", small_memory)
    several = "return torch.softmax(a, -1), a.sum(1), a.sum(1, keepdim=True), torch.topk(a, 3, dim=1)"
    sliced = admit(problem(several, "[torch.randn(40, 700)]"), Entry())
    assert sliced.admitted
    assert sliced.measured is not None
    assert set(sliced.measured.members) == {"reference", "reordered", "sequential", "exp2"}
    assert sliced.measured.skipped == {}
    assert max(sliced.measured.envelope) < 1e-5
    whole = admit(problem("return torch.softmax(a, 0)", "[torch.randn(40, 70)]"), Entry())
    assert whole.measured is not None
    assert set(whole.measured.members) == {"reference"}
    assert set(whole.measured.skipped) == {"reordered", "sequential", "blocked", "online", "exp2"}


# ---------------------------------------------------------------- the real thing


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["softmax", "layernorm", "matmul", "conv2d", "mse_loss", "argmax", "cumsum"])
def test_entries_are_admitted_on_a_gpu(name: str) -> None:
    path = Path(__file__).parents[2] / "examples" / "problems" / f"{name}.py"
    found = admit(problem_from_source(path.read_text()), Entry(), "cuda")
    assert found.admitted, f"{found.reason}: {found.detail}"
    assert found.measured is not None
    assert found.measured.device_class == "cuda"
    assert found.measured.skipped == {}
    assert max(found.measured.tolerance) < 2e-3


@pytest.mark.gpu
def test_the_hardware_tf32_product_passes_under_its_policy_only() -> None:
    source = problem("return a @ b", "[torch.randn(256, 512), torch.randn(512, 256)]")
    for precision, expected in (("fp32", False), ("tf32", True)):
        found = admit(source, Entry(), "cuda", TolerancePolicy.parse(precision))
        assert found.admitted
        measured = found.measured
        assert measured is not None
        assert ("tf32_hardware" in measured.members) == expected
        drawn = draw_entry(source, Entry(), 77, "cuda")
        truth = compute_truth(drawn, scale_pool=measured.scale_pool)
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            product = drawn.inputs[0] @ drawn.inputs[1]
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False
        assert compare_outputs([product], truth, measured.tolerance).ok == expected


@pytest.mark.parametrize(
    ("forward", "inputs", "reason", "draws"),
    [
        ("return (1 + a * 1e-8) - 1", "[torch.rand(8, 70)]", "disagreement", 3),  # two of the draw's own check
        ("return (a + 300).var(1)", "[torch.randn(80, 70)]", "above-cap", 3),
        ("return (1 + a.sum() * 1e-8) - 1", "[torch.rand(8, 70)]", "disagreement", 2 + SEEDS + POWER_DRAWS),  # pooled
        ("return 3 + a * 1e-9", "[torch.randn(8, 70)]", "powerless:constant", 2 + SEEDS + POWER_DRAWS),
    ],
)
def test_what_one_draw_decides_is_not_drawn_again(
    monkeypatch: pytest.MonkeyPatch, forward: str, inputs: str, reason: str, draws: int
) -> None:
    drawn: list[int] = []
    draw = validity._draw
    monkeypatch.setattr(validity, "_draw", lambda *args: drawn.append(args[2]) or draw(*args))
    policy = TolerancePolicy("fp32", ("one_pass_variance",)) if reason == "above-cap" else None
    found = admit(problem(forward, inputs), Entry(), policy=policy)
    assert found.reason == reason
    assert len(drawn) == draws


@pytest.mark.parametrize(
    ("in_place", "plain"),
    [
        ("y = torch.relu(a @ a.T); y += b; return y", "return torch.relu(a @ a.T) + b"),
        ("y = torch.sigmoid(a); y *= b; return y.clamp_(-1, 1)", "return (torch.sigmoid(a) * b).clamp(-1, 1)"),
    ],
)
def test_a_reference_that_works_in_place_depends_on_as_much_as_one_that_does_not(in_place: str, plain: str) -> None:
    inputs = "[torch.randn(33, 33), torch.randn(33, 33)]"
    found = [admit(problem(forward, inputs), Entry.make("normal")) for forward in (in_place, plain)]
    assert [a.reason for a in found] == ["", ""], found[0].detail
    assert found[0].measured is not None
    assert found[1].measured is not None
    assert found[0].measured.fan_in == found[1].measured.fan_in
