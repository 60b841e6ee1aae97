"""What is not asked or not made any more leaves the counts of a kill matrix, and returns as it was.

Nothing is deleted: cells stay, so that a fault that is edited away and back again is not measured twice.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from ..suites.problem import Problem
from .matrix import Matrix
from .matrix_schema import MutantRow

WITHDRAWN = "withdrawn"  # reason of an entry, means of a mutant, and start of a substrate's detail

Rows = Mapping[str, tuple[int, MutantRow]]
"""Mutants by uid, with their row ids."""


def withdraw_entries(matrix: Matrix, problem: int, device_class: str, asked: Collection[str]) -> None:
    """Admitted entries of the pool that nobody asks any more judge nothing: mutants from now on have no cell there.

    Args:
        asked: ids of the entries of the pool as it is now.
    """
    rows = matrix.entries(problem, device_class=device_class, role="pool").values()
    gone = [replace(row, admitted=False, reason=WITHDRAWN) for row in rows if row.admitted and row.uid not in asked]
    if gone:
        matrix.add_entries(gone)


def withdraw_substrates(matrix: Matrix, problem: Problem, hashes: Collection[str]) -> None:
    """Substrates that are not there any more, and those of an earlier version of the problem, make no mutants.

    They wait as `pending`: when they come back, they have to pass a clean run again.

    Args:
        hashes: of the substrates that there are.
    """
    versions = {id: digest for id, (name, digest) in matrix.problems().items() if name == problem.id}
    for id, row in matrix.substrates().items():
        if row.problem in versions and row.status != "pending":
            why = "the problem has changed" if versions[row.problem] != problem.hash else "it is not there any more"
            if versions[row.problem] != problem.hash or row.hash not in hashes:
                matrix.set_substrate_status(id, "pending", f"{WITHDRAWN}: {why}")


def renewed_mutants(
    matrix: Matrix, substrate: int, made: Collection[str], rows: Rows
) -> dict[str, tuple[int, MutantRow]]:
    """Exclude the mutants of a substrate that no operator makes any more; those that are made again are screened anew.

    What was a duplicate of a mutant that leaves is screened anew as well: it may take its place.

    Args:
        substrate: row id.
        made: ids of the mutants that the operators make now.
        rows: the mutants that the matrix has, of this substrate and of others.

    Returns:
        The rows that changed.
    """
    own = {uid: (id, row) for uid, (id, row) in rows.items() if row.substrate == substrate}
    changed: dict[str, tuple[int, MutantRow]] = {}
    freed: set[str] = set()
    for uid, (id, row) in own.items():
        if uid in made:
            if row.state == "excluded" and row.how == WITHDRAWN:
                changed[uid] = id, replace(row, state="generated", how="")
        elif row.state not in ("excluded", "equivalent"):
            changed[uid] = id, replace(row, state="excluded", how=WITHDRAWN)
            if row.state == "ready":
                freed.add(row.code_hash)
    for uid, (id, row) in own.items():
        if row.state == "duplicate" and row.code_hash in freed and uid not in changed:
            changed[uid] = id, replace(row, state="generated", how="")
    if changed:
        matrix.set_mutant_states((id, row.state, row.code_hash, row.how) for id, row in changed.values())
    return changed
