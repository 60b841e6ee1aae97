"""One reading of a kill matrix: the counts of `coverage`, and behind them the fate of every mutant."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...suites.protocol import load_protocol
from ..banked import PREFIX
from ..coverage import OFFICIAL, OFFICIAL_PROTOCOLS, measure, select_suite
from ..coverage_cells import (
    Close,
    Fates,
    ProblemCells,
    Truth,
    cell_fates,
    kill_classes,
    official_columns,
    official_tolerance,
    protocol_fates,
    read_problems,
    together,
    witnesses,
)
from ..coverage_report import OURS, SUITE_K, Report, Share
from ..matrix import Matrix
from ..matrix_schema import CODES, EntryRow, MutantRow, SubstrateRow
from .catch import Catch, Worth, best_catches, worths

HEAD = (OFFICIAL_PROTOCOLS[0], f"{OURS}@{SUITE_K}")
"""The two checkers that the report speaks of first: KernelBench's and ours."""


@dataclass(frozen=True, slots=True, eq=False)
class Checker:
    """What a protocol says about the mutants of one problem.

    Attributes:
        columns: the entries that it asks, as columns of the cells.
        fates: [mutants] 1 detected, 0 missed, -1 unknown.
        nearness: [mutants, columns]: error over what the protocol allows; NaN where nothing was compared.
    """

    columns: tuple[int, ...]
    fates: Fates
    nearness: NDArray[np.float32]

    def closest(self, mutant: int) -> tuple[int, float] | None:
        """The asked entry (a column of the cells) that came closest to showing a mutant, and by how much."""
        row = self.nearness[mutant]
        if not row.size or np.isnan(row).all():
            return None
        at = int(np.nanargmax(row))
        return self.columns[at], float(row[at])


@dataclass(frozen=True, slots=True, eq=False)
class ProblemFacts:
    """One problem.

    Attributes:
        cells: mutants that count, entries, and what was measured.
        substrates: of this problem, by row id, without kernels that a policy wrote: those never count as correct.
        witnessed, witnessed_official: [mutants] 1 yes, 0 no, -1 undecided; at our tolerances and at 1e-2.
        shows: how each mutant shows at our tolerances: `value`, `race`, `hang`, `crash` or "".
        shown: [mutants, entries], which admitted entries show it at our tolerances.
        ratio: [mutants, entries], err / tolerance; where an entry has no tolerance, margin / 1e-2; inf for crash,
            hang and race; NaN where nothing was compared.
        checkers: by name, in the order of the report.
        worths: per column, beside the other admitted pool entries; None for the rest.
    """

    cells: ProblemCells
    substrates: Mapping[int, SubstrateRow]
    witnessed: Fates
    witnessed_official: Fates
    shows: tuple[str, ...]
    shown: NDArray[np.bool_]
    ratio: NDArray[np.float32]
    checkers: Mapping[str, Checker]
    worths: tuple[Worth | None, ...]

    @property
    def name(self) -> str:
        """The problem's id."""
        return self.cells.name

    def missed(self, checker: str) -> NDArray[np.bool_]:
        """[mutants] witnessed at our tolerances, and not detected."""
        return (self.witnessed == 1) & (self.checkers[checker].fates == 0)

    def closest(self, mutant: int) -> tuple[int, float] | None:
        """The admitted pool entry with the largest ratio; None where nothing was compared."""
        pool = self.cells.columns("pool")
        row = self.ratio[mutant, pool]
        if not row.size or np.isnan(row).all():
            return None
        at = int(np.nanargmax(row))
        return pool[at], float(row[at])


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """A whole matrix on one class of devices.

    Attributes:
        report: the counts.
        environments: what the cells were measured with.
        others: mutants that are not counted (compile errors, duplicates, ...), each with its substrate.
        policy: the same as `problems` for mutants of kernels that a policy wrote, against suites chosen without them.
    """

    report: Report
    problems: tuple[ProblemFacts, ...]
    environments: tuple[Mapping[str, Any], ...]
    others: tuple[tuple[MutantRow, SubstrateRow], ...]
    policy: tuple[ProblemFacts, ...] = ()

    @property
    def checkers(self) -> tuple[str, ...]:
        """Names of the protocols, in the order of the report."""
        return tuple(line.name for line in self.report.protocols)

    def policy_share(self, checker: str) -> Share:
        """How much of the faults in kernels that a policy wrote a checker detects."""
        fates = [p.checkers[checker].fates[p.witnessed == 1] for p in self.policy]
        count = {code: sum(int((f == code).sum()) for f in fates) for code in (1, 0, -1)}
        return Share(count[1], count[1] + count[0], count[-1])

    def catches(self, checker: str, most: int = 3) -> tuple[Catch, ...]:
        """The kinds of input that would catch what a checker misses, over all problems."""
        missed = [p.missed(checker) for p in self.problems]
        ends = np.cumsum([int(m.sum()) for m in missed])
        caught: dict[str, NDArray[np.bool_]] = {}
        for facts, mask, end in zip(self.problems, missed, ends, strict=True):
            for column in facts.cells.columns("pool"):
                hits = facts.shown[mask, column]
                kind = entry_kind(facts.cells.entries[column])
                whole = caught.setdefault(kind, np.zeros(int(ends[-1]), np.bool_))
                whole[end - len(hits) : end] |= hits
        return best_catches(caught, most)


def entry_kind(entry: EntryRow) -> str:
    """An entry's recipe without its numbers of a shape: `negative, changed shape`."""
    return f"{_inputs(entry)}, {'declared' if entry.declared_shape else 'changed'} shape"


def entry_label(entry: EntryRow) -> str:
    """An entry's recipe in a few words: `normal(sigma=4.0), batch_size=33`."""
    constants = entry.recipe.get("constants") or {}
    shape = ", ".join(f"{name}={value}" for name, value in constants.items()) or "declared shape"
    recipe = entry.recipe
    draws = [f"{name} {recipe[name]}" for name in ("draw", "skip") if recipe.get(name)]
    return ", ".join((_inputs(entry), shape, *draws))


def _inputs(entry: EntryRow) -> str:
    recipe = entry.recipe
    params = recipe.get("params") or {}
    text = str(recipe.get("generator", "own"))
    if params:
        text += f"({', '.join(f'{name}={value}' for name, value in params.items())})"
    if recipe.get("scale", 1.0) != 1.0:
        text += f" x {recipe['scale']:g}"
    if recipe.get("dtype", "float32") != "float32":
        text += f" in {recipe['dtype']}"
    return text


def gather(matrix: Matrix, device_class: str | None = None) -> Facts:
    """Read a matrix.

    Args:
        device_class: `cpu` or `cuda`; None = the one with the most cells.

    Raises:
        InputError: there is nothing to count.
        MatrixError: it cannot be read now.
    """
    with matrix.snapshot():
        return _gather(matrix, device_class)


def _gather(matrix: Matrix, device_class: str | None) -> Facts:
    report = measure(matrix, device_class=device_class)
    problems = read_problems(matrix, report.device_class)
    names = [cells.name for cells in problems]
    found = [
        _problem(cells, matrix, report, known=report.suites if names.count(cells.name) == 1 else {})
        for cells in problems
        if cells.mutants
    ]
    policy = [
        _problem(cells, matrix, report, known=report.suites)
        for cells in read_problems(matrix, report.device_class, "bank")
        if cells.mutants and cells.name in report.suites
    ]
    counted = {m.uid for facts in found for m in facts.cells.mutants}
    substrates = matrix.substrates()
    own = [m for m in matrix.mutants().values() if m.origin == "substrate"]
    others = tuple((m, substrates[m.substrate]) for m in own if m.uid not in counted)
    return Facts(report, tuple(found), tuple(matrix.environments().values()), others, tuple(policy))


def _problem(
    cells: ProblemCells, matrix: Matrix, report: Report, known: Mapping[str, Mapping[int, Sequence[str]]]
) -> ProblemFacts:
    fates = cell_fates(cells, Truth())
    pool, protocol = cells.columns("pool"), cells.columns("protocol")
    shown = np.zeros(fates.shape, np.bool_)
    shown[:, pool + protocol] = fates[:, pool + protocol] == 1
    witnessed, ratio = witnesses(cells, Truth()), _ratios(cells)
    worth: list[Worth | None] = [None] * len(cells.entries)
    for column, value in zip(
        pool, worths(shown[witnessed == 1][:, pool], [cells.entries[c].bytes for c in pool]), strict=True
    ):
        worth[column] = value
    checkers = {}
    for line in report.protocols:
        head, at, k = line.name.partition("@")
        if at and head == OURS:
            columns = _chosen(cells, int(k), known.get(cells.name, {}).get(int(k)))
            checkers[line.name] = Checker(tuple(columns), together(fates[:, columns]), ratio[:, columns])
        else:
            checkers[line.name] = _official(cells, line.name)
    return ProblemFacts(
        cells=cells,
        substrates={id: row for id, row in matrix.substrates(cells.id).items() if not row.name.startswith(PREFIX)},
        witnessed=witnessed,
        witnessed_official=witnesses(cells, Close(OFFICIAL)),
        shows=tuple(kill_classes(cells)),
        shown=shown,
        ratio=ratio,
        checkers=checkers,
        worths=tuple(worth),
    )


def _chosen(cells: ProblemCells, k: int, known: Sequence[str] | None) -> list[int]:
    """The suite that `coverage` counted."""
    return select_suite(cells, k)[1] if known is None else [cells.by_uid(uid) for uid in known]


def _official(cells: ProblemCells, name: str) -> Checker:
    spec = load_protocol(name)
    columns = [c for c in official_columns(cells, spec) if c >= 0]
    margin = cells.grid.margin[:, columns, 0] / official_tolerance(spec)
    crashed = np.isin(cells.grid.classes[:, columns, 0], [CODES["crash"], CODES["hang"]])
    nearness = np.where(crashed, np.inf, margin).astype(np.float32)
    return Checker(tuple(columns), protocol_fates(cells, spec), nearness)


def _ratios(cells: ProblemCells) -> NDArray[np.float32]:
    grid = cells.grid
    measured = np.array([e.tolerance is not None for e in cells.entries], np.bool_)
    number = np.where(measured[None, :, None], grid.ratio, grid.margin / OFFICIAL)
    loud = np.isin(grid.classes, [CODES[name] for name in ("crash", "hang", "race")]).any(axis=2)
    return np.where(loud, np.inf, np.fmax(number[:, :, 0], number[:, :, 1])).astype(np.float32)
