"""When a cell that is measured again counts as the same."""

import pytest
from kernelward.mutants.cell import CellResult
from kernelward.mutants.matrix_schema import Cell, Outcome, Variant
from kernelward.mutants.replay import Answer, draws_of


def answer(stored: tuple[float, ...], found: tuple[float, ...], tolerance: tuple[float, ...] | None) -> Answer:
    cell = Cell(1, 2, 3, "plain", 1, "pass", stored, 0.25, 0.0)
    return Answer(cell, CellResult("own-1", "plain", 1, "pass", found, 0.25, 0.0), "", tolerance)


@pytest.mark.parametrize(("stored", "found"), [((0.5,), ()), ((), (0.5,)), ((0.5,), (0.25,)), ((), ())])
def test_errors_say_nothing_where_no_tolerance_is_held_against_them(
    stored: tuple[float, ...], found: tuple[float, ...]
) -> None:
    assert answer(stored, found, None).same
    assert answer(stored, found, None).identical


def test_errors_beyond_the_tolerance_and_other_outputs_differ() -> None:
    assert answer((0.5,), (0.6,), (1.0,)).same
    assert not answer((0.5,), (0.6,), (1.0,)).identical
    assert not answer((0.5,), (2.6,), (1.0,)).same
    assert not answer((0.5,), (), (1.0,)).same


@pytest.mark.parametrize(
    ("variant", "outcome", "seeds", "draws"),
    [
        ("strict", "value", 3, 3),
        ("strict", "pass", 1, 3),  # it may take three to be shown wrong
        ("strict", "pass", 2, 3),
        ("strict", "crash", 1, 1),  # a calibration knew already that the mutant ends CUDA contexts
        ("plain", "value", 1, 1),
    ],
)
def test_a_cell_is_asked_over_as_many_draws_as_before(
    variant: Variant, outcome: Outcome, seeds: int, draws: int
) -> None:
    assert draws_of(Cell(1, 2, 3, variant, seeds, outcome)) == draws
