from dataclasses import replace
from pathlib import Path

import pytest
from kernelward.mutants.matrix_schema import SubstrateRow
from kernelward.mutants.withdraw import renewed_mutants, withdraw_entries, withdraw_substrates
from kernelward.suites.problem import Problem
from small_matrix import SmallMatrix


@pytest.fixture
def small(tmp_path: Path) -> SmallMatrix:
    return SmallMatrix(tmp_path / "matrix.sqlite", mutants=4)


def rows_of(small: SmallMatrix) -> dict:
    return {row.uid: (id, row) for id, row in small.matrix.mutants(small.problem).items()}


def test_a_mutant_that_is_not_made_any_more_leaves_and_comes_back_to_be_screened(small: SmallMatrix) -> None:
    rows = rows_of(small)
    uids = list(rows)
    gone = renewed_mutants(small.matrix, small.substrate, uids[1:], rows)
    assert list(gone) == [uids[0]]
    assert small.matrix.mutants()[small.mutants[0]].state == "excluded"
    rows |= gone
    assert renewed_mutants(small.matrix, small.substrate, uids[1:], rows) == {}
    assert renewed_mutants(small.matrix, small.substrate, uids, rows)[uids[0]][1].state == "generated"


def test_a_duplicate_of_one_that_leaves_may_take_its_place(small: SmallMatrix) -> None:
    first, second, third, _ = small.mutants
    small.matrix.set_mutant_states(
        [(first, "ready", "code", "nvrtc"), (second, "duplicate", "code", "nvrtc"), (third, "duplicate", "x", "nvrtc")]
    )
    rows = rows_of(small)
    changed = renewed_mutants(small.matrix, small.substrate, list(rows)[1:], rows)
    assert {row.state for _, row in changed.values()} == {"excluded", "generated"}
    states = [row.state for row in small.matrix.mutants().values()]
    assert states == ["excluded", "generated", "duplicate", "ready"]


def test_what_a_screen_excluded_stays_excluded_and_other_substrates_are_left_alone(small: SmallMatrix) -> None:
    small.matrix.set_mutant_state(small.mutants[0], "excluded", how="engine")
    other = small.matrix.add_substrate(SubstrateRow("other", "cuda/other", "cuda", "naive", small.problem, "admitted"))
    rows = rows_of(small)
    assert renewed_mutants(small.matrix, small.substrate, rows, rows) == {}
    assert renewed_mutants(small.matrix, other, (), rows) == {}


def test_a_substrate_that_is_gone_waits_and_so_do_those_of_an_older_problem(small: SmallMatrix) -> None:
    matrix = small.matrix
    other = matrix.add_problem("other", "hash-of-other")
    kept = matrix.add_substrate(SubstrateRow("kept", "cuda/kept", "cuda", "naive", small.problem, "admitted"))
    foreign = matrix.add_substrate(SubstrateRow("foreign", "cuda/foreign", "cuda", "naive", other, "admitted"))
    problem = Problem("softmax", "edited")  # its hash is another one than the matrix has
    withdraw_substrates(matrix, problem, {"kept"})
    rows = matrix.substrates()
    assert {rows[small.substrate].status, rows[kept].status} == {"pending"}
    assert "the problem has changed" in rows[kept].detail
    assert rows[foreign].status == "admitted"


def test_an_entry_that_is_not_asked_any_more_judges_nothing(small: SmallMatrix) -> None:
    uids = [row.uid for row in small.matrix.entries().values()]
    withdraw_entries(small.matrix, small.problem, "cpu", uids[:1])
    withdraw_entries(small.matrix, small.problem, "cuda", [])
    first, second = small.matrix.entries().values()
    assert first.admitted
    assert (second.admitted, second.reason) == (False, "withdrawn")
    assert second == replace(second, measured={"tolerance": [small.tolerance]})
