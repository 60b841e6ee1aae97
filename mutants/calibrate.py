"""`kernelward calibrate`: measure how much every protocol notices, and choose suites that notice the most.

Phases, each of which picks up where an earlier run stopped:

1. pools: entries of each problem through the validity gate, which knows no mutant;
2. clean run and forced failure: every substrate must pass every entry, a kernel that answers zero must fail each;
3. mutants, in an order whose beginnings are fair samples: screened by compiled code, then put to the entries, until
   the budget is spent or all is done;
4. suites: chosen from the matrix, written with the coverage measured for them.

All that was measured is in one SQLite file (`matrix`), so a second run with nothing changed evaluates nothing.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from ..reward.sandbox import linux
from ..reward.sandbox.failure import ChildFailure
from ..suites.entry import Entry
from ..suites.hashing import short, stable_hash
from ..suites.problem import Problem
from ..suites.suite_cache import suite_identity
from ..suites.validity import Admission, Measured
from .calibrate_plan import (
    Questions,
    Target,
    entry_ids,
    official_questions,
    ordered,
    pool_questions,
    protocol_entries,
    protocol_rows,
)
from .clean_run import closest_text, failures_of, settle, unnoticed_by
from .evaluate import CellResult, Evaluator, environment
from .interactions import members, members_first, survive_alone
from .matrix import Matrix
from .matrix_schema import Cell, EntryRow, MutantRow, MutantState, Origin, SubstrateRow
from .measure import measure_mutant
from .mutant import Mutant, Substrate, generate
from .pool import Pool, asked_pool, build_pool
from .pool_memory import PoolMemory
from .screens import Screener, ScreenError
from .withdraw import WITHDRAWN, renewed_mutants, withdraw_entries, withdraw_substrates

BATCH = 6  # mutants of one substrate that are screened and measured in one go
_FREE_POLL_S = 0.2
CLEAN_RUN = "clean-run"  # reason of an entry that the gate admitted and the clean run did not

Report = Callable[[str, int, int], None]
"""Called with a phase, how much of it is done, and how much there is."""


@dataclass(frozen=True, slots=True)
class CalibrateOptions:
    """How a calibration is run.

    Attributes:
        targets: problems and their substrates.
        out: folder of the matrix and the suites.
        device: `cpu` or `cuda`.
        workers: kernels that are judged at one time.
        budget_s: seconds; the phases before the mutants are finished in any case (and do not count with `renew`).
        backends: of the substrates that are used.
        per_substrate: at most so many mutants of each.
        renew: what is not made from these substrates by these operators any more leaves the counts, and whatever is
            counted is kept up to date.
    """

    targets: tuple[Target, ...]
    out: Path
    device: str = "cpu"
    workers: int = 2
    budget_s: float = 1500.0
    backends: tuple[str, ...] = ("cuda", "triton")
    per_substrate: int | None = None
    renew: bool = False

    @property
    def matrix_path(self) -> Path:
        """Where the kill matrix is."""
        return self.out / "matrix.sqlite"


@dataclass(slots=True)
class Tally:
    """What one run did.

    Attributes:
        evaluations: cells that were filled.
        mutants: mutants that were screened or measured.
        current: mutants that are to be counted, those that wait included.
        waiting: mutants that the budget left for another run.
        faults: infrastructure faults, which left a mutant for the next run.
        quarantined: substrate -> why no mutant is made of it.
        dropped: (problem, entry) -> why an admitted entry judges nothing.
        seconds: by phase.
        out_of_time: the budget ended before the mutants did.
    """

    evaluations: int = 0
    mutants: int = 0
    current: int = 0
    waiting: int = 0
    faults: list[str] = field(default_factory=list)
    quarantined: dict[str, str] = field(default_factory=dict)
    dropped: dict[tuple[str, str], str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    out_of_time: bool = False


@dataclass(slots=True)
class _Work:
    """A problem while it is calibrated."""

    target: Target
    problem_id: int
    pool: Pool
    questions: Questions
    substrates: dict[int, Substrate] = field(default_factory=dict)
    guests: dict[int, Substrate] = field(default_factory=dict)


class Host(Protocol):
    """Says of a kernel that a policy wrote whether mutants of it are measured (`banked.BankHost`)."""

    def receive(
        self, evaluator: Evaluator, matrix: Matrix, problem: int, pool: Pool, mark: str, guest: Substrate
    ) -> int | None:
        """The row id of its substrate; None where no mutant is made of it."""
        ...


@dataclass(slots=True)
class _Queue:
    """The mutants of one substrate that are still to be done; `seen` maps hashes of compiled code to ids,
    `pairs` interactions to their members."""

    work: _Work
    substrate_id: int
    substrate: Substrate
    mutants: list[Mutant]
    seen: dict[str, str]
    environment: int
    origin: Origin = "substrate"
    pairs: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(slots=True)
class _Clean:
    """What the clean run of a problem saw; a substrate that is in none of it met a fault of ours.

    Attributes:
        failures: by substrate, entries that it fails.
        ratios: by substrate, err / tolerance on the entries that it passes.
        unnoticed: entries that the forced failure passes.
    """

    failures: dict[str, dict[str, str]] = field(default_factory=dict)
    ratios: dict[str, dict[str, float]] = field(default_factory=dict)
    unnoticed: dict[str, str] = field(default_factory=dict)


class Calibrator:
    """One run of the phases; see the module's text.

    Args:
        options: how.
        matrix: what was measured before.
        report: see `Report`.
        host: receives the targets' guests; without one they are left alone.
        free: whether the device may be used now; asked before each mutant, which waits until it may.

    Raises (from `run`):
        InputError: a problem's own code is broken.
        MatrixError: the matrix cannot be written.
    """

    def __init__(
        self,
        options: CalibrateOptions,
        matrix: Matrix,
        report: Report,
        host: Host | None = None,
        free: Callable[[], bool] | None = None,
    ) -> None:
        self.options = options
        self.matrix = matrix
        self.report = report
        self.host = host
        self._free = free
        self.tally = Tally()
        self._memory = PoolMemory(options.out / "pools.json")
        self.device_class = "cuda" if options.device.startswith("cuda") else "cpu"
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._deadline = self._began + options.budget_s

    def run(self) -> Tally:
        """All phases but the writing of suites (`calibrate_suites`)."""
        with self._timed("pools"):
            pools = self._pools()
        with Evaluator(self.options.device) as evaluator:
            self._environments = lambda backend: environment(evaluator, backend)
            with self._timed("clean run"):
                works = self._clean(evaluator, pools)
            if self.options.renew and self._deadline:
                self._deadline = time.monotonic() + self.options.budget_s  # a pass is for mutants, however it began
            if self.host is not None:
                with self._timed("guests"):
                    self._guests(self.host, evaluator, works)
            with self._timed("mutants"):
                self._mutants(evaluator, works)
        return self.tally

    def stop(self) -> None:
        """No further mutant is begun; `run` returns when those under way are done. From any thread."""
        self._deadline = 0.0

    @contextlib.contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.tally.seconds[phase] = time.monotonic() - started

    # ------------------------------------------------------------------ pools

    def _pools(self) -> list[tuple[Target, Pool]]:
        targets = self.options.targets
        device = "cuda:0" if self.device_class == "cuda" else "cpu"
        known = [self._known(t.problem) for t in targets]
        memory = self._memory
        found: dict[int, Pool] = {}
        for i, (target, answers) in enumerate(zip(targets, known, strict=True)):
            ids = memory.get(self._gate_identity(target.problem))
            if ids is not None and all(id in answers for id in ids):
                own = {id: answers[id].entry for id in ids}
                found[i] = asked_pool(target.problem, torch.device(device), own, known=answers, extra=target.extra)
        self.report("pools", len(found), len(targets))
        todo = [i for i in range(len(targets)) if i not in found]
        if not todo:
            return [(t, found[i]) for i, t in enumerate(targets)]
        self._wait_free()
        with ProcessPoolExecutor(
            min(len(todo), self.options.workers), mp_context=get_context("spawn"), initializer=_one_thread
        ) as executor:
            waiting = {
                executor.submit(build_pool, targets[i].problem, device, known=known[i], extra=targets[i].extra): i
                for i in todo
            }
            for future in _as_done(waiting):
                i = waiting[future]
                found[i] = future.result()
                self._store_answers(found[i], known[i])
                self._remember(found[i])
                memory.save()
                self.report("pools", len(found), len(targets))
        return [(t, found[i]) for i, t in enumerate(targets)]

    def remember(self, pool: Pool) -> None:
        """Take over what the gate said elsewhere: the problem's entries are these, and are not put to it again."""
        self._store_entries(self.matrix.add_problem(pool.problem.id, pool.problem.hash), pool, "all")
        self._remember(pool)
        self._memory.save()

    def _store_answers(self, pool: Pool, known: Mapping[str, Admission]) -> None:
        """What the gate said just now, so that a run which is killed need not ask again; the rest stays as it is."""
        problem = self.matrix.add_problem(pool.problem.id, pool.problem.hash)
        gate = self._gate_identity(pool.problem)
        fresh = [a for a in pool.admissions if a.entry.id not in known]
        self.matrix.add_entries([_with_gate(EntryRow.of(problem, a, self.device_class), gate) for a in fresh])

    def _remember(self, pool: Pool) -> None:
        own = [a.entry.id for a in pool.admissions if a.entry.id not in pool.extra]
        self._memory.put(own, self._gate_identity(pool.problem))

    def _known(self, problem: Problem) -> dict[str, Admission]:
        """What the gate said in an earlier run, if the gate is still the same."""
        id = self.matrix.add_problem(problem.id, problem.hash)
        wanted = self._gate_identity(problem)
        rows = self.matrix.entries(id, device_class=self.device_class, role="pool").values()
        return {r.uid: _admission(r) for r in rows if _gate_of(r) == wanted}

    def _gate_identity(self, problem: Problem) -> str:
        return short(stable_hash([suite_identity(problem, self.device_class, "fp32"), str(torch.__version__)]))

    # ------------------------------------------------------------------ clean run

    def _clean(self, evaluator: Evaluator, pools: Sequence[tuple[Target, Pool]]) -> list[_Work]:
        """Problems side by side; each is stored when its substrates are through, so a killed run keeps it."""
        works: dict[int, _Work] = {}
        jobs: dict[Future[_Clean], int] = {}
        with ThreadPoolExecutor(self.options.workers, thread_name_prefix="clean") as executor:
            for i, (target, pool) in enumerate(pools):
                if self._clean_before(target, pool) or not self._used(target):
                    works[i] = self._work(target, pool, _Clean())
                else:
                    jobs[executor.submit(self._clean_one, evaluator, target, pool)] = i
            for done, future in enumerate(_as_done(jobs), 1):
                i = jobs[future]
                works[i] = self._work(*pools[i], future.result())
                self.report("clean run", done, len(jobs))
        return [works[i] for i in range(len(pools))]

    def _clean_one(self, evaluator: Evaluator, target: Target, pool: Pool) -> "_Clean":
        found = _Clean()
        for substrate in self._used(target):
            passed: dict[str, float] = {}
            self._wait_free()
            for attempt in range(2):
                try:
                    found.failures[substrate.name] = failures_of(evaluator, target.problem, pool, substrate, passed)
                    found.ratios[substrate.name] = passed
                    break
                except ChildFailure as failure:  # nothing is known about the substrate: it waits for the next run
                    if attempt:
                        self._fault(f"clean run of {substrate.name}: {failure}")
        if found.failures:
            known = next(s for s in self._used(target) if s.name in found.failures)
            try:
                found.unnoticed |= unnoticed_by(evaluator, target.problem, pool, known)
            except ChildFailure as failure:
                self._fault(f"forced failure for {target.problem.id}: {failure}")
                return _Clean()
        return found

    def _used(self, target: Target) -> list[Substrate]:
        return [s for s in target.substrates if s.backend in self.options.backends]

    def _clean_before(self, target: Target, pool: Pool) -> bool:
        """Whether all substrates in use had their clean run with these very entries."""
        problem = self.matrix.add_problem(target.problem.id, target.problem.hash)
        rows = self.matrix.substrates(problem).values()
        had = {row.hash for row in rows if row.status != "pending" and row.detail.startswith(_mark(pool))}
        used = self._used(target)
        return bool(used) and all(s.hash in had for s in used)

    def _work(self, target: Target, pool: Pool, found: "_Clean") -> _Work:
        """Store entries and substrates as the clean run leaves them; without a new one they stay as they are."""
        clean = settle(found.failures, found.unnoticed)
        id = self.matrix.add_problem(target.problem.id, target.problem.hash)
        there = {row.hash: row for row in self.matrix.substrates(id).values()}
        before = self._clean_before(target, pool)
        mark = _mark(pool)
        self.tally.dropped.update({(target.problem.id, uid): why for uid, why in clean.dropped.items()})
        pool = replace(pool, admissions=tuple(_without(a, clean.dropped) for a in pool.admissions))
        if before or not self._used(target):
            entries = self.matrix.entries(id, device_class=self.device_class, role="pool").values()
            kept = {row.uid for row in entries if row.reason == CLEAN_RUN}
            pool = replace(pool, admissions=tuple(_without(a, dict.fromkeys(kept, "")) for a in pool.admissions))
        self._store_entries(id, pool, "protocol" if before else "all")
        work = _Work(target, id, pool, self._questions(id, pool))
        for substrate in self._used(target):
            if not before and substrate.name not in found.failures:
                continue
            why = clean.quarantined.get(substrate.name, "")
            row = SubstrateRow(
                substrate.hash,
                substrate.name,
                substrate.backend,
                substrate.style,
                id,
                "quarantined" if why else "admitted",
                f"{mark}: {why}" if why else mark + closest_text(found.ratios.get(substrate.name, {})),
            )
            row = there[substrate.hash] if before else row
            row_id = self.matrix.add_substrate(row)
            if row.status == "admitted":
                work.substrates[row_id] = substrate
            else:
                self.tally.quarantined[substrate.name] = row.detail
        return work

    def _store_entries(self, problem: int, pool: Pool, which: Literal["all", "protocol"]) -> None:
        gate = self._gate_identity(pool.problem)
        rows: list[EntryRow] = []
        if which == "all":
            rows += [_with_gate(EntryRow.of(problem, a, self.device_class), gate) for a in pool.admissions]
        protocols = sorted(protocol_entries())
        if which == "all" or self._memory.get(gate, "protocols") != protocols:
            rows += [replace(row, problem=problem) for row in protocol_rows(pool.problem, pool)]
            self._memory.put(protocols, gate, "protocols")
        self.matrix.add_entries(rows)
        self._memory.save()
        withdraw_entries(self.matrix, problem, self.device_class, [a.entry.id for a in pool.admissions])

    def _questions(self, problem: int, pool: Pool) -> Questions:
        ids = entry_ids(self.matrix, problem, self.device_class)
        rows = self.matrix.entries(problem, device_class=self.device_class, role="protocol")
        return Questions(pool_questions(pool, ids), official_questions(rows))

    # ------------------------------------------------------------------ kernels that a policy wrote

    def _guests(self, host: Host, evaluator: Evaluator, works: Sequence[_Work]) -> None:
        """Let them be verified, for half of the budget at most."""
        until = time.monotonic() + self.left_s / 2

        def receive(work: _Work, guest: Substrate) -> tuple[_Work, Substrate, int | None]:
            id = None
            if time.monotonic() < until and self._may_run():
                try:
                    id = host.receive(evaluator, self.matrix, work.problem_id, work.pool, _mark(work.pool), guest)
                except ChildFailure as failure:
                    self._fault(f"kernel {guest.name}: {failure}")
            return work, guest, id

        with ThreadPoolExecutor(self.options.workers, thread_name_prefix="guests") as executor:
            jobs = [executor.submit(receive, w, g) for w in works for g in w.target.guests if self._welcome(g)]
            for done, job in enumerate(_as_done(jobs), 1):
                work, guest, id = job.result()
                if id is not None:
                    work.guests[id] = guest
                self.report("guests", done, len(jobs))

    def _welcome(self, guest: Substrate) -> bool:
        return guest.backend in self.options.backends

    # ------------------------------------------------------------------ mutants

    def _mutants(self, evaluator: Evaluator, works: Sequence[_Work]) -> None:
        queues = [q for work in works for q in self._queues(work)]
        total = sum(len(q.mutants) for q in queues)
        self._began = time.monotonic()
        self.report("mutants", 0, total)
        with contextlib.ExitStack() as stack:
            screeners = {
                backend: stack.enter_context(Screener(backend)) for backend in {q.substrate.backend for q in queues}
            }
            executor = stack.enter_context(ThreadPoolExecutor(self.options.workers, thread_name_prefix="mutants"))
            running: dict[Future[int], _Queue] = {}
            waiting = list(queues)
            while waiting or running:
                while waiting and len(running) < self.options.workers and not self._late():
                    queue = waiting.pop(0)
                    job = executor.submit(self._batch, evaluator, screeners[queue.substrate.backend], queue)
                    running[job] = queue
                if not running:
                    break
                for job in wait(running, return_when=FIRST_COMPLETED).done:
                    queue = running.pop(job)
                    self.tally.mutants += job.result()
                    self.report("mutants", self.tally.mutants, total)
                    if queue.mutants:
                        waiting.append(queue)  # to the end: all substrates take turns
            self.tally.waiting = sum(len(q.mutants) for q in waiting)
            self.tally.out_of_time = bool(waiting)

    @property
    def rate(self) -> float:
        """Evaluations a second of this run's mutants so far."""
        return self.tally.evaluations / max(1e-3, time.monotonic() - self._began)

    @property
    def left_s(self) -> float:
        """Seconds of the budget that are left."""
        return max(0.0, self._deadline - time.monotonic())

    def _late(self) -> bool:
        return time.monotonic() > self._deadline

    def _wait_free(self) -> None:
        """Wait until the device is free, for what is finished in any case; not after `stop`."""
        while self._free is not None and self._deadline and not self._free():
            time.sleep(_FREE_POLL_S)

    def _may_run(self) -> bool:
        """Wait until the device is free; False where the budget ends before."""
        while not self._late():
            if self._free is None or self._free():
                return True
            time.sleep(_FREE_POLL_S)
        return False

    def _queues(self, work: _Work) -> Iterator[_Queue]:
        if self.options.renew:
            there = (*work.target.substrates, *work.target.guests)
            withdraw_substrates(self.matrix, work.target.problem, {s.hash for s in there})
        asked = self.matrix.asked(work.problem_id)
        rows = {row.uid: (id, row) for id, row in self.matrix.mutants(work.problem_id).items()}
        wanted = _hash_of(work.questions)
        for id, substrate in (*work.substrates.items(), *work.guests.items()):
            environment = self._environment(substrate)
            try:
                pairs = members(substrate)
                made = members_first(ordered(generate(substrate)), pairs)
            except ValueError as error:  # a policy's kernel, in a text that is not taken apart here
                self.tally.quarantined[substrate.name] = f"no mutants: {error}"
                continue
            if self.options.renew:
                rows |= renewed_mutants(self.matrix, id, {m.id for m in made}, rows)
            chosen = made[: self.options.per_substrate]
            if self.options.renew:
                chosen += [m for m in made[len(chosen) :] if m.id in rows]
            todo = []
            for mutant in chosen:
                row_id, row = rows.get(mutant.id, (0, None))
                counts = row is None or row.state in ("generated", "ready")
                self.tally.current += counts
                if row is None or row.state == "generated" or (counts and asked.get((row_id, environment)) != wanted):
                    todo.append(mutant)
            seen = {row.code_hash: row.uid for _, row in rows.values() if row.substrate == id and row.state == "ready"}
            origin: Origin = "bank" if id in work.guests else "substrate"
            yield _Queue(work, id, substrate, todo, seen, environment, origin, pairs)

    def _environment(self, substrate: Substrate) -> int:
        return self.matrix.add_environment(self._environments(substrate.backend))

    def _batch(self, evaluator: Evaluator, screener: Screener, queue: _Queue) -> int:
        """Screen and measure the next mutants of a substrate; returns how many."""
        batch, queue.mutants[:] = queue.mutants[:BATCH], queue.mutants[BATCH:]
        problem = queue.work.target.problem
        ids = dict(zip((m.id for m in batch), self.matrix.add_mutants([_row(m, queue) for m in batch]), strict=True))
        try:
            screened = self._screened(screener, queue, batch, ids)
            for count, (mutant, state) in enumerate(zip(batch, screened, strict=True)):
                if not self._may_run():
                    queue.mutants[:0] = batch[count:]
                    return count
                if state == "ready" and self._counts(queue, mutant, ids[mutant.id]):
                    self._measure(evaluator, queue, mutant, ids[mutant.id], problem)
        except ScreenError as error:
            self._fault(f"{queue.substrate.name}: {error}")
            queue.mutants.clear()
        return len(batch)

    def _counts(self, queue: _Queue, mutant: Mutant, id: int) -> bool:
        """Whether a mutant is to be measured: two faults at once only where each alone passes the official check."""
        if mutant.family != "interaction":
            return True
        groups = queue.work.questions.official
        if survive_alone(self.matrix, queue.pairs[mutant.id], [a.id for a in groups[0].asked] if groups else []):
            return True
        self.matrix.set_mutant_state(id, "excluded", how="members")
        return False

    def _screened(
        self, screener: Screener, queue: _Queue, batch: Sequence[Mutant], ids: Mapping[str, int]
    ) -> list[MutantState]:
        """The states of a batch; those that were screened before are not compiled again."""
        there = self.matrix.mutants(queue.work.problem_id, state="ready")
        fresh = [m for m in batch if ids[m.id] not in there]
        answers = screener.screen(fresh, queue.substrate, queue.seen, queue.work.target.problem) if fresh else []
        self.matrix.set_mutant_states(
            (ids[m.id], s.state, s.code_hash, s.how) for m, s in zip(fresh, answers, strict=True)
        )
        states: dict[str, MutantState] = {m.id: s.state for m, s in zip(fresh, answers, strict=True)}
        return [states.get(m.id, "ready") for m in batch]

    def _measure(self, evaluator: Evaluator, queue: _Queue, mutant: Mutant, id: int, problem: Problem) -> None:
        done = {(c.entry, c.variant) for c in self.matrix.cells(id) if c.environment == queue.environment}
        questions = queue.work.questions
        for attempt in range(2):
            try:
                found = measure_mutant(evaluator, problem, mutant, questions.pool, questions.official, done)
                break
            except ChildFailure as failure:
                if attempt:
                    self._fault(f"mutant {mutant.id}: {failure}")
                    return
        cells = [_cell(id, entry, queue.environment, result) for entry, result in found.cells]
        if found.broken and not cells and not done:  # valid CUDA that this engine cannot run: no mutant here
            self.matrix.set_mutant_state(id, "excluded", how="engine")
            return
        self.matrix.put_row(id, queue.environment, _hash_of(questions), cells)
        with self._lock:
            self.tally.evaluations += len(cells)

    def _fault(self, text: str) -> None:
        with self._lock:
            self.tally.faults.append(text)


def _row(mutant: Mutant, queue: _Queue) -> MutantRow:
    return MutantRow(
        mutant.id,
        queue.substrate_id,
        mutant.operator,
        mutant.family,
        mutant.line,
        mutant.detail,
        origin=queue.origin,
    )


def _cell(mutant: int, entry: int, environment: int, result: CellResult) -> Cell:
    return Cell(
        mutant, entry, environment, result.variant, result.seeds, result.cls, result.errs, result.margin, result.seconds
    )


def _hash_of(questions: Questions) -> str:
    """Names a set of questions; what an answer depends on beside them is in the environment."""
    pool = [[a.id, a.question.races] for a in questions.pool]
    return short(stable_hash([pool, [[a.id for a in group.asked] for group in questions.official]]))


def _one_thread() -> None:
    torch.set_num_threads(1)
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)  # a killed calibration leaves nobody behind


def _as_done(futures: Iterable[Future[Any]]) -> Iterator[Future[Any]]:
    """Futures as they end; the first failure cancels those that have not begun."""
    waiting = set(futures)
    try:
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                future.result()
                yield future
    finally:
        for future in waiting:
            future.cancel()


def _mark(pool: Pool) -> str:
    """Names the entries that a clean run was about."""
    return f"clean run {short(stable_hash([a.entry.id for a in pool.admitted]))}"


def _without(admission: Admission, dropped: Mapping[str, str]) -> Admission:
    if admission.entry.id not in dropped:
        return admission
    return replace(admission, admitted=False, reason=CLEAN_RUN, detail=dropped[admission.entry.id])


def _with_gate(row: EntryRow, gate: str) -> EntryRow:
    """The row with the gate's identity in its detail, so that a later run knows whether it may rely on it."""
    return replace(row, detail=f"gate {gate}; {row.detail}" if row.detail else f"gate {gate}")


def _gate_of(row: EntryRow) -> str:
    return row.detail.partition(";")[0].removeprefix("gate ")


def _admission(row: EntryRow) -> Admission:
    measured = None if row.measured is None else Measured.from_dict(dict(row.measured))
    if row.reason in (CLEAN_RUN, WITHDRAWN):  # the gate itself had nothing against it
        return Admission(Entry.from_dict(row.recipe), True, measured=measured)
    return Admission(Entry.from_dict(row.recipe), row.admitted, row.reason, row.detail.partition("; ")[2], measured)
