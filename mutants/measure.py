"""Fill one mutant's row of the kill matrix, lazily: cells that no decision needs stay empty.

The pool's entries are asked over one draw, and where that shows the mutant wrong, over all three: a kill has to hold in
each. Once `WITNESSES` entries showed it so, also at the official tolerance, one draw decides each of the others: of
34,289 cells of three matrices whose first draw killed, 206 did not hold in three (0.6 %: tests/measure/lazy_cells.py),
and such a mutant is not one that a single entry shows.

Entries of an official protocol are asked in its order up to the first that its loosest tolerance catches: the protocol
stops there too.

On a GPU one mutant in four, by the hash of its id, is put to entries of many megabytes; the others only to those of the
pool, and only where no cheaper entry shows them wrong. So the pool decides the fate of every mutant, and what official
protocols detect is counted on a fair sample.

A CUDA error costs a process and its context there, and half a second for all lanes: the driver logs what each
multiprocessor saw. A mutant that is known for it is put to a dense entry of each shape; where that ends it, the others
of that shape are left out: they would as well (`coverage_cells.cell_fates` has how often that was so).
"""

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from ..suites.hashing import stable_hash
from ..suites.oracle import OracleError
from ..suites.problem import Problem
from ..suites.select import DENSE
from .cell import OFFICIAL_TOLERANCE, SEEDS, CellResult, Question, Variant
from .evaluate import Evaluator
from .kernel_run import KernelBroken, KernelRun
from .mutant import Mutant

WITNESSES = 5  # entries that show a mutant in all draws before one draw is enough
SAMPLE = 4  # one mutant in so many is put to costly entries that nothing about itself depends on
CellsDone = Collection[tuple[int, Variant]]
"""(matrix id of an entry, variant) of cells."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, the matrix id of its entry, and whether only a sample of mutants is put to it."""

    id: int
    question: Question
    costly: bool = False


@dataclass(frozen=True, slots=True)
class Official:
    """Entries of official protocols that look at the same draws, in their order.

    Attributes:
        asked: the questions, plain.
        loosest: the largest tolerance of the protocols that share them; a margin above it decides for all.
    """

    asked: tuple[Asked, ...]
    loosest: float

    @property
    def costly(self) -> bool:
        """Whether only a sample of mutants is put to them."""
        return any(asked.costly for asked in self.asked)


@dataclass(frozen=True, slots=True)
class Known:
    """What earlier runs found of a mutant's row.

    Attributes:
        done: cells that are there already.
        shown: whether one of those shows it wrong.
        races: whether one of those is a race.
        crashes: the entries whose cell is there and a crash, of a mutant that crashed in all draws of one of them.
    """

    done: CellsDone = ()
    shown: bool = False
    races: bool = False
    crashes: Collection[int] = ()


@dataclass(frozen=True, slots=True)
class Measured:
    """New cells of one mutant, by matrix id of the entry, and why its row is not complete ("" where it is)."""

    cells: tuple[tuple[int, CellResult], ...]
    broken: str = ""


def measure_mutant(
    evaluator: Evaluator,
    problem: Problem,
    mutant: Mutant,
    pool: Sequence[Asked],
    official: Iterable[Official],
    known: Known | None = None,
) -> Measured:
    """Ask what is missing.

    Args:
        pool: strict questions in the order in which they are asked: the cheapest first, grouped by shape.
        official: groups of plain questions.
        known: what is there already; nothing by default.

    Raises:
        ChildFailure: `infra_error`: nothing is known about the mutant.
    """
    found: list[tuple[int, CellResult]] = []
    broken, all_of_them = "", in_sample(mutant.id)
    known = known or Known()
    with evaluator.open(mutant.source, mutant.backend, problem) as run:
        run.races = known.races
        crashing = _crashing(pool, known)
        for shape in crashing:
            run.known_to_crash(shape)
        try:
            _ask_pool(run, pool, known, found, all_of_them, crashing)
            for group in official:
                if all_of_them or not group.costly:
                    _ask_official(run, group, known.done, found)
        except KernelBroken as error:
            broken = str(error)
    return Measured(tuple(found), broken)


def _crashing(pool: Sequence[Asked], known: Known) -> set[Hashable]:
    """The shapes with a dense entry that is known to crash the mutant, and none that is known not to."""
    there = [a for a in pool if (a.id, a.question.variant) in known.done]
    crashed: set[Hashable] = {
        a.question.entry.constants for a in there if a.id in known.crashes and a.question.entry.generator in DENSE
    }
    return crashed - {a.question.entry.constants for a in there if a.id not in known.crashes}


def in_sample(mutant: str) -> bool:
    """Whether a mutant is one of those that costly entries are put to in any case."""
    return int(stable_hash(["costly entries", mutant])[:8], 16) % SAMPLE == 0


def _ask_pool(
    run: KernelRun,
    pool: Sequence[Asked],
    known: Known,
    found: list[tuple[int, CellResult]],
    all_of_them: bool,
    crashing: Collection[Hashable],
) -> None:
    missing = [a for a in sorted(pool, key=lambda a: a.costly) if (a.id, a.question.variant) not in known.done]
    for (costly, shape), group in groupby(missing, lambda a: (a.costly, a.question.entry.constants)):
        dense_asked = shape in crashing
        for asked in sorted(group, key=lambda a: a.question.entry.generator not in DENSE):
            if costly and not all_of_them and (known.shown or any(cell.killed for _, cell in found)):
                return
            if dense_asked and run.ends_at(asked.question):
                continue
            dense_asked |= asked.question.entry.generator in DENSE
            _ask(run, asked, found)


def _ask(run: KernelRun, asked: Asked, found: list[tuple[int, CellResult]]) -> None:
    witnesses = sum(cell.killed and cell.seeds == SEEDS and cell.margin > OFFICIAL_TOLERANCE for _, cell in found)
    cell = _cell(run, asked.question, SEEDS if witnesses < WITNESSES else 1)
    if cell is not None:
        found.append((asked.id, cell))


def _ask_official(run: KernelRun, group: Official, done: CellsDone, found: list[tuple[int, CellResult]]) -> None:
    if any((asked.id, asked.question.variant) in done for asked in group.asked):
        return  # a row is stored as a whole: the group was asked as far as it goes
    known = {id: cell for id, cell in found if cell.variant == "plain"}  # groups may share a draw
    for asked in group.asked:
        cell = known.get(asked.id) or _cell(run, asked.question, 1)
        if cell is None:
            continue
        if asked.id not in known:
            found.append((asked.id, cell))
        if cell.margin > group.loosest or cell.cls in ("crash", "hang"):
            return


def _cell(run: KernelRun, question: Question, draws: int) -> CellResult | None:
    """A cell; None where there is no answer to hold the kernel against."""
    try:
        return run.cell(question, draws)
    except OracleError:
        return None
