"""Measure a checker that is not ours with the witnessed mutants of a kill matrix.

What it is asked, in an order of which any beginning is a fair sample of the mutants: before the first mutant of a
substrate the substrate itself, which it should pass, and before the first of a problem that substrate with its answer
made zero, which it should fail. A checker that does not pass a substrate notices nothing about its mutants, so those
are set aside. No verdict is never a detection. Answers are kept as they come, so a run goes on where another ended.
"""

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..suites.errors import InputError
from ..suites.hashing import sha256_text
from ..suites.problem import Problem
from .calibrate_plan import Target
from .clean_run import FORCED_FAILURE
from .foreign_checker import ForeignChecker, Said
from .mutant import Backend, Mutant, Substrate, generate

Kind = Literal["clean", "zeros", "mutant"]
Key = tuple[Kind, str]
Progress = Callable[[int, int], None]

ATTEMPTS = 2  # a question without a verdict is asked again by the next run, and then no more
HOPELESS = 8  # first questions without a single verdict: the checker does not run here


@dataclass(frozen=True, slots=True)
class Question:
    """One candidate to be put to the checker.

    Attributes:
        id: the mutant's; the first 16 digits of the substrate's hash for the others.
        substrate: hash of the substrate that it is, or was made from.
    """

    kind: Kind
    id: str
    problem: Problem
    source: str
    substrate: str
    name: str

    @property
    def key(self) -> Key:
        """What its answer is kept under."""
        return self.kind, self.id


@dataclass(frozen=True, slots=True)
class Plan:
    """What a checker is asked.

    Attributes:
        questions: in order.
        mutants: how many of them are mutants.
        lost: witnessed mutants that these substrates and operators do not make any more.
    """

    questions: tuple[Question, ...]
    mutants: int
    lost: int


def make_plan(targets: Sequence[Target], witnessed: Mapping[str, set[str]], backends: Sequence[Backend] = ()) -> Plan:
    """The questions for these problems.

    Args:
        witnessed: by hash of the problem, ids of the mutants that count.
        backends: of the substrates; () = all.
    """
    found: list[tuple[Mutant, Target, Substrate]] = []
    clean: list[tuple[Target, Substrate]] = []
    for target in targets:
        wanted = witnessed.get(target.problem.hash, set())
        for substrate in target.substrates:
            if wanted and (not backends or substrate.backend in backends):
                clean.append((target, substrate))
                found += [(m, target, substrate) for m in generate(substrate) if m.id in wanted]
    by_id = {mutant.id: (target, substrate) for mutant, target, substrate in found}
    questions: list[Question] = []
    begun: set[str] = set()

    def begin(target: Target, substrate: Substrate) -> Iterator[Question]:
        if substrate.hash not in begun:
            begun.add(substrate.hash)
            yield _about(substrate, target, "clean", substrate.source)
            if target.problem.hash not in begun:
                begun.add(target.problem.hash)
                yield _about(substrate, target, "zeros", substrate.source + FORCED_FAILURE)

    for mutant in fair_order([mutant for mutant, _, _ in found]):
        target, substrate = by_id[mutant.id]
        questions += begin(target, substrate)
        text = f"{mutant.operator} in {substrate.name}, line {mutant.line}: {mutant.detail}"
        questions.append(Question("mutant", mutant.id, target.problem, mutant.source, substrate.hash, text))
    for target, substrate in clean:
        questions += begin(target, substrate)
    lost = sum(len(own) for own in witnessed.values()) - len(by_id) if not backends else 0
    return Plan(tuple(questions), len(by_id), lost)


def _about(substrate: Substrate, target: Target, kind: Kind, source: str) -> Question:
    return Question(kind, substrate.hash[:16], target.problem, source, substrate.hash, substrate.name)


def fair_order(mutants: Sequence[Mutant]) -> list[Mutant]:
    """Mutants so that any beginning has families, and operators within them, in about the shares of the whole.

    Which mutant of an operator comes first is a matter of its id's hash.
    """
    return _spread(sorted(mutants, key=lambda m: sha256_text(m.id)), (lambda m: m.family, lambda m: m.operator))


def _spread(mutants: Sequence[Mutant], keys: Sequence[Callable[[Mutant], str]]) -> list[Mutant]:
    """Each group is laid out evenly over the whole, group by group in the order of the first key, and so on inside."""
    if not keys:
        return list(mutants)
    groups: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        groups[keys[0](mutant)].append(mutant)
    placed = [
        ((i + 0.5) / len(own), name, i, mutant)
        for name, own in sorted(groups.items())
        for i, mutant in enumerate(_spread(own, keys[1:]))
    ]
    return [mutant for *_, mutant in sorted(placed, key=lambda item: item[:3])]


@dataclass(slots=True)
class Answers:
    """What a checker said, in a file of JSON lines that is only appended to; thread-safe.

    A line has `checker` (its name), `kind` (`clean`, `zeros`, `mutant`), `id`, `problem` (its hash), `passes` (true,
    false, or null without a verdict), `seconds` and `detail`. A line that a killed run left torn is passed over; of
    several about one question the last counts.

    Args:
        path: the file.
        checker: whose answers these are; those of others in the same file are left alone.
    """

    path: Path
    checker: str
    said: dict[Key, Said] = field(default_factory=dict)
    asked: dict[Key, int] = field(default_factory=lambda: defaultdict(int))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def load(self) -> "Answers":
        """Read the file, if it is there.

        Raises:
            InputError: it cannot be read.
        """
        try:
            text = self.path.read_text("utf-8", "replace") if self.path.exists() else ""
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read: {error}") from error
        for line in text.splitlines():
            row = _row(line)
            if row is not None and row.get("checker") == self.checker:
                key: Key = (row["kind"], row["id"])
                self.said[key] = Said(row["passes"], float(row["seconds"]), row["detail"])
                self.asked[key] += 1
        return self

    def open(self, question: Question) -> bool:
        """Whether a question is still to be asked."""
        said = self.said.get(question.key)
        return said is None or (said.passes is None and self.asked[question.key] < ATTEMPTS)

    def add(self, question: Question, said: Said) -> None:
        """Keep an answer.

        Raises:
            OSError: the file cannot be written.
        """
        row = {
            "checker": self.checker,
            "kind": question.kind,
            "id": question.id,
            "problem": question.problem.hash,
            "passes": said.passes,
            "seconds": round(said.seconds, 3),
            "detail": said.detail,
        }
        with self._lock:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab+") as file:
                torn = file.tell() and not _ends_a_line(file)
                file.write(("\n" if torn else "").encode() + json.dumps(row).encode() + b"\n")
            self.said[question.key] = said
            self.asked[question.key] += 1


def _ends_a_line(file: Any) -> bool:
    file.seek(-1, 2)
    return bool(file.read(1) == b"\n")


def _row(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    wanted = ("kind", "id", "passes", "seconds", "detail")
    return row if isinstance(row, dict) and all(name in row for name in wanted) else None


def put(
    checker: ForeignChecker,
    plan: Plan,
    answers: Answers,
    *,
    workers: int,
    budget_s: float,
    progress: Progress = lambda done, total: None,
) -> int:
    """Ask what is not answered yet, in order, until all is or the budget is spent; what is under way is finished.

    Returns:
        How many questions were asked.

    Raises:
        InputError: none of the first answers is a verdict.
        OSError: the answers cannot be written.
    """
    deadline = time.monotonic() + budget_s
    stop = threading.Event()
    lock = threading.Lock()
    gates: dict[str, Future[None]] = {}
    counts = {"asked": 0, "verdicts": 0, "done": 0}

    def one(question: Question, gate: Future[None] | None) -> None:
        if gate is not None:
            gate.result()  # queued before, so it is done or under way
        clean = answers.said.get(("clean", question.substrate[:16]))
        wanted = question.kind == "clean" or (clean is not None and clean.passes is True)
        if wanted and answers.open(question) and not stop.is_set() and time.monotonic() < deadline:
            said = checker.ask(question.problem.source, question.source)
            answers.add(question, said)
            with lock:
                counts["asked"] += 1
                counts["verdicts"] += said.passes is not None
                if counts["asked"] >= HOPELESS and not counts["verdicts"]:
                    stop.set()
        with lock:
            counts["done"] += 1
            progress(counts["done"], len(plan.questions))

    with ThreadPoolExecutor(workers, thread_name_prefix="checker") as executor:
        jobs = []
        for question in plan.questions:
            job = executor.submit(one, question, gates.get(question.substrate))
            if question.kind == "clean":
                gates[question.substrate] = job
            jobs.append(job)
        try:
            for job in jobs:
                job.result()
        except BaseException:
            stop.set()
            raise
    if stop.is_set():
        example = next(iter(answers.said.values())).detail
        raise InputError(f"the checker gave no verdict on the first {counts['asked']} candidates; one said: {example}")
    return counts["asked"]
