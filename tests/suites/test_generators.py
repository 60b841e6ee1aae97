import inspect
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernelward.suites import generators
from kernelward.suites.draw import draw_entry
from kernelward.suites.entry import Entry
from kernelward.suites.errors import InputError
from kernelward.suites.generators import GENERATORS, MAX_CONSTANT_LIKE, find_generator
from kernelward.suites.problem import Problem, find_problem, problem_from_source
from kernelward.suites.structure import find_structure
from kernelward.suites.traits import Traits, inspect_problem
from torch import Tensor

EXAMPLES = Path(__file__).parents[2] / "examples" / "problems"
TRANSFORMS = [name for name, g in GENERATORS.items() if g.transform is not None]


def example(name: str) -> Problem:
    return find_problem(name, EXAMPLES)


def drawn(
    problem: Problem, generator: str, seed: int = 1, constants: dict[str, Any] | None = None, **params: Any
) -> list[Any]:
    entry = Entry.make(generator, params=params, constants=constants or {})
    return draw_entry(problem, entry, seed, "cpu").inputs


def rows(generator: str, seed: int = 1, batch: int = 40, dim: int = 300, **params: Any) -> Tensor:
    """What a family makes of an unsigned uniform matrix."""
    return drawn(example("softmax"), generator, seed, {"batch_size": batch, "dim": dim}, **params)[0]


# ---------------------------------------------------------------- all families


@pytest.mark.parametrize("name", GENERATORS)
def test_every_family_says_what_it_exposes(name: str) -> None:
    assert len(GENERATORS[name].exposes) > 80
    assert GENERATORS[name].name == name
    if name != "own":
        assert "Exposes:" in GENERATORS[name].exposes
        assert GENERATORS[name].exposes == inspect.getdoc(getattr(generators, name))


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_family_repeats_under_its_seed_and_changes_with_it(name: str) -> None:
    assert torch.equal(rows(name, 3), rows(name, 3))
    assert not torch.equal(rows(name, 3), rows(name, 4))


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_family_keeps_shape_and_dtype_and_makes_finite_values(name: str) -> None:
    for problem, constants in (
        ("softmax", {"batch_size": 5, "dim": 33}),
        ("conv2d", {"batch_size": 2, "height": 9, "width": 7}),
        ("argmax", {"batch_size": 2, "dim1": 9, "dim2": 7}),
        ("mse_loss", {"batch_size": 3, "input_shape": (17,)}),
    ):
        pairs = (drawn(example(problem), g, 1, constants) for g in ("own", name))
        for own, new in zip(*pairs, strict=True):
            assert (new.shape, new.dtype) == (own.shape, own.dtype)
            assert torch.isfinite(new).all()


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_family_leaves_the_draw_itself_alone(name: str) -> None:
    problem = example("softmax")
    traits = inspect_problem(problem)
    own = torch.rand(256, 1000)
    before = own.clone()
    GENERATORS[name].apply([own], traits, torch.Generator().manual_seed(1))
    assert torch.equal(own, before)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(TRANSFORMS), st.integers(0, 10**6), st.sampled_from([2, 9]))
def test_triangles_and_symmetry_survive_every_family(name: str, seed: int, n: int) -> None:
    for problem in ("tril_matmul", "symmetric_matmul"):
        for x in drawn(example(problem), name, seed, {"N": n}):
            if problem == "tril_matmul":
                assert not x.triu(1).any()
            else:
                assert torch.equal(x, x.mT)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(TRANSFORMS), st.integers(0, 10**6))
def test_positive_definiteness_survives_every_family(name: str, seed: int) -> None:
    matrix, right = drawn(example("cholesky_solve"), name, seed, {"N": 9, "columns": 3})
    assert find_structure([matrix]) == "positive_definite"
    assert torch.isfinite(right).all()


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(TRANSFORMS), st.integers(0, 10**6))
def test_rows_of_probabilities_survive_every_family(name: str, seed: int) -> None:
    for x in drawn(example("kl_div"), name, seed, {"batch_size": 7, "input_shape": (33,)}):
        assert (x > 0).all()
        assert torch.allclose(x.double().sum(-1), torch.ones(7, dtype=torch.float64), atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(TRANSFORMS), st.integers(0, 10**6))
def test_masks_labels_and_integers_stay_as_drawn(name: str, seed: int) -> None:
    for problem, constants in (
        ("masked_cumsum", {"batch_size": 5, "input_shape": (33,)}),
        ("hinge_loss", {"batch_size": 33, "num_scores": 5}),
        ("cross_entropy", {"batch_size": 9, "num_classes": 33}),
    ):
        own, new = (drawn(example(problem), g, seed, constants) for g in ("own", name))
        assert torch.equal(own[1], new[1])
        assert not torch.equal(own[0], new[0])


@pytest.mark.parametrize("name", TRANSFORMS)
def test_values_stay_in_the_domain_of_the_reference(name: str) -> None:
    problem = problem_from_source(
        "import torch\nfrom torch import nn\n"
        "class Model(nn.Module):\n    def forward(self, x, y): return torch.log(x) + torch.log(1 - y) + torch.log(y)\n"
        "def get_inputs(): return [torch.rand(64, 9), torch.rand(64, 9)]\ndef get_init_inputs(): return []\n"
    )
    x, y = drawn(problem, name)
    assert (x > 0).all()
    assert ((y > 0) & (y < 1)).all()


@pytest.mark.parametrize("name", TRANSFORMS)
def test_half_precision_inputs_are_transformed_in_single_precision(name: str) -> None:
    traits = inspect_problem(example("softmax"))
    half = torch.rand(256, 1000).half()
    (new,) = GENERATORS[name].apply([half], traits, torch.Generator().manual_seed(1))
    assert new.dtype is torch.float16


@pytest.mark.parametrize("name", TRANSFORMS)
def test_scalars_and_single_elements_are_no_trouble(name: str) -> None:
    problem = problem_from_source(
        "import torch\nfrom torch import nn\n"
        "class Model(nn.Module):\n    def forward(self, x, s, t): return x * s * t\n"
        "def get_inputs(): return [torch.rand(1, 1), torch.rand(()), 3.5]\ndef get_init_inputs(): return []\n"
    )
    x, s, t = drawn(problem, name)
    assert (x.shape, s.shape, t) == ((1, 1), (), 3.5)


# ---------------------------------------------------------------- what each family does


def test_own_is_the_problems_draw() -> None:
    torch.manual_seed(9)
    expected = torch.rand(40, 300)
    assert torch.equal(rows("own", 9), expected)


def test_normal_follows_the_normal_distribution_and_the_order_of_the_draw() -> None:
    own, new = rows("own").flatten(), rows("normal", sigma=2.0).flatten()
    assert abs(float(new.mean())) < 0.05
    assert abs(float(new.std()) - 2) < 0.05
    assert float((new.abs() < 2).float().mean()) == pytest.approx(0.683, abs=0.02)
    assert torch.equal(own.argsort(stable=True), new.argsort(stable=True))


def test_negative_has_no_positive_value_nor_zero() -> None:
    assert (rows("negative") < 0).all()


def test_spiky_has_a_spike_in_every_row() -> None:
    x = rows("spiky").abs()
    assert ((x > 5.5).sum(dim=1) >= 1).float().mean() > 0.9
    assert float((x > 5.5).float().mean()) < 0.05


def test_spikes_are_placed_along_the_dimension_that_the_problem_works_along() -> None:
    x = drawn(example("argmax"), "spiky", constants={"batch_size": 3, "dim1": 50, "dim2": 40}, fraction=0.0)[0]
    assert ((x.abs() > 5.5).sum(dim=1) <= 1).all()
    assert (x.abs() > 5.5).any(dim=1).float().mean() > 0.9


def test_large_is_a_thousand_times_normal() -> None:
    x = drawn(example("matmul"), "large")[0]
    assert 900 < float(x.std()) < 1100


def test_offset_overflows_an_exponential_without_its_maximum() -> None:
    x = rows("offset")
    assert float(x.mean()) == pytest.approx(100, abs=0.1)
    assert torch.isinf(x.exp()).any()


def test_constant_rows_hold_one_value_each() -> None:
    x = rows("constant_rows")
    assert (x == x[:, :1]).all()
    assert x[:, 0].unique().numel() == 40


def test_a_ramp_rises_and_its_ends_are_the_extremes() -> None:
    x = rows("ramp")
    assert (x.argmax(dim=1) > 280).all()
    assert (x.argmin(dim=1) < 20).all()


def test_ties_repeat_the_maximum() -> None:
    x = rows("ties")
    assert ((x == x.max(dim=1, keepdim=True).values).sum(dim=1) > 1).all()
    assert x.unique().numel() <= 5


def test_thresholds_are_hit_exactly_and_from_both_sides() -> None:
    x = rows("thresholds")
    for point in (0.0, -1.0, 1.0, -3.0, 3.0, 6.0, 20.0):
        near = x[(x - point).abs() < 0.05]
        assert (near == point).any()
        assert (near < point).any()
        assert (near > point).any()


def test_thresholds_of_many_elements_are_made_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generators, "_CHUNK", 7000)
    x = rows("thresholds")
    assert x.shape == (40, 300)
    assert ((x - x.round()).abs() <= 0.3).all()
    assert all((x.flatten()[start : start + 5000] == 20.0).any() for start in (0, 7000))


def test_every_third_row_is_zero() -> None:
    x = rows("zero_rows")
    assert (x.abs().sum(dim=1) == 0).tolist() == [i % 3 == 0 for i in range(40)]


def test_neighbours_alternate_in_sign() -> None:
    x = rows("alternating")
    assert (x[:, ::2] >= 0.1).all()
    assert (x[:, 1::2] <= -0.1).all()


def test_one_element_per_row_is_not_zero() -> None:
    x = rows("one_hot", value=2.0)
    assert ((x != 0).sum(dim=1) == 1).all()
    sizes = x[x != 0].abs()
    assert float(sizes.min()) >= 2
    assert float(sizes.max()) <= 4


def test_integers_are_small_whole_numbers_of_both_signs() -> None:
    x = rows("integers")
    assert sorted(x.unique().tolist()) == [-3, -2, -1, 0, 1, 2, 3]


def test_log_uniform_scales_the_whole_draw_by_one_factor() -> None:
    factors = []
    for seed in range(6):
        ratio = rows("log_uniform", seed) / rows("own", seed)
        factors.append(float(ratio[0, 0]))
        assert torch.allclose(ratio, ratio[0, 0].expand_as(ratio), rtol=1e-5)
    assert all(1e-2 <= f <= 1e2 for f in factors)
    assert max(factors) / min(factors) > 10


# ---------------------------------------------------------------- where families are admissible


def traits_of(problem: str, **changes: Any) -> Traits:
    return replace(inspect_problem(example(problem)), **changes)


@pytest.mark.parametrize("name", ["offset", "constant_rows", "ramp", "alternating"])
def test_constant_like_data_only_under_short_linear_sums(name: str) -> None:
    assert GENERATORS[name].applies(traits_of("matmul", accumulation=MAX_CONSTANT_LIKE))
    assert not GENERATORS[name].applies(traits_of("matmul", accumulation=MAX_CONSTANT_LIKE + 1))


def test_a_large_offset_is_admissible_under_a_softmax_of_any_length() -> None:
    assert GENERATORS["offset"].applies(inspect_problem(example("softmax_wide")))


def test_a_constant_is_not_normalised() -> None:
    assert not GENERATORS["constant_rows"].applies(inspect_problem(example("layernorm")))


@pytest.mark.parametrize(("problem", "applies"), [("matmul", True), ("hardtanh", False), ("softmax", False)])
def test_large_values_only_where_nothing_is_flat_or_overflows(problem: str, applies: bool) -> None:
    assert GENERATORS["large"].applies(inspect_problem(example(problem))) is applies


def test_only_the_own_draw_applies_without_a_free_input() -> None:
    traits = inspect_problem(example("embedding_sum"))
    assert [name for name, g in GENERATORS.items() if g.applies(traits)] == ["own"]


# ---------------------------------------------------------------- what users get wrong


def test_an_unknown_family_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"unknown generator 'evil'; use one of own, normal"):
        find_generator("evil")


def test_an_unknown_parameter_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match="spiky has no parameter 'size'; its parameters are: magnitude, fraction"):
        rows("spiky", size=3)
    with pytest.raises(InputError, match="own has no parameter 'x'; its parameters are: none"):
        rows("own", x=3)


@pytest.mark.parametrize("value", ["3", True, math.inf, None])
def test_a_parameter_must_be_a_number(value: Any) -> None:
    with pytest.raises(InputError, match="'magnitude' must be a finite number"):
        find_generator("spiky").resolve({"magnitude": value})
