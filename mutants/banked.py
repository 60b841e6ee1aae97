"""Kernels that the reward accepted (`reward.bank`), as the calibrator sees them: suspects first, then mutation targets.

Each is put to the whole pool of its problem. One that some entry shows wrong in three of three draws is a false accept
found in production, and the bank is told with the entry that shows it. One that passes everything becomes a substrate
of origin `bank`: its mutants measure coverage on the policy's own style. (One that only calls torch's operators is
verified and not mutated.) It never votes on what an entry may judge, and never counts as known to be correct. The
kernels are hostile code: they run where candidates run, and nowhere else.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..reward.bank import BankedKernel, Evidence, KernelBank, State
from ..suites.errors import InputError
from ..suites.problem import Problem, problem_from_source
from .calibrate_plan import Target
from .cell import SEEDS, CellResult, Question
from .evaluate import Evaluator, matrix_seed
from .kernel_run import KernelBroken
from .matrix import Matrix
from .matrix_schema import SubstrateRow, SubstrateStatus, ratio
from .mutant import Backend, Substrate
from .pool import Pool

PREFIX = "bank/"  # of the names of such substrates
MOST_MUTATED = 24  # kernels, the newest of all problems, that are verified and mutated in one go
MOST_VERIFIED = 24  # the oldest of those that nobody has verified and nobody can mutate
_MUTATED: tuple[Backend, ...] = ("cuda", "triton")


@dataclass(frozen=True, slots=True)
class Finding:
    """What the pool says of an accepted kernel.

    Attributes:
        state: `verified`, `false-accept` or `unusable`.
        detail: `Evidence` as JSON for a false accept, else text.
    """

    state: State
    detail: str


def with_guests(targets: Sequence[Target], bank: KernelBank, most: int = MOST_MUTATED) -> list[Target]:
    """The targets, with the newest kernels of the bank as guests, and one more for each problem that is not among them.

    Kernels that were found wrong or unusable are left out, and those of torch's operators that were verified.

    Args:
        most: kernels to mutate.

    Raises:
        BankError: the bank cannot be read now.
    """
    kept = [k for k in bank.kernels("new", "verified") if k.backend in _MUTATED][-most:] if most else []
    kept += [k for k in bank.kernels("new") if k.backend == "torch"][:MOST_VERIFIED]
    own = {t.problem.hash: {s.hash for s in t.substrates} for t in targets}
    by_problem: dict[str, list[BankedKernel]] = {}
    for kernel in kept:
        by_problem.setdefault(kernel.problem_hash, []).append(kernel)
    found = {t.problem.hash: t for t in targets}
    for digest, kernels in by_problem.items():
        guests = tuple(g for g in map(_substrate, kernels) if g.hash not in own.get(digest, ()))
        if digest not in found:
            problem = _problem(kernels[0])
            if problem is None:
                continue
            found[digest] = Target(problem, ())
        found[digest] = replace(found[digest], guests=guests)
    return list(found.values())


def _problem(kernel: BankedKernel) -> Problem | None:
    try:
        problem = problem_from_source(kernel.problem_source, kernel.problem_id)
    except InputError:
        return None
    return problem if problem.hash == kernel.problem_hash else None


def _substrate(kernel: BankedKernel) -> Substrate:
    backend: Backend = next((b for b in _MUTATED if b == kernel.backend), "torch")
    return Substrate(f"{PREFIX}{kernel.hash}", kernel.problem_id, backend, "bank", kernel.source)


def examine(evaluator: Evaluator, problem: Problem, pool: Pool, kernel: Substrate) -> Finding:
    """Put an accepted kernel to every admitted entry of its problem's pool.

    Raises:
        ChildFailure: `infra_error`: nothing is known about it.
    """
    answered = 0
    shapes: set[object] = set()
    with evaluator.open(kernel.source, kernel.backend, problem) as run:
        for admission in pool.admitted:
            entry = admission.entry
            question = Question(entry, admission.measured, "strict", races=entry.constants not in shapes)
            shapes.add(entry.constants)
            try:
                cell = run.cell(question, SEEDS)
            except KernelBroken as error:
                return Finding("unusable", f"it cannot run on {evaluator.mode(kernel.backend)}: {error}"[:500])
            if cell is not None and cell.killed and cell.seeds == SEEDS:
                return Finding("false-accept", _evidence(problem, question, cell).to_json())
            answered += cell is not None
    if not answered:
        return Finding("unusable", f"no entry of {problem.id} can be put to it on {evaluator.mode(kernel.backend)}")
    return Finding("verified", f"passes {answered} of {len(pool.admitted)} entries")


def _evidence(problem: Problem, question: Question, cell: CellResult) -> Evidence:
    entry, measured = question.entry, question.measured
    assert measured is not None  # of every admitted entry
    worst = max(cell.errs, default=math.inf)
    share = ratio(cell.errs, measured.tolerance)
    return Evidence(
        entry=entry.id,
        recipe=entry.to_dict(),
        found_by="calibration",
        reason=cell.cls,
        seed=matrix_seed(problem, entry, 0),
        err=worst,
        tolerance=max(measured.tolerance, default=None),
        message=cell.detail or f"error {worst:.3g} is {share:.3g} times what is tolerated",
    )


class BankHost:
    """Receives the guests of a calibration (`calibrate_values.Host`).

    Args:
        bank: where their state is written.
    """

    def __init__(self, bank: KernelBank) -> None:
        self.bank = bank
        self.examined = 0
        self.false_accepts: list[str] = []

    def receive(
        self, evaluator: Evaluator, matrix: Matrix, problem: int, pool: Pool, mark: str, guest: Substrate
    ) -> int | None:
        """Verify a kernel, unless it was with these very entries, and keep it as a substrate if nothing is wrong.

        Args:
            mark: names the entries of the pool.

        Raises:
            ChildFailure: `infra_error`: it stays as it is.
            BankError, MatrixError: it cannot be stored.
        """
        if guest.backend == "torch":
            self._examine(evaluator, pool, guest)
            return None
        before = next(((id, r) for id, r in matrix.substrates().items() if r.hash == guest.hash), None)
        if before is not None and (not before[1].name.startswith(PREFIX) or before[1].problem != problem):
            return None  # a kernel of our own, or one text for two problems: its mutants are there already
        if before is not None and before[1].status != "pending" and before[1].detail.startswith(mark):
            return before[0] if before[1].status == "admitted" else None
        finding = self._examine(evaluator, pool, guest)
        status: SubstrateStatus = "admitted" if finding.state == "verified" else "rejected"
        row = SubstrateRow(
            guest.hash, guest.name, guest.backend, guest.style, problem, status, f"{mark}: {finding.detail}"[:500]
        )
        id = matrix.add_substrate(row)
        return id if finding.state == "verified" else None

    def _examine(self, evaluator: Evaluator, pool: Pool, guest: Substrate) -> Finding:
        finding = examine(evaluator, pool.problem, pool, guest)
        self.examined += 1
        self.bank.settle(guest.name.removeprefix(PREFIX), finding.state, finding.detail)
        if finding.state == "false-accept":
            self.false_accepts.append(guest.name)
        return finding
