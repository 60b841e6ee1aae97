"""Which single faults an interaction mutant is made of.

Two faults at once are counted only where each alone passes the official check: else they say nothing that one of them
does not say. The members are mutants of the same substrate, found by their edits.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations

from .matrix import Matrix
from .matrix_schema import Cell
from .mutant import Edit, Mutant, Substrate, mutant_id, parse_tree
from .operators import operators_for

OFFICIAL_TOLERANCE = 1e-2

Edits = tuple[Edit, ...]


def members(substrate: Substrate) -> dict[str, tuple[str, str]]:
    """Ids of the two members of each interaction mutant, by its id; pairs whose members are no mutants are left out.

    Raises:
        ValueError: the substrate is not Python.
    """
    tree = parse_tree(substrate.source, substrate.backend)
    single: dict[Edits, str] = {}
    pairs: dict[str, Edits] = {}
    for operator in operators_for(substrate.backend):
        for site in operator.sites(tree):
            id = mutant_id(substrate.hash, operator.name, site.edits)
            if operator.family == "interaction":
                pairs[id] = site.edits
            else:
                single.setdefault(site.edits, id)  # of several operators with the same edits the first one's is kept
    found = {id: _split(edits, single) for id, edits in pairs.items()}
    return {id: both for id, both in found.items() if both is not None}


def _split(edits: Edits, single: dict[Edits, str]) -> tuple[str, str] | None:
    for size in range(1, len(edits) // 2 + 1):
        for one in combinations(edits, size):
            other = tuple(e for e in edits if e not in one)
            if one in single and other in single:
                return single[one], single[other]
    return None


def members_first(mutants: Sequence[Mutant], both: Mapping[str, tuple[str, str]]) -> list[Mutant]:
    """The same mutants, with the members of each interaction before it; pairs without known members are left out.

    Args:
        both: what `members` gives for their substrate.
    """
    by_id = {mutant.id: mutant for mutant in mutants}
    found: dict[str, Mutant] = {}
    for mutant in mutants:
        if mutant.family == "interaction":
            if not all(id in by_id for id in both.get(mutant.id, ("",))):
                continue
            found.update((id, by_id[id]) for id in both[mutant.id] if id not in found)
        found.setdefault(mutant.id, mutant)
    return list(found.values())


def of_families(
    mutants: Sequence[Mutant], both: Mapping[str, tuple[str, str]], families: Collection[str]
) -> list[Mutant]:
    """The mutants of some families, in the same order, with the members of the interactions among them.

    Args:
        both: what `members` gives for their substrate.
        families: names; empty = all.
    """
    if not families:
        return list(mutants)
    own = {mutant.id for mutant in mutants if mutant.family in families}
    wanted = own.union(*(both[id] for id in own if id in both))
    return [mutant for mutant in mutants if mutant.id in wanted]


def all_asked(matrix: Matrix, ids: Collection[str], official: Collection[int]) -> bool:
    """Whether each of these mutants was put to some of the official check's draws, or is none that counts.

    Args:
        ids: content ids of mutants.
        official: matrix ids of the official check's entries.
    """
    found = [_official_cells(matrix, id, official) for id in ids]
    return all(cells is None or cells for cells in found)


def survive_alone(matrix: Matrix, ids: Collection[str], official: Collection[int]) -> bool:
    """Whether each of these mutants was put to the official check's draws and passed them.

    Args:
        ids: content ids of mutants.
        official: matrix ids of the official check's entries.
    """
    for id in ids:
        cells = _official_cells(matrix, id, official)
        if not cells or any(c.margin > OFFICIAL_TOLERANCE or c.outcome in ("crash", "hang") for c in cells):
            return False
    return True


def _official_cells(matrix: Matrix, id: str, official: Collection[int]) -> list[Cell] | None:
    """What the official check's draws showed; None where no ready mutant has that id."""
    row = matrix.query("SELECT id FROM mutants WHERE uid = ? AND state = 'ready'", (id,))
    return [c for c in matrix.cells(row[0][0]) if c.entry in official] if row else None
