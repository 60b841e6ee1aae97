import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from kernelward.suites.draw import LARGE_MODEL, Drawn, _Models, draw_entry, entry_bytes, entry_seeds
from kernelward.suites.entry import Entry
from kernelward.suites.errors import InputError
from kernelward.suites.generators import GENERATORS
from kernelward.suites.problem import find_problem, kernelbench_trial_seeds, load_problem, problem_from_source

EXAMPLES = Path(__file__).parents[2] / "examples" / "problems"

NESTED = (
    "import torch\nfrom torch import nn\n"
    "class Model(nn.Module):\n    def forward(self, x, state, n): return x + state[0] + state[1] * n\n"
    "def get_inputs(): return [torch.rand(4, 3), (torch.rand(4, 3), torch.randint(0, 3, (4, 3))), 2]\n"
    "def get_init_inputs(): return []\n"
)


def draw(name: str, seed: int = 5, **fields: object) -> Drawn:
    return draw_entry(find_problem(name, EXAMPLES), Entry.make(**fields), seed, "cpu")  # type: ignore[arg-type]


def test_a_draw_repeats() -> None:
    first, second = draw("conv2d"), draw("conv2d")
    assert torch.equal(first.inputs[0], second.inputs[0])
    for a, b in zip(first.build_model().parameters(), second.build_model().parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_draw_repeats_in_another_process() -> None:
    code = (
        "import sys, hashlib, pathlib\n"
        "from kernelward.suites.draw import draw_entry\n"
        "from kernelward.suites.entry import Entry\n"
        "from kernelward.suites.problem import find_problem\n"
        "p = find_problem('softmax', pathlib.Path(sys.argv[1]))\n"
        "x = draw_entry(p, Entry.make('spiky', constants={'batch_size': 5, 'dim': 33}), 77, 'cpu').inputs[0]\n"
        "print(hashlib.sha256(x.numpy().tobytes()).hexdigest())\n"
    )
    there = subprocess.run([sys.executable, "-c", code, EXAMPLES], capture_output=True, text=True, check=True).stdout
    here = draw("softmax", 77, generator="spiky", constants={"batch_size": 5, "dim": 33}).inputs[0]
    assert there.strip() == hashlib.sha256(here.numpy().tobytes()).hexdigest()


def test_another_seed_or_draw_gives_other_inputs_and_parameters() -> None:
    base = draw("conv2d")
    for other in (draw("conv2d", 6), draw("conv2d", draw=1)):
        assert not torch.equal(base.inputs[0], other.inputs[0])
        assert not torch.equal(base.build_model().conv.weight, other.build_model().conv.weight)


WIDE = """
import threading
import torch
from torch import nn

WIDTH = 1024
built = []


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        built.append(width)
        self.fc = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        HOLDS

    def forward(self, x):
        return self.norm(self.fc(x))


def get_inputs():
    return [torch.rand(4, WIDTH)]


def get_init_inputs():
    return [WIDTH]
"""


def test_many_parameters_are_drawn_once_per_draw_and_every_model_is_as_new() -> None:
    drawn = draw_entry(problem_from_source(WIDE.replace("HOLDS", "")), Entry.make(), 5, "cpu")
    first = drawn.build_model()
    before = {name: value.clone() for name, value in first.state_dict().items()}
    first(*drawn.inputs)
    assert not torch.equal(first.norm.running_mean, before["norm.running_mean"])  # type: ignore[arg-type,union-attr]
    again = draw_entry(drawn.loaded.problem, Entry.make(), 5, "cpu")
    for model in (drawn.build_model(), again.build_model()):
        assert {n: hash_of(v) for n, v in model.state_dict().items()} == {n: hash_of(v) for n, v in before.items()}
    assert drawn.loaded._module.built == [1024]
    assert again.loaded._module.built == []
    other = draw_entry(drawn.loaded.problem, Entry.make(), 6, "cpu").build_model()
    assert not torch.equal(other.fc.weight, before["fc.weight"])  # type: ignore[arg-type,union-attr]


def test_a_model_that_cannot_be_copied_is_built_each_time() -> None:
    drawn = draw_entry(
        problem_from_source(WIDE.replace("HOLDS", "self.lock = threading.Lock()")), Entry.make(), 5, "cpu"
    )
    states = [drawn.build_model().state_dict() for _ in range(2)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert drawn.loaded._module.built == [1024, 1024]


def hash_of(value: torch.Tensor) -> str:
    return hashlib.sha256(value.numpy().tobytes()).hexdigest()


def test_changed_constants_change_the_shape() -> None:
    drawn = draw("conv2d", constants={"batch_size": 3, "height": 17, "width": 19})
    assert drawn.inputs[0].shape == (3, 8, 17, 19)


def test_kernelbench_entries_reproduce_its_checkers_inputs_and_parameters() -> None:
    loaded = load_problem(find_problem("conv2d", EXAMPLES))
    for k, trial_seed in enumerate(kernelbench_trial_seeds(5)):
        drawn = draw("conv2d", 123, seed_policy="kernelbench", draw=k, draw_device="cpu")
        torch.manual_seed(trial_seed)
        assert torch.equal(drawn.inputs[0], torch.rand(4, 8, 64, 64))
        assert drawn.seed == trial_seed
        torch.manual_seed(42)
        expected = torch.nn.Conv2d(*loaded.init_inputs(42)[:3], padding=1)
        assert torch.equal(drawn.build_model().conv.weight, expected.weight)


def test_the_secret_seed_plays_no_part_under_the_kernelbench_policy() -> None:
    assert entry_seeds(Entry(seed_policy="kernelbench"), 1) == entry_seeds(Entry(seed_policy="kernelbench"), 2)


def test_inputs_and_parameters_are_not_the_same_random_numbers() -> None:
    inputs, model = entry_seeds(Entry(), 7)
    assert inputs == 7
    assert model != inputs


def test_successive_draws_under_one_seed() -> None:
    torch.manual_seed(5)
    expected = [torch.rand(256, 1000) for _ in range(3)]
    for k in range(3):
        assert torch.equal(draw("softmax", skip=k).inputs[0], expected[k])


def test_scale_multiplies_floating_point_inputs_only() -> None:
    own, scaled = draw("cross_entropy").inputs, draw("cross_entropy", scale=3.0).inputs
    assert torch.equal(scaled[0], own[0] * 3)
    assert torch.equal(scaled[1], own[1])


def test_scale_comes_after_the_generator() -> None:
    plain, scaled = (
        draw("softmax", generator="normal").inputs[0],
        draw("softmax", generator="normal", scale=-2.0).inputs[0],
    )
    assert torch.equal(scaled, plain * -2)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_inputs_and_parameters_are_rounded_to_the_entrys_dtype(dtype: str) -> None:
    wanted = getattr(torch, dtype)
    drawn = draw("conv2d", dtype=dtype)
    assert drawn.inputs[0].dtype is wanted
    assert drawn.build_model().conv.weight.dtype is wanted
    assert torch.equal(drawn.inputs[0], draw("conv2d").inputs[0].to(wanted))


def test_integers_keep_their_dtype() -> None:
    assert draw("embedding_sum", dtype="float16").inputs[0].dtype is torch.int64


def test_nested_inputs_are_placed_and_scaled() -> None:
    problem = problem_from_source(NESTED)
    x, (a, b), n = draw_entry(problem, Entry(dtype="float16", scale=3.0), 1).inputs
    assert (x.dtype, a.dtype, b.dtype, n) == (torch.float16, torch.float16, torch.int64, 2)
    assert float(a.max()) > 1


def test_bytes_are_inputs_outputs_and_parameters() -> None:
    problem = find_problem("linear_gelu_scale", EXAMPLES)
    shape = problem.constants
    rows, inner, outer = shape["batch_size"], shape["in_features"], shape["out_features"]
    elements = rows * inner + rows * outer + inner * outer + outer
    assert entry_bytes(problem, Entry()) == 4 * elements
    assert entry_bytes(problem, Entry(dtype="bfloat16")) == 2 * elements
    assert entry_bytes(problem, Entry.make(constants={"batch_size": 1})) < 4 * elements


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (Entry(dtype="float8"), "unknown dtype 'float8'; use one of float16"),
        (Entry(generator="evil"), "unknown generator 'evil'"),
        (Entry.make(params={"x": 1}), "own has no parameter 'x'"),
        (Entry.make(constants={"nope": 3}), "no module constant 'nope'"),
        (Entry.make(constants={"height": -1}), "raises"),
    ],
)
def test_what_is_wrong_with_an_entry_is_said(entry: Entry, message: str) -> None:
    with pytest.raises(InputError, match=message):
        draw_entry(find_problem("conv2d", EXAMPLES), entry, 1).build_model()


@pytest.mark.gpu
@pytest.mark.parametrize("name", GENERATORS)
def test_every_family_draws_on_the_gpu_and_repeats_there(name: str) -> None:
    problem = find_problem("softmax", EXAMPLES)
    first, second = (draw_entry(problem, Entry(generator=name), 5, "cuda") for _ in range(2))
    assert first.inputs[0].is_cuda
    assert torch.equal(first.inputs[0], second.inputs[0])


@pytest.mark.gpu
def test_an_entry_drawn_on_the_cpu_has_the_same_values_on_the_gpu() -> None:
    problem = find_problem("conv2d", EXAMPLES)
    entry = Entry(seed_policy="kernelbench", draw_device="cpu")
    here, there = draw_entry(problem, entry, 0, "cpu"), draw_entry(problem, entry, 0, "cuda")
    assert torch.equal(here.inputs[0], there.inputs[0].cpu())
    assert torch.equal(here.build_model().conv.weight, there.build_model().conv.weight.cpu())


def test_parameters_come_from_the_cpu_where_the_constructor_knows_no_other_device() -> None:
    problem = problem_from_source(
        "import torch\nclass Model(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        assert torch.empty(0).device.type == 'cpu'\n        self.w = torch.nn.Parameter(torch.rand(3))\n"
        "    def forward(self, x): return x * self.w\n"
        "def get_inputs(): return [torch.rand(2, 3)]\ndef get_init_inputs(): return []\n"
    )
    usual, elsewhere = (draw_entry(problem, Entry(), 0, "cpu", place).build_model() for place in ("cpu", "meta"))
    assert torch.equal(usual.w, elsewhere.w)


@pytest.mark.gpu
def test_parameters_drawn_on_the_gpu_repeat_and_a_candidate_gets_those_of_the_cpu() -> None:
    problem = find_problem("conv2d", EXAMPLES)
    first, second = (draw_entry(problem, Entry(), 0, "cuda", parameters_on="cuda").build_model() for _ in range(2))
    usual = draw_entry(problem, Entry(), 0, "cuda").build_model()
    assert torch.equal(first.conv.weight, second.conv.weight)
    assert first.conv.weight.is_cuda
    assert not torch.equal(first.conv.weight, usual.conv.weight)
    assert float(first.conv.weight.detach().std()) == pytest.approx(float(usual.conv.weight.detach().std()), rel=0.2)


def test_models_that_are_kept_to_be_copied_stay_within_their_bound_and_can_be_forgotten() -> None:
    models = _Models(2 * LARGE_MODEL, 0)
    built: list[int] = []

    def get(key: int) -> torch.nn.Module:
        def build() -> torch.nn.Module:
            built.append(key)
            return torch.nn.Linear(LARGE_MODEL // 4, 1, bias=False)

        return models.get(key, torch.device("cpu"), build)

    first = get(1)
    again = get(1)
    assert built == [1]
    assert first is not again
    assert torch.equal(first.weight, again.weight)
    get(2)
    get(3)  # the oldest makes room
    get(1)
    assert built == [1, 2, 3, 1]
    models.forget()
    get(1)
    assert built == [1, 2, 3, 1, 1]
