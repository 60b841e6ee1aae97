"""From the cells of one problem to what each mutant's fate is under some entries, a comparison and an engine.

Fates are int8 arrays over the mutants: 1 detected, 0 not detected, -1 unknown. A mutant is detected as soon as one cell
shows it, and undetected only where all cells are there.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..suites.hashing import stable_hash
from ..suites.protocol import ProtocolSpec
from ..suites.select import DENSE, held_out, site_key
from .matrix import Grid, Matrix
from .matrix_schema import CODES, EntryRow, MutantRow, Origin, SubstrateRow

WITNESS_SEEDS = 3  # a kill has to hold in so many draws
Engine = Literal["plain", "strict"]
Fates = NDArray[np.int8]
_LEFT_OUT = ("not-finite", "reference-raises")  # why the gate refused an entry that `skip_nonfinite` leaves out


@dataclass(frozen=True, slots=True)
class Truth:
    """Our comparison: err > factor * tolerance, crash, hang, race."""

    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Close:
    """torch.allclose against the reference at atol = rtol = tolerance; a crash or a hang fails it too."""

    tolerance: float = 1e-2


Comparison = Truth | Close


@dataclass(frozen=True, slots=True, eq=False)
class ProblemCells:
    """One problem of a matrix, ready to be counted: the mutants that count, and all entries.

    Attributes:
        twins: per entry, the column of the same recipe at the declared shape; -1 where there is none.
        held: per mutant, whether it is in the held-out half.
    """

    id: int
    name: str
    hash: str
    grid: Grid
    mutants: tuple[MutantRow, ...]
    backends: tuple[str, ...]
    entries: tuple[EntryRow, ...]
    twins: NDArray[np.int64]
    held: NDArray[np.bool_]

    def columns(self, role: str) -> list[int]:
        """Admitted entries of a role."""
        return [i for i, entry in enumerate(self.entries) if entry.admitted and entry.role == role]

    def by_uid(self, uid: str) -> int:
        """The column of an entry; -1 where the matrix does not know it."""
        return next((i for i, entry in enumerate(self.entries) if entry.uid == uid), -1)

    def labels(self, by: str) -> list[str]:
        """What each mutant counts under."""
        match by:
            case "problem":
                return [self.name] * len(self.mutants)
            case "backend":
                return list(self.backends)
            case "operator":
                return [m.operator for m in self.mutants]
            case _:
                return [m.family for m in self.mutants]


def read_problems(matrix: Matrix, device_class: str, origin: Origin = "substrate") -> list[ProblemCells]:
    """All problems with entries on this device class, by name; mutants of substrates that are not admitted are out.

    Args:
        origin: mutants of our own substrates, or of kernels that a policy wrote.
    """
    found = []
    for id, (name, digest) in matrix.problems().items():
        entries = tuple(matrix.entries(id, device_class=device_class).values())
        if entries:
            found.append(_read_problem(matrix, id, name, digest, entries, device_class, origin))
    return found


def _read_problem(
    matrix: Matrix,
    id: int,
    name: str,
    digest: str,
    entries: tuple[EntryRow, ...],
    device_class: str,
    origin: Origin,
) -> ProblemCells:
    grid = matrix.rows(id, device_class=device_class)
    rows = matrix.mutants(id, state="ready")
    substrates: Mapping[int, SubstrateRow] = matrix.substrates(id)
    counts = [m.origin == origin and substrates[m.substrate].status == "admitted" for m in rows.values()]
    counted = [i for i, yes in enumerate(counts) if yes]
    mutants = tuple(m for m, yes in zip(rows.values(), counts, strict=True) if yes)
    declared = {_recipe(e): i for i, e in enumerate(entries) if e.declared_shape}
    return ProblemCells(
        id=id,
        name=name,
        hash=digest,
        grid=Grid(
            grid.mutants[counted],
            grid.entries,
            grid.classes[counted],
            grid.ratio[counted],
            grid.margin[counted],
            grid.seeds[counted],
            grid.changed,
        ),
        mutants=mutants,
        backends=tuple(substrates[m.substrate].backend for m in mutants),
        entries=entries,
        twins=np.array([-1 if e.declared_shape else declared.get(_recipe(e), -1) for e in entries], np.int64),
        held=np.array([held_out(m.operator, site_key(digest, m.detail)) for m in mutants], np.bool_),
    )


def _recipe(entry: EntryRow) -> str:
    """An entry's recipe without its shape."""
    return json.dumps({k: v for k, v in entry.recipe.items() if k != "constants"}, sort_keys=True)


def cell_fates(cells: ProblemCells, comparison: Comparison, engine: Engine = "strict") -> Fates:
    """What each entry shows about each mutant: [mutants, entries] of 1, 0, -1.

    `strict` falls back to a plain failure: what fails plainly fails strictly. Where a changed shape was refused the
    entry abstains and its declared-shape twin counts in its place.

    Where a mutant ended in all draws of some entry, crashed in a dense one of this shape, and in each that was asked
    there, the others of the shape are taken to crash it too, which a GPU leaves out (`measure`): of 2,921 such cells of
    two matrices that had asked them, 2,921 did (`tests/measure/lazy_cells.py`).
    """
    grid = cells.grid
    if isinstance(comparison, Close):
        bad, number = grid.fails_allclose(comparison.tolerance), grid.margin
        if engine == "strict":
            bad = bad | (grid.classes == CODES["race"])
    else:
        bad, number = grid.kills(comparison.factor), grid.ratio
    known = grid.present & (bad | grid.abstained | ~np.isnan(number) | (grid.classes == CODES["pass"]))
    variant = 0 if engine == "plain" else 1
    shown = bad[:, :, 0] if engine == "plain" else bad.any(axis=2)
    fates = np.where(shown, 1, np.where(known[:, :, variant], 0, -1)).astype(np.int8)
    refused = grid.abstained[:, :, variant] & ~shown
    crashes = grid.classes == CODES["crash"]
    proved = ((crashes | (grid.classes == CODES["hang"])) & (grid.seeds >= WITNESS_SEEDS)).any(axis=(1, 2))
    for dense, columns in _by_shape(cells):
        asked = grid.present[:, columns, variant]
        ended = proved & crashes[:, dense, variant].any(axis=1) & (crashes[:, columns, variant] | ~asked).all(axis=1)
        fates[:, columns] = np.where(ended[:, None] & (fates[:, columns] < 0), 1, fates[:, columns])
    for column in np.flatnonzero(refused.any(axis=0)):
        twin = cells.twins[column]
        fates[refused[:, column], column] = 0 if twin < 0 else fates[refused[:, column], twin]
    return fates


def _by_shape(cells: ProblemCells) -> Iterator[tuple[list[int], list[int]]]:
    """The dense columns of each shape of the pool, and all of them."""
    shapes: dict[str, tuple[list[int], list[int]]] = {}
    for column in cells.columns("pool"):
        recipe = cells.entries[column].recipe
        dense, columns = shapes.setdefault(stable_hash(recipe.get("constants") or {}), ([], []))
        columns.append(column)
        if recipe["generator"] in DENSE:
            dense.append(column)
    yield from shapes.values()


def together(fates: Fates) -> Fates:
    """[mutants, entries] -> [mutants]: detected by one entry, undetected by all, or unknown."""
    best = fates.max(axis=1, initial=0)
    return np.where(best == 1, 1, np.where((fates < 0).any(axis=1), -1, 0)).astype(np.int8)


def protocol_fates(cells: ProblemCells, spec: ProtocolSpec, tolerance: float | None = None) -> Fates:
    """What a protocol with entries of its own says of each mutant.

    Args:
        tolerance: instead of the protocol's own atol = rtol.
    """
    comparison = Close(official_tolerance(spec) if tolerance is None else tolerance)
    columns = official_columns(cells, spec)
    fates = cell_fates(cells, comparison, "plain")[:, [c for c in columns if c >= 0]]
    lacking = np.full((len(cells.mutants), columns.count(-1)), -1, np.int8)
    return together(np.concatenate([fates, lacking], axis=1))


def official_tolerance(spec: ProtocolSpec) -> float:
    """The atol = rtol of an official protocol at float32.

    Raises:
        ValueError: it compares otherwise.
    """
    if spec.comparison == "truth" or spec.comparison.atol != spec.comparison.rtol:
        raise ValueError(f"{spec.name} does not compare by allclose with atol = rtol")
    return spec.comparison.atol


def official_columns(cells: ProblemCells, spec: ProtocolSpec) -> list[int]:
    """The columns of a protocol's entries; -1 for one that the matrix lacks, none for one that the protocol skips."""
    assert spec.entries != "suite"
    columns = [cells.by_uid(entry.id) for entry in spec.entries]
    return [c for c in columns if not (c >= 0 and spec.skip_nonfinite and cells.entries[c].reason in _LEFT_OUT)]


def witnesses(cells: ProblemCells, comparison: Comparison) -> Fates:
    """Whether some admitted entry shows each mutant wrong in three of three seeds; unknown while cells are missing.

    Entries of official protocols are run plainly only. A race is one under either comparison.
    """
    pool, protocol = cells.columns("pool"), cells.columns("protocol")
    grid = cells.grid
    bad = grid.kills(comparison.factor) if isinstance(comparison, Truth) else grid.fails_allclose(comparison.tolerance)
    wrong = (bad | (grid.classes == CODES["race"]))[:, pool + protocol]
    shown = wrong & (grid.seeds[:, pool + protocol] >= WITNESS_SEEDS)
    asked = [cell_fates(cells, comparison)[:, pool], cell_fates(cells, comparison, "plain")[:, protocol]]
    missing = (np.concatenate(asked, axis=1) < 0).any(axis=1) | (wrong & ~shown).any(axis=(1, 2))
    return np.where(shown.any(axis=(1, 2)), 1, np.where(missing, -1, 0)).astype(np.int8)


def kill_classes(cells: ProblemCells) -> list[str]:
    """How each mutant shows at our tolerance: by a value if any cell does, else race, hang, crash; "" = not at all."""
    columns = sorted(cells.columns("pool") + cells.columns("protocol"))
    classes = np.where(cells.grid.kills(), cells.grid.classes, -1)[:, columns]
    classes = np.where(classes == CODES["refused"], CODES["crash"], classes)  # at the declared shape it is one
    order = ("value", "race", "hang", "crash")
    shows = {name: (classes == CODES[name]).any(axis=(1, 2)) for name in order}
    return [next((name for name in order if shows[name][i]), "") for i in range(len(cells.mutants))]


def under_refusal(cells: ProblemCells, fates: Fates, columns: Sequence[int]) -> Fates:
    """[mutants]: what entries say to a candidate that refuses every changed shape.

    Each entry with changed constants is replaced by its declared-shape twin, and abstains where it has none. A twin
    that was not asked is unknown.
    """
    own = [c for c in columns if not cells.grid.changed[c]]
    twins = [int(cells.twins[c]) for c in columns if cells.grid.changed[c] and cells.twins[c] >= 0]
    return together(fates[:, [*own, *twins]])


def dense_columns(cells: ProblemCells) -> list[int]:
    """Admitted pool entries that may stand first in a suite."""
    return [c for c in cells.columns("pool") if cells.entries[c].recipe["generator"] in DENSE]
