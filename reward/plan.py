"""What is put to a candidate, and in which order: the entries of a protocol that fit, cheapest first."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..suites.defaults import cached_default_suite
from ..suites.draw import entry_bytes
from ..suites.entry import Entry
from ..suites.errors import InputError
from ..suites.problem import Problem
from ..suites.protocol import AllClose, ProtocolSpec
from ..suites.suite import Suite, SuiteEntry, find_suite
from ..suites.tolerance import TolerancePolicy
from ..suites.validity import Admission, Measured, admit
from .audit_entries import ENTRIES, audit_candidates
from .task import Task
from .truth_cache import SingleFlight

#: What judging an entry holds at its peak, in units of its inputs + outputs + parameters at the entry's dtype: the
#: draw, the child's copy, the candidate's own, and the float64 run of the reference (two units each for inputs and
#: outputs, one for a temporary). Where even that does not fit, the oracle slices.
STATE_FACTOR = 6
REMEMBERED_HASHES = 1024


@dataclass(frozen=True, slots=True)
class Question:
    """One entry as it is put to a candidate.

    Attributes:
        entry: the recipe.
        measured: tolerances and scales; None for the allclose protocols.
        bytes: inputs, outputs and parameters of one draw.
        twin: the same recipe at the declared shape; None where this one is, or where none was admitted.
    """

    entry: Entry
    measured: Measured | None
    bytes: int
    twin: "Question | None" = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The questions for one candidate, in the order in which they run.

    Attributes:
        questions: cheapest first (a protocol that lists its entries keeps their order).
        suite: hash of the suite they come from, "" where there is none.
        notes: what was left out, and why.
        missing_bytes: how much more memory the smallest entry that was left out would need; 0 where all fit.
        rejections: why the gate admitted nothing, where it admitted nothing.
    """

    questions: tuple[Question, ...]
    suite: str = ""
    notes: tuple[str, ...] = ()
    missing_bytes: int = 0
    rejections: tuple[str, ...] = ()


class Planner:
    """Finds, measures and orders the entries for a task. Thread-safe; remembers suites and measurements."""

    def __init__(self, device: str, policy: TolerancePolicy, suite_cache: Path | None) -> None:
        self.device = device
        self.device_class = device.partition(":")[0]
        self.policy = policy
        self._suite_cache = suite_cache
        self._lock = threading.Lock()
        self._hashes: dict[int, tuple[Suite, str]] = {}
        self._suites: SingleFlight[tuple[Suite | None, tuple[str, ...]]] = SingleFlight(0, lambda _: 0)
        self._sizes: SingleFlight[int] = SingleFlight(0, lambda _: 0)
        self._admissions: SingleFlight[Admission] = SingleFlight(0, lambda _: 0)
        self._audits: SingleFlight[tuple[SuiteEntry, ...]] = SingleFlight(0, lambda _: 0)

    def plan(self, task: Task, spec: ProtocolSpec, free_bytes: Callable[[], int]) -> Plan:
        """The questions for a task.

        Args:
            free_bytes: what one entry's state may use now.

        Raises:
            InputError: the suite belongs to another problem, the entry named by the task does not exist, or the
                problem's code is broken.
        """
        suite: Suite | None = None
        rejections: tuple[str, ...] = ()
        if spec.entries == "suite":
            suite, rejections = (task.suite, ()) if task.suite else self._suite(task.problem)
            items = () if suite is None else suite.entries
            if suite is not None and suite.problem_hash != task.problem.hash:
                raise InputError(
                    f"the suite is for another version of {suite.problem_id} than {task.problem.place}: build it again"
                )
            if task.audit:
                items = self._audit_items(task, suite)
        else:
            items = tuple(SuiteEntry(entry) for entry in spec.entries)
        if task.only_entry is not None:
            items = self._only(task, suite, items)
        questions: list[Question] = []
        for item in items:
            question, why = self._question(task.problem, item, spec, suite)
            if question is None:
                rejections = (*rejections, why)
            else:
                questions.append(question)
        if spec.entries == "suite":
            questions.sort(key=lambda q: q.bytes)
        fitting, notes, missing = _fit(questions, free_bytes)
        digest = "" if suite is None else self._hash(suite)
        return Plan(tuple(fitting), digest, tuple(notes), missing, () if questions else rejections)

    def _hash(self, suite: Suite) -> str:
        """The suite's hash; it takes longer to compute than a small candidate takes to run."""
        with self._lock:
            if id(suite) not in self._hashes:
                if len(self._hashes) >= REMEMBERED_HASHES:
                    self._hashes.clear()
                self._hashes[id(suite)] = suite, suite.hash  # the suite is held, so that its id stays its own
            return self._hashes[id(suite)][1]

    @staticmethod
    def _only(task: Task, suite: Suite | None, items: Sequence[SuiteEntry]) -> tuple[SuiteEntry, ...]:
        known = [*items, *(suite.reserves if suite else ())]
        chosen = tuple(item for item in known if item.entry.id == task.only_entry)
        if not chosen:
            names = ", ".join(item.entry.id for item in known)
            raise InputError(f"no entry {task.only_entry!r} for {task.problem.id}; there are: {names or 'none'}")
        return chosen

    def _suite(self, problem: Problem) -> tuple[Suite | None, tuple[str, ...]]:
        def find() -> tuple[Suite | None, tuple[str, ...]]:
            found = find_suite(problem)
            if found is not None:
                return found, ()
            suite, rejected = cached_default_suite(problem, self.device, self.policy, self._suite_cache)
            return suite, tuple(f"{r.entry.id}: {r.reason}" for r in rejected)

        return self._suites.get(problem.hash, find)

    def _audit_items(self, task: Task, suite: Suite | None) -> tuple[SuiteEntry, ...]:
        """Entries that the suite does not hold, the same for all candidates of a run; measured when first needed."""
        known = frozenset(item.entry.id for item in (*suite.entries, *suite.reserves)) if suite else frozenset()

        def choose() -> tuple[SuiteEntry, ...]:
            chosen: list[SuiteEntry] = []
            for entry in audit_candidates(task.problem, task.run_key, self.device_class, known):
                admission = self._admit(task.problem, entry)
                if admission.admitted and admission.measured is not None:
                    chosen.append(SuiteEntry(entry, (admission.measured,)))
                if len(chosen) == ENTRIES:
                    break
            return tuple(chosen)

        return self._audits.get((task.problem.hash, task.run_key, known), choose)

    def _question(
        self, problem: Problem, item: SuiteEntry, spec: ProtocolSpec, suite: Suite | None
    ) -> tuple[Question | None, str]:
        if isinstance(spec.comparison, AllClose):
            size = self._sizes.get((problem.hash, item.entry.id), lambda: entry_bytes(problem, item.entry))
            return Question(item.entry, None, size), ""
        measured = item.for_device(self.device_class)
        if measured is None or measured.policy != self.policy.name:
            admission = self._admit(problem, item.entry)
            if not admission.admitted or admission.measured is None:
                return None, f"{item.entry.id}: {admission.reason} ({admission.detail})"
            measured = admission.measured
        twin_item = suite.twin_of(item) if suite else None
        twin = self._question(problem, replace(twin_item, twin=None), spec, suite)[0] if twin_item else None
        return Question(item.entry, measured, measured.bytes, twin), ""

    def _admit(self, problem: Problem, entry: Entry) -> Admission:
        return self._admissions.get((problem.hash, entry.id), lambda: admit(problem, entry, self.device, self.policy))


def _fit(questions: Sequence[Question], free_bytes: Callable[[], int]) -> tuple[list[Question], list[str], int]:
    """The questions whose state fits, with the twins that fit; notes on the others; what the least of them lacks."""
    free = free_bytes() if questions else 0
    fitting: list[Question] = []
    notes: list[str] = []
    missing = 0
    for question in questions:
        short_of = STATE_FACTOR * question.bytes - free
        if short_of <= 0:
            twin = question.twin
            fits = twin is not None and STATE_FACTOR * twin.bytes <= free
            fitting.append(question if fits else replace(question, twin=None))
            continue
        missing = min(missing, short_of) if missing else short_of
        notes.append(
            f"entry {question.entry.id} left out: it needs {STATE_FACTOR * question.bytes / 2**20:.0f} MiB, "
            f"{short_of / 2**20:.0f} MiB more than there is"
        )
    return fitting, notes, missing
