"""One cell of a kill matrix, measured again: the same mutant, inputs, variants and number of draws, in the sandbox.

A matrix stores neither sources nor tensors. The mutant is made again from its substrate, which is found by its hash,
and the inputs are drawn again from the entry's recipe by the seeds of the matrix (`evaluate.matrix_seed`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..reward.bank import BankedKernel, KernelBank
from ..suites.entry import Entry
from ..suites.errors import InputError
from ..suites.hashing import short
from ..suites.oracle import OracleError
from ..suites.problem import Problem, problem_from_source
from ..suites.validity import Admission, Measured
from .banked import PREFIX
from .calibrate_plan import Questions, entry_ids, find_in, official_questions, pool_questions, questions_hash
from .cell import SEEDS, CellResult, Question
from .evaluate import Evaluator
from .kernel_run import KernelBroken
from .matrix import Matrix
from .matrix_schema import Cell, EntryRow, MutantRow, SubstrateRow, pack_errs, rounded, unpack_errs
from .mutant import Backend, Mutant, Substrate, generate
from .pool import Pool
from .substrates import list_substrates

_NEAR = 1e-3  # relative difference of numbers that another order of summation explains


@dataclass(frozen=True, slots=True)
class Place:
    """Where what a matrix does not store is looked up.

    Attributes:
        problems: folders of problems.
        substrates: folder beside the package's own substrates.
        bank: file of the kernels that a policy wrote.
    """

    problems: Sequence[Path] = ()
    substrates: Path | None = None
    bank: Path | None = None


@dataclass(frozen=True, slots=True)
class Replay:
    """A cell that can be measured again.

    Attributes:
        mutant, substrate, problem: made and found again.
        entry: as the matrix has it.
        environment: in which it was measured.
        asked: what the matrix has of this mutant on this entry, one cell per variant, with the question behind it.
        outdated: the mutant was put to other entries than the matrix has now, so another one may have asked for races.
    """

    mutant: Mutant
    substrate: Substrate
    problem: Problem
    entry: EntryRow
    environment: Mapping[str, Any]
    asked: tuple[tuple[Cell, Question], ...]
    outdated: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """A cell as it was and as it is.

    Attributes:
        stored: as the matrix has it.
        found: as it was measured now; None where there is no answer, for the reason `why`.
        tolerance: one per output; None where the entry has none.
    """

    stored: Cell
    found: CellResult | None
    why: str
    tolerance: tuple[float, ...] | None

    @property
    def errs(self) -> tuple[float, ...]:
        """The errors found, as a matrix stores them."""
        return () if self.found is None else unpack_errs(pack_errs(self.found.errs))

    @property
    def margin(self) -> float:
        """The margin found, as a matrix stores it."""
        return math.nan if self.found is None else rounded(self.found.margin)

    @property
    def identical(self) -> bool:
        """Whether it is the same to the last digit that a matrix keeps."""
        errs = self.tolerance is None or self.errs == self.stored.errs  # without one they decide nothing
        return self._alike and errs and _close(self.margin, self.stored.margin, 0.0, 0.0)

    @property
    def same(self) -> bool:
        """Whether the same was seen over as many draws; numbers may differ by what the entry tolerates or 0.1 %."""
        if not self._alike:
            return False
        if self.tolerance is None:
            return _close(self.margin, self.stored.margin, 0.0, _NEAR)
        if len(self.errs) != len(self.stored.errs):
            return False
        slack = self.tolerance
        pairs = zip(self.errs, self.stored.errs, slack, strict=True)
        return all(_close(a, b, s, _NEAR) for a, b, s in pairs) and _close(
            self.margin, self.stored.margin, max(slack, default=0.0), _NEAR
        )

    @property
    def _alike(self) -> bool:
        found = self.found
        return found is not None and (found.cls, found.seeds) == (self.stored.outcome, self.stored.seeds)


def _close(a: float, b: float, slack: float, share: float) -> bool:
    if not (math.isfinite(a) and math.isfinite(b)):
        return a == b or (math.isnan(a) and math.isnan(b))
    return abs(a - b) <= slack + share * max(abs(a), abs(b))


def classes_measured(matrix: Matrix, mutant: str) -> set[str]:
    """The classes of devices on which a mutant was put to entries.

    Raises:
        InputError: there is no such mutant, or it was put to none.
    """
    id, row = _mutant(matrix, mutant)
    entries = matrix.entries()
    found = {entries[cell.entry].device_class for cell in matrix.cells(id)}
    if not found:
        why = f"{row.state} ({row.how})" if row.how else row.state
        raise InputError(f"mutant {row.uid} was put to no entry: its state is {why}")
    return found


def find_replay(matrix: Matrix, mutant: str, entry: str, device_class: str, place: Place) -> Replay:
    """Find or make again what a cell was measured with.

    Args:
        mutant, entry: ids in the matrix, or unique beginnings of them.
        device_class: `cpu` or `cuda`.

    Raises:
        InputError: an id is unknown, there is no such cell, or something is not there or not the same any more.
        BankError: the bank cannot be read now.
    """
    id, row = _mutant(matrix, mutant)
    substrate_row = matrix.substrates()[row.substrate]
    problem_id = substrate_row.problem
    entry_id, entry_row = _entry(matrix, problem_id, device_class, entry)
    known = matrix.environments()
    cells = [c for c in matrix.cells(id) if c.entry == entry_id]
    newest = max((c.environment for c in cells), default=None)
    if newest is None:
        raise InputError(f"mutant {row.uid} was not put to {entry_row.uid} on {device_class}")
    problem = _problem(matrix.problems()[problem_id], substrate_row, place)
    substrate = _substrate(substrate_row, problem, place)
    made = next((m for m in generate(substrate) if m.id == row.uid), None)
    if made is None:
        raise InputError(
            f"mutant {row.uid} is not made any more: {row.operator} does not make this change of {substrate.name} in "
            f"this version; it was measured by kernelward {known[newest].get('kernelward', '?')}"
        )
    questions = _questions(matrix, problem, problem_id, device_class)
    asked = tuple((c, _question(questions, entry_row, c)) for c in cells if c.environment == newest)
    outdated = matrix.asked(problem_id).get((id, newest)) != questions_hash(questions)
    return Replay(made, substrate, problem, entry_row, known[newest], asked, outdated)


def ask(replay: Replay, evaluator: Evaluator) -> list[Answer]:
    """Measure the cells again.

    Raises:
        ChildFailure: `infra_error`: nothing is known.
    """
    answers = []
    with evaluator.open(replay.mutant.source, replay.mutant.backend, replay.problem) as run:
        for cell, question in replay.asked:
            found, why = None, "the mutant gives no answer to this entry"
            try:
                found = run.cell(question, draws_of(cell))
            except (KernelBroken, OracleError) as error:
                why = str(error)
            answers.append(Answer(cell, found, "" if found else why, replay.entry.tolerance))
    return answers


def draws_of(cell: Cell) -> int:
    """Over how many draws a calibration asked: fewer where it knew already that the mutant ends CUDA contexts."""
    survived = cell.outcome in ("pass", "refused")
    return 1 if cell.variant == "plain" else SEEDS if survived else cell.seeds


def _one(wanted: str, found: Iterable[tuple[int, str]], what: str, where: str) -> int:
    """The row id of the only text that is or begins with what is wanted."""
    rows = list(found)
    exact = [id for id, uid in rows if uid == wanted] or [id for id, uid in rows if uid.startswith(wanted)]
    if len(exact) == 1:
        return exact[0]
    if exact:
        raise InputError(f"{len(exact)} {what} begin with {wanted}: give more of the id")
    raise InputError(f"no {what} {wanted} in {where}")


def _mutant(matrix: Matrix, wanted: str) -> tuple[int, MutantRow]:
    rows = matrix.mutants()
    id = _one(wanted, ((id, row.uid) for id, row in rows.items()), "mutant", str(matrix.path))
    return id, rows[id]


def _entry(matrix: Matrix, problem: int, device_class: str, wanted: str) -> tuple[int, EntryRow]:
    rows = matrix.entries(problem, device_class=device_class)
    name = matrix.problems()[problem][0]
    where = f"{matrix.path} for {name} on {device_class}; it has {', '.join(sorted(r.uid for r in rows.values()))}"
    id = _one(wanted, ((id, row.uid) for id, row in rows.items()), "entry", where)
    return id, rows[id]


def _problem(named: tuple[str, str], row: SubstrateRow, place: Place) -> Problem:
    name, digest = named
    kernel = _banked(row, place)
    found = problem_from_source(kernel.problem_source, name) if kernel else find_in(name, place.problems)
    if found.hash != digest:
        raise InputError(
            f"{found.place}: {name} is not the problem that was measured any more (its source was {short(digest)}, "
            f"and is {short(found.hash)})"
        )
    return found


def _substrate(row: SubstrateRow, problem: Problem, place: Place) -> Substrate:
    kernel = _banked(row, place)
    if kernel is not None:
        backend: Backend = "triton" if row.backend == "triton" else "cuda"
        return Substrate(row.name, problem.id, backend, row.style, kernel.source)
    known = list_substrates() + ([] if place.substrates is None else list_substrates(place.substrates))
    found = next((s for s in known if s.hash == row.hash), None)
    if found is None:
        changed = any(s.name == row.name for s in known)
        why = "has changed since it was measured" if changed else "is not here: name its folder with --substrates"
        raise InputError(f"substrate {row.name} (source {short(row.hash)}) {why}")
    return found


def _banked(row: SubstrateRow, place: Place) -> BankedKernel | None:
    """The kernel of the bank that a substrate is; None where it is one of ours."""
    if not row.name.startswith(PREFIX):
        return None
    if place.bank is None or not place.bank.is_file():
        raise InputError(f"substrate {row.name} is a kernel that a policy wrote: name the bank that has it with --bank")
    with KernelBank(place.bank) as bank:
        kernel = bank.get(row.name.removeprefix(PREFIX))
    if kernel is None:
        raise InputError(f"substrate {row.name} is not in {place.bank} any more")
    return kernel


def _questions(matrix: Matrix, problem: Problem, id: int, device_class: str) -> Questions:
    rows = matrix.entries(id, device_class=device_class)
    pool = Pool(problem, device_class, tuple(_admission(row) for row in rows.values() if row.role == "pool"))
    protocol = {id: row for id, row in rows.items() if row.role == "protocol"}
    return Questions(pool_questions(pool, entry_ids(matrix, id, device_class)), official_questions(protocol))


def _admission(row: EntryRow) -> Admission:
    measured = None if row.measured is None else Measured.from_dict(dict(row.measured))
    return Admission(Entry.from_dict(row.recipe), row.admitted, row.reason, row.detail, measured)


def _question(questions: Questions, row: EntryRow, cell: Cell) -> Question:
    official = (asked for group in questions.official for asked in group.asked)
    asked = questions.pool if cell.variant == "strict" else official
    found = next((a.question for a in asked if a.id == cell.entry), None)
    if found is None:
        raise InputError(f"entry {row.uid} judges nothing any more ({row.reason}): its cells are not counted")
    # Another entry's race may have had this one asked for races as well. A kill by other means comes before the check.
    raced = cell.variant == "strict" and (cell.outcome not in ("pass", "refused") or cell.seeds > 1)
    return replace(found, races=found.races or raced)
