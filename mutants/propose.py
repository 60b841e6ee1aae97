"""Make proposals of better suites (`promote`): from false accepts in the bank, and from what a calibration chose."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch

from ..reward.bank import BankedKernel, KernelBank
from ..reward.client import JudgeClient
from ..reward.promoted import suite_files
from ..reward.task import JudgeConfig, Task
from ..reward.verdict import Outcome, Verdict
from ..suites.defaults import cached_default_suite
from ..suites.entry import Entry
from ..suites.errors import InputError
from ..suites.problem import Problem, find_problem, problem_from_source
from ..suites.suite import Suite, SuiteEntry, find_suite, load_suite
from ..suites.tolerance import TolerancePolicy
from ..suites.validity import admit
from .coverage_cells import ProblemCells, Truth, read_problems, witnesses
from .matrix import Matrix
from .mutant import FAMILIES, Substrate
from .pool import declared_too_large
from .promote import Case, Gain, Proposal, Validity, find_proposal, read_proposals, write_proposal
from .watch_publish import suite_fates
from .watch_suites import InUse

RUN_KEY = b"promotion"  # not secret: kernels known to be correct are no policy's
MOST_ADDED = 3  # entries of one proposal; what is left is in the next one
MOST_KERNELS = 8  # false accepts that a proposal is tried on
MOST_KNOWN = 12  # kernels known to be correct that are judged
_AS_CANDIDATE = "\n\nclass ModelNew(Model):\n    pass\n"
_WRONG = (Outcome.INCORRECT, Outcome.RUNTIME_ERROR, Outcome.TIMEOUT)


@dataclass(frozen=True, slots=True)
class Means:
    """What proposals are made with.

    Attributes:
        folder: where they are written.
        suites: the folder of suites in use; None = library and default ones only.
        device: `cpu` or `cuda:N`.
        substrates: kernels known to be correct, by the hash of their problem; the reference itself is one as well.
        judge: how they are judged; its device is replaced.
    """

    folder: Path
    suites: Path | None = None
    device: str = "cpu"
    substrates: Mapping[str, Sequence[Substrate]] = field(default_factory=dict)
    judge: JudgeConfig = field(default_factory=JudgeConfig)

    def client(self) -> JudgeClient:
        """A judge on the device."""
        return JudgeClient(replace(self.judge, device=self.device))


def propose_fixes(bank: KernelBank, means: Means, problem_hash: str | None = None) -> list[Proposal]:
    """For every problem with false accepts, the suite in use with the entries that show them; written to the folder.

    A false accept that the suite in use catches already needs none. A proposal that exists is made again only where
    another suite is in use by now, or where there are further false accepts.

    Args:
        problem_hash: of one problem only.

    Raises:
        InputError: a problem cannot be read, or the folder cannot be written.
        BankError: the bank cannot be read.
    """
    by_problem: dict[str, list[BankedKernel]] = {}
    for kernel in bank.kernels("false-accept", problem_hash=problem_hash):
        if kernel.evidence is not None:
            by_problem.setdefault(kernel.problem_hash, []).append(kernel)
    found = []
    for kernels in by_problem.values():
        problem = problem_from_source(kernels[0].problem_source, kernels[0].problem_id)
        proposal = _fix(problem, kernels, means)
        if proposal is not None:
            write_proposal(means.folder, proposal)
            found.append(proposal)
    return found


def propose_gains(
    matrix: Matrix, chosen: Path, device_class: str, problems: Iterable[Problem], means: Means
) -> list[Proposal]:
    """The suites that a calibration chose (`calibrate_suites`), where they detect more than the ones in use.

    Args:
        chosen: folder of the chosen suites.
        problems: those in question.

    Raises:
        InputError: a problem's own code is broken, a chosen suite cannot be read, or the folder cannot be written.
        MatrixError: the matrix cannot be read.
    """
    suites = {s.problem_hash: s for s in map(load_suite, sorted(chosen.rglob("*.yaml")))} if chosen.is_dir() else {}
    cells = {c.hash: c for c in read_problems(matrix, device_class)}
    found = []
    for problem in problems:
        suite, base = suites.get(problem.hash), None
        if suite is not None and problem.hash in cells:
            base = suite_in_use(problem, means)
        if suite is None or base is None or base.hash == suite.hash:
            continue
        gain = family_gain(matrix, cells[problem.hash], base, suite, device_class)
        if sum(g.after - g.before for g in gain.values()) <= 0:
            continue
        proposal = find_proposal(means.folder, suite, base.hash)
        if proposal is None:
            with means.client() as client:
                proposal = _proposal(suite, base, "gain", check(problem, suite, base, client, means), gain=gain)
            write_proposal(means.folder, proposal)
        found.append(proposal)
    return found


def family_gain(matrix: Matrix, cells: ProblemCells, base: Suite, suite: Suite, device_class: str) -> dict[str, Gain]:
    """By family, what two suites detect of the mutants whose fate is known under both."""
    before, after = (suite_fates(matrix, cells, InUse(s, "file"), device_class) for s in (base, suite))
    counted = (witnesses(cells, Truth()) == 1) & (before >= 0) & (after >= 0)
    found = {}
    for family in FAMILIES:
        of_family = [i for i, m in enumerate(cells.mutants) if m.family == family and counted[i]]
        if of_family:
            found[family] = Gain(int(before[of_family].sum()), int(after[of_family].sum()), len(of_family))
    return found


def suite_in_use(problem: Problem, means: Means) -> Suite | None:
    """The suite that a problem is judged by: the folder's, the library's, or the default one."""
    if means.suites is not None and means.suites.is_dir():
        own = next((s for s in suite_files(means.suites).values() if s.problem_hash == problem.hash), None)
        if own is not None:
            return own
    cache = Path(means.judge.suite_cache) if means.judge.suite_cache else None
    return find_suite(problem) or cached_default_suite(problem, means.device, _policy(means), cache)[0]


def check(problem: Problem, suite: Suite, base: Suite | None, client: JudgeClient, means: Means) -> Validity:
    """Put a suite through the gate, and kernels known to be correct to the suite.

    A substrate that fails an entry of the base as well is not known to be correct, so it says nothing.

    Args:
        base: the suite in use; None = none.
    """
    refused = []
    before = {item.entry.id for item in (*base.entries, *base.reserves)} if base is not None else set()
    for item in (*suite.entries, *suite.reserves):
        if item.entry.id not in before:
            answer = admit(problem, item.entry, torch.device(means.device), TolerancePolicy.parse(suite.policy))
            if not answer.admitted:
                refused.append(f"{item.entry.id}: {answer.reason}")
    accepted, rejected, undecided = [], [], []
    kernels = list(known_correct(problem, means))
    tasks = [Task(source, problem, suite=suite, run_key=RUN_KEY, all_entries=True) for _, source in kernels]
    for (name, _), verdict in zip(kernels, client.judge_many(tasks) if tasks else (), strict=True):
        failed = {e.entry for e in verdict.entries if e.outcome is not None and e.outcome is not Outcome.CORRECT}
        if verdict.verdict is Outcome.CORRECT:
            accepted.append(name)
        elif verdict.verdict not in _WRONG or failed & before:
            undecided.append(f"{name}: {verdict.verdict} {verdict.reason} {verdict.message}"[:200])
        else:
            rejected.append(
                f"{name}: {verdict.verdict} at {verdict.entry} (seed {verdict.seed}): {verdict.message}"[:300]
            )
    return Validity(tuple(refused), tuple(accepted), tuple(rejected), tuple(undecided))


def known_correct(problem: Problem, means: Means) -> Iterator[tuple[str, str]]:
    """Names and sources of kernels that are correct: the reference itself, and substrates."""
    yield "the reference", problem.source + _AS_CANDIDATE
    for substrate in means.substrates.get(problem.hash, ())[:MOST_KNOWN]:
        yield substrate.name, substrate.source


def by_problem(substrates: Iterable[Substrate], folder: Path | None) -> dict[str, list[Substrate]]:
    """Substrates by the hash of their problem; those whose problem is not at hand are left out.

    Args:
        folder: in which `find_problem` looks problems up.
    """
    hashes: dict[str, str] = {}
    found: dict[str, list[Substrate]] = {}
    for substrate in substrates:
        if substrate.problem not in hashes:
            try:
                hashes[substrate.problem] = find_problem(substrate.problem, folder).hash
            except InputError:
                hashes[substrate.problem] = ""
        found.setdefault(hashes[substrate.problem], []).append(substrate)
    found.pop("", None)
    return found


def _fix(problem: Problem, kernels: Sequence[BankedKernel], means: Means) -> Proposal | None:
    base = suite_in_use(problem, means)
    if base is None:
        return None
    kernels = _without(kernels, base)
    made = (p for p in read_proposals(means.folder).values() if p.base == base.hash and p.why == "false-accept")
    earlier = next((p for p in made if p.suite.problem_hash == problem.hash), None)
    if not kernels or (earlier is not None and not _without(kernels, earlier.suite)):
        return earlier
    with means.client() as client:
        open_cases = _not_caught(problem, base, kernels, client)
        suite = _with_entries(problem, base, _entries(open_cases), means)
        if suite is None:
            return None
        cases = tuple(_cases(problem, suite, open_cases, client))
        if not cases:
            return None
        validity = check(problem, suite, base, client, means)
    return _proposal(suite, base, "false-accept", validity, cases)


def _without(kernels: Sequence[BankedKernel], suite: Suite) -> list[BankedKernel]:
    """The false accepts whose entry a suite does not ask."""
    asked = {item.entry.id for item in suite.entries}
    return [k for k in kernels if k.evidence is not None and k.evidence.entry not in asked]


def _verdicts(
    problem: Problem, suite: Suite, kernels: Sequence[BankedKernel], client: JudgeClient
) -> list[tuple[BankedKernel, Verdict]]:
    some = kernels[-MOST_KERNELS:]
    tasks = [Task(k.source, problem, suite=suite, run_key=RUN_KEY) for k in some]
    return list(zip(some, client.judge_many(tasks), strict=True))


def _not_caught(
    problem: Problem, base: Suite, kernels: Sequence[BankedKernel], client: JudgeClient
) -> list[BankedKernel]:
    return [k for k, v in _verdicts(problem, base, kernels, client) if v.verdict is Outcome.CORRECT]


def _cases(problem: Problem, suite: Suite, kernels: Sequence[BankedKernel], client: JudgeClient) -> Iterator[Case]:
    for kernel, verdict in _verdicts(problem, suite, kernels, client):
        shown = kernel.evidence
        if shown is not None and verdict.verdict.decided and verdict.verdict is not Outcome.CORRECT:
            yield Case(
                kernel.hash,
                shown.found_by,
                shown.entry,
                shown.seed,
                shown.reason,
                verdict.verdict.value,
                verdict.entry,
                verdict.seed,
            )


def _entries(kernels: Iterable[BankedKernel]) -> list[Entry]:
    found: dict[str, Entry] = {}
    for kernel in kernels:
        shown = kernel.evidence
        if shown is not None:
            found.setdefault(shown.entry, shown.as_entry)
    return list(found.values())[:MOST_ADDED]


def _with_entries(problem: Problem, base: Suite, entries: Sequence[Entry], means: Means) -> Suite | None:
    """The base with those of the entries that the gate admits, each with its twin; None where that adds nothing."""
    items, reserves = list(base.entries), list(base.reserves)
    for entry in entries:
        added = None if entry.id in {i.entry.id for i in items} else _admitted(problem, entry, base, means)
        if added is None:
            continue
        twin = replace(entry, constants=())
        if not entry.declared_shape and twin.id not in {i.entry.id for i in (*items, *reserves)}:
            large = declared_too_large(problem, means.device.partition(":")[0])
            reserve = None if large else _admitted(problem, twin, base, means)
            reserves.extend([reserve] if reserve else [])
        there = {i.entry.id for i in (*items, *reserves)}
        items.append(replace(added, twin=twin.id if not entry.declared_shape and twin.id in there else None))
        reserves = [r for r in reserves if r.entry.id != entry.id]
    if len(items) == len(base.entries):
        return None
    return replace(base, entries=tuple(items), reserves=tuple(reserves), coverage=None)


def _admitted(problem: Problem, entry: Entry, base: Suite, means: Means) -> SuiteEntry | None:
    answer = admit(problem, entry, torch.device(means.device), TolerancePolicy.parse(base.policy))
    return SuiteEntry(entry, (answer.measured,)) if answer.admitted and answer.measured is not None else None


def _policy(means: Means) -> TolerancePolicy:
    return TolerancePolicy.parse(means.judge.precision + ("+ties=value" if means.judge.ties == "value" else ""))


def _proposal(
    suite: Suite,
    base: Suite,
    why: Literal["false-accept", "gain"],
    validity: Validity,
    cases: tuple[Case, ...] = (),
    gain: Mapping[str, Gain] | None = None,
) -> Proposal:
    costs = _bytes(base), _bytes(suite)
    return Proposal(suite, base.hash, why, validity, cases, gain or {}, *costs, made_at=round(time.time(), 3))


def _bytes(suite: Suite) -> int:
    return sum(max((m.bytes for m in item.measured), default=0) for item in suite.entries)
