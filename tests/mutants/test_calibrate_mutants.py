"""Which cells of a mutant are asked again."""

from kernelward.mutants.calibrate_mutants import unproved_kills
from kernelward.mutants.matrix_schema import Cell, Outcome, Variant


def cell(entry: int, outcome: Outcome, seeds: int, variant: Variant = "strict") -> Cell:
    return Cell(1, entry, 1, variant, seeds, outcome)


def test_crashes_over_one_draw_stand_beside_a_witness() -> None:
    there = [cell(1, "crash", 3), cell(2, "crash", 1), cell(3, "pass", 1)]
    assert unproved_kills(there, {1, 2, 3}) == set()


def test_crashes_over_one_draw_are_asked_again_once_their_witness_is_asked_no_more() -> None:
    there = [cell(1, "crash", 3), cell(2, "crash", 1), cell(3, "pass", 1), cell(4, "value", 2), cell(5, "refused", 1)]
    assert unproved_kills(there, {2, 3, 4, 5}) == {(2, "strict"), (4, "strict")}


def test_one_draw_is_all_that_a_plain_cell_ever_has() -> None:
    assert unproved_kills([cell(1, "crash", 1, "plain")], {1}) == set()
