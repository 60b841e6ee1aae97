"""The comparison, against a plain implementation of its definition and against torch.allclose."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernelward.suites import compare
from kernelward.suites.compare import (
    Selection,
    allclose_margin,
    allclose_pass,
    compare_outputs,
    flatten_outputs,
    normalised_error,
    pooled_scale,
    row_scale,
)
from kernelward.suites.errors import InputError
from kernelward.suites.oracle import Truth
from torch import Tensor

torch.set_num_threads(1)

shapes = st.lists(st.integers(1, 7), min_size=0, max_size=3).map(tuple)
seeds = st.integers(0, 2**31)


@pytest.fixture(autouse=True, params=[5, 1 << 16], ids=["tiny-pieces", "one-piece"])
def _piece_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything holds whether a tensor is one piece or many."""
    monkeypatch.setattr(compare, "_CHUNK", {"cpu": request.param, "cuda": request.param})


def randn(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def plain_error(y: Tensor, truth: Tensor) -> float:
    """The definition, written with numpy."""
    t = truth.numpy()
    long = [d for d, n in enumerate(t.shape) if n > 1]
    rows = np.sqrt(np.mean(t**2, axis=long[-1], keepdims=True)) if long else np.abs(t)
    s = np.maximum(rows, np.sqrt(np.mean(t**2)) / 30)
    return float(np.max(np.abs(y.double().numpy() - t) / (np.abs(t) + s)))


def truth_of(*outputs: Tensor, dtypes: tuple[torch.dtype, ...] | None = None, **rest: Any) -> Truth:
    return Truth(
        outputs=outputs,
        output_dtypes=dtypes or tuple(t.dtype for t in outputs),
        scales=tuple(row_scale(t) if t.is_floating_point() else None for t in outputs),
        reference_errors=(0.0,) * len(outputs),
        **rest,
    )


@settings(deadline=None, max_examples=60)
@given(shape=shapes, seed=seeds, noise=st.sampled_from([0.0, 1e-8, 1e-3, 10.0]))
def test_error_is_its_definition(shape: tuple[int, ...], seed: int, noise: float) -> None:
    truth = randn(shape, seed) * 10 ** float(randn((), seed + 1))
    y = truth + noise * randn(shape, seed + 2)
    assert normalised_error(y, truth) == pytest.approx(plain_error(y, truth), rel=1e-12, abs=0)
    assert normalised_error(y, truth, row_scale(truth)) == normalised_error(y, truth)


@settings(deadline=None, max_examples=40)
@given(shape=shapes, seed=seeds, factor=st.sampled_from([1e-30, 0.5, 3.0, 1e30]))
def test_error_does_not_depend_on_the_unit(shape: tuple[int, ...], seed: int, factor: float) -> None:
    truth = randn(shape, seed)
    y = truth + 1e-4 * randn(shape, seed + 1)
    assert normalised_error(y * factor, truth * factor) == pytest.approx(normalised_error(y, truth), rel=1e-9)


@settings(deadline=None, max_examples=40)
@given(seed=seeds, rows=st.integers(1, 5), columns=st.integers(64, 200))
def test_half_precision_round_trip_is_far_outside_float32_rounding(seed: int, rows: int, columns: int) -> None:
    truth = randn((rows, columns), seed)
    assert normalised_error(truth.float(), truth) < 2.0**-24
    assert normalised_error(truth.half().float(), truth) > 20 * 2.0**-24


@pytest.mark.parametrize("width", [1, 3, 8])
@pytest.mark.parametrize(
    ("y", "t", "err"),
    [
        (math.nan, 1.0, math.inf),
        (math.inf, 1.0, math.inf),
        (1.0, math.inf, math.inf),
        (1.0, math.nan, math.inf),
        (-math.inf, math.inf, math.inf),
        (math.nan, math.inf, math.inf),
        (math.inf, math.nan, math.inf),
        (math.inf, math.inf, 0.0),
        (-math.inf, -math.inf, 0.0),
        (math.nan, math.nan, 0.0),
    ],
)
def test_finiteness_has_to_agree(width: int, y: float, t: float, err: float) -> None:
    truth, got = torch.ones(2, width, dtype=torch.float64), torch.ones(2, width)
    truth[1, -1], got[1, -1] = t, y
    assert normalised_error(got, truth) == err


def test_one_bad_element_among_infinite_ones_is_found() -> None:
    truth = torch.tensor([[math.inf, 1.0, 2.0, -math.inf, 4.0, 5.0]], dtype=torch.float64)
    got = truth.float().clone()
    got[0, 4] = 4.4
    scale = math.sqrt((1 + 4 + 16 + 25) / 6)  # non-finite elements count as zero
    assert normalised_error(got, truth) == pytest.approx(0.4 / (4 + scale), rel=1e-6)


def test_equal_zeros_are_no_error_and_anything_beside_an_all_zero_truth_is() -> None:
    zeros = torch.zeros(3, 4, dtype=torch.float64)
    assert normalised_error(torch.zeros(3, 4), zeros) == 0.0
    assert normalised_error(torch.full((3, 4), 1e-30), zeros) == math.inf


def test_underflowed_row_does_not_condemn_a_kernel_and_a_small_row_is_not_blinded() -> None:
    truth = torch.ones(2, 100, dtype=torch.float64)
    truth[1] = 1e-20  # mish(-50): honest float32 code gives 0 there
    got = truth.float().clone()
    got[1] = 0
    assert normalised_error(got, truth) < 1e-17
    truth[1] = 0.05  # a row of a twentieth of the whole has a scale of its own
    got[1] = 0.05 * 1.01
    assert normalised_error(got, truth) > 4e-3


def test_scale_of_a_huge_row_leaves_the_others_theirs() -> None:
    truth = torch.ones(4, 50, dtype=torch.float64)
    truth[0] = 10.0
    scale = row_scale(truth)
    assert scale.shape == (4, 1)
    assert torch.allclose(scale.flatten(), torch.tensor([10.0, 1.0, 1.0, 1.0], dtype=torch.float64))
    assert row_scale(torch.tensor(-3.0)).shape == ()
    assert float(row_scale(torch.tensor(-3.0))) == 3.0


def test_kept_dimensions_of_one_element_do_not_make_every_element_its_own_row() -> None:
    sums = randn((100,), 4)
    sums[7] = 1e-9
    got = sums.float() + 1e-6
    assert normalised_error(got[:, None, None], sums[:, None, None]) == normalised_error(got, sums) < 1e-4
    assert row_scale(sums[:, None]).shape == (1, 1)
    assert row_scale(torch.ones(1, 1)).shape == (1, 1)
    assert pooled_scale([torch.full((8, 1), 3.0), torch.full((8, 1), 4.0)]).shape == (1, 1)


def test_pooled_scale_is_taken_over_the_draws() -> None:
    draws = [torch.tensor(v, dtype=torch.float64) for v in (3.0, -4.0)]
    assert float(pooled_scale(draws)) == pytest.approx(math.sqrt(12.5))
    draws = [torch.tensor([[3.0, 3.0], [1.0, 1.0]]), torch.tensor([[4.0, 4.0], [1.0, 1.0]])]
    assert torch.allclose(pooled_scale(draws), torch.tensor([[math.sqrt(12.5)], [1.0]], dtype=torch.float64))


def test_integers_and_bools_compare_exactly() -> None:
    truth = torch.tensor([[2**40, 5, 7], [1, 2, 3]])
    assert normalised_error(truth.clone(), truth) == 0
    assert normalised_error(truth + torch.tensor([[1, 0, 0], [0, 0, 0]]), truth) == math.inf
    flags = torch.tensor([True, False])
    assert normalised_error(flags.clone(), flags) == 0
    assert normalised_error(~flags, flags) == math.inf


def test_other_shape_is_infinite_even_where_it_would_broadcast() -> None:
    truth = torch.ones(2, 3, dtype=torch.float64)
    assert normalised_error(torch.ones(3), truth) == math.inf
    assert allclose_margin(truth, torch.ones(1, 3)) == math.inf
    assert not allclose_pass(torch.ones(2, 3), torch.ones(3), 1.0, 1.0)


def test_strided_outputs_are_read_in_logical_order() -> None:
    truth = randn((6, 5), 3)
    assert normalised_error(truth.t().contiguous().t().float(), truth) < 1e-7
    assert normalised_error(truth.flip(0).contiguous().flip(0).float(), truth) < 1e-7


special = st.sampled_from([0.0, 1.0, -2.5, 1e-3, 100.0, math.inf, -math.inf, math.nan])


@settings(deadline=None, max_examples=80)
@given(
    pairs=st.lists(st.tuples(special, special, st.sampled_from([0.0, 5e-3, 2e-2])), min_size=1, max_size=12),
    equal=st.booleans(),
    atol=st.sampled_from([1e-4, 1e-2]),
)
def test_allclose_pass_is_torch_allclose(pairs: list[tuple[float, float, float]], equal: bool, atol: float) -> None:
    a = torch.tensor([p[0] for p in pairs])
    b = torch.tensor([(p[0] if equal else p[1]) + p[2] for p in pairs])
    assert allclose_pass(a, b, atol, atol) == torch.allclose(a, b, atol=atol, rtol=atol)
    wide_a, wide_b = a.double(), b.double()
    margin = allclose_margin(wide_a, wide_b)
    assert (margin <= atol) == torch.allclose(wide_a, wide_b, atol=atol, rtol=atol)


def test_allclose_is_relative_to_the_candidate() -> None:
    assert allclose_margin(torch.tensor([0.0]), torch.tensor([3.0])) == pytest.approx(0.75)
    assert allclose_margin(torch.tensor([3.0]), torch.tensor([0.0])) == pytest.approx(3.0)
    assert not allclose_pass(torch.ones(2), torch.ones(2, dtype=torch.float16), 1.0, 1.0)


@dataclass
class Pair:
    first: Tensor
    rest: dict[str, Any]


def test_outputs_are_flattened_in_order() -> None:
    a, b, c, d = (torch.tensor(float(i)) for i in range(4))
    found = flatten_outputs((a, [Pair(b, {"x": c})], (d,)))
    assert [float(t) for t in found] == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("wrong", [None, 3.0, (torch.ones(1), "text"), [], {}])
def test_what_is_not_a_tensor_is_the_users_error(wrong: Any) -> None:
    with pytest.raises(InputError, match="forward returned"):
        flatten_outputs(wrong)


def test_worst_output_is_reported_with_its_place() -> None:
    first, second = randn((3, 4), 1), randn((2, 5, 3), 2)
    good, bad = first.float(), second.float().clone()
    bad[1, 3, 2] += 1.0
    found = compare_outputs([good, bad], truth_of(first, second, dtypes=(torch.float32,) * 2), [1e-6, 1e-3])
    assert (found.ok, found.output, found.index, found.reason) == (False, 1, (1, 3, 2), "value")
    assert found.tolerance == 1e-3
    assert found.err == pytest.approx(plain_error(bad, second))
    assert found.margin == pytest.approx(allclose_margin(second, bad))


def test_worst_is_relative_to_each_tolerance() -> None:
    truths = [torch.ones(70, dtype=torch.float64)] * 2
    outputs = [torch.full((70,), 1 + 2e-4), torch.full((70,), 1 + 2e-3)]
    found = compare_outputs(outputs, truth_of(*truths, dtypes=(torch.float32,) * 2), [1e-5, 1e-1])
    assert (found.ok, found.output, found.reason) == (False, 0, "value")
    assert compare_outputs(outputs, truth_of(*truths, dtypes=(torch.float32,) * 2), [1e-3, 1e-1]).ok


@pytest.mark.parametrize(
    ("outputs", "reason"),
    [
        ([torch.ones(2, 3), torch.ones(1)], "count"),
        ([torch.ones(3, 2)], "shape"),
        ([torch.ones(2, 3, dtype=torch.float64)], "dtype"),
        ([torch.full((2, 3), math.nan)], "nan"),
        ([torch.full((2, 3), 1.5)], "value"),
        ([torch.ones(2, 3)], ""),
    ],
)
def test_reason_says_what_is_wrong(outputs: list[Tensor], reason: str) -> None:
    truth = truth_of(torch.ones(2, 3, dtype=torch.float64), dtypes=(torch.float32,))
    found = compare_outputs(outputs, truth, [1e-5])
    assert (found.ok, found.reason) == (reason == "", reason)
    assert math.isinf(found.err) == (reason not in ("", "value"))


def test_margin_is_against_the_reference_where_there_is_one() -> None:
    truth = truth_of(torch.ones(70, dtype=torch.float64), dtypes=(torch.float32,))
    with_reference = dataclasses.replace(truth, reference=(torch.full((70,), 1.5),))
    assert compare_outputs([torch.ones(70)], truth, [1e-5]).margin == 0
    found = compare_outputs([torch.ones(70)], with_reference, [1e-5])
    assert found.ok
    assert found.margin == pytest.approx(0.25)


def test_indices_of_equal_values_may_be_chosen_in_any_order_where_they_go_by_value() -> None:
    values = torch.tensor([[5.0, 1.0, 5.0, 3.0], [2.0, 9.0, 4.0, 9.0]], dtype=torch.float64)
    indices = torch.tensor([[0, 2], [1, 3]])
    by_value = Selection(values, 1)
    assert normalised_error(torch.tensor([[2, 0], [3, 1]]), indices) == math.inf
    assert normalised_error(torch.tensor([[2, 0], [3, 1]]), indices, selection=by_value) == 0
    assert normalised_error(torch.tensor([[0, 0], [1, 3]]), indices, selection=by_value) == math.inf  # one chosen twice
    assert normalised_error(torch.tensor([[0, 2], [1, 4]]), indices, selection=by_value) == math.inf  # out of range
    assert normalised_error(torch.tensor([[0, 2], [1, -1]]), indices, selection=by_value) == math.inf
    wrong = normalised_error(torch.tensor([[0, 3], [1, 3]]), indices, selection=by_value)
    assert 0.1 < wrong < 1  # 3 in place of 5


def test_indices_without_the_searched_dimension_go_by_value_too() -> None:
    values = torch.tensor([[5.0, 1.0, 5.0], [2.0, 9.0, 9.0]], dtype=torch.float64)
    assert normalised_error(torch.tensor([2, 2]), torch.tensor([0, 1]), selection=Selection(values, 1)) == 0
    assert normalised_error(torch.tensor([1, 2]), torch.tensor([0, 1]), selection=Selection(values, 1)) > 0.1
