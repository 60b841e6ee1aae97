"""The last phase of a calibration: mutants are screened by compiled code, then put to the entries."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from ..reward.sandbox.failure import ChildFailure
from ..suites.problem import Problem
from .calibrate_plan import ordered, questions_hash
from .calibrate_values import Run, Work
from .done import as_done
from .evaluate import CellResult
from .interactions import members, members_first, of_families, survive_alone
from .lanes import Lanes
from .matrix_schema import Cell, MutantRow, MutantState, Origin
from .measure import measure_mutant
from .mutant import Backend, Mutant, Substrate, generate
from .screens import Screener, ScreenError
from .turns import Turns
from .withdraw import renewed_mutants, withdraw_substrates

BATCH = 6  # mutants of one substrate that are screened and measured in one go


@dataclass(slots=True)
class _Queue:
    """The mutants of one substrate that are still to be done; `seen` maps hashes of compiled code to ids, `pairs`
    interactions to their members."""

    work: Work
    substrate_id: int
    substrate: Substrate
    mutants: list[Mutant]
    seen: dict[str, str]
    environment: int
    origin: Origin = "substrate"
    pairs: Mapping[str, tuple[str, str]] = field(default_factory=dict)


class Mutants:
    """The mutants of one calibration.

    Args:
        environment: what cells of a backend's kernels depend on here.
    """

    def __init__(self, run: Run, lanes: Lanes, environment: Callable[[Backend], Mapping[str, Any]]) -> None:
        self._run = run
        self._lanes = lanes
        self._environment = environment
        self._began = time.monotonic()
        self._total = 0
        self._lock = threading.Lock()

    @property
    def rate(self) -> float:
        """Evaluations a second so far."""
        return self._run.tally.evaluations / max(1e-3, time.monotonic() - self._began)

    def work(self, works: Sequence[Work]) -> None:
        """Until the budget is spent or all is done.

        Each lane takes one problem after the other, each for its part of the time, so that what was drawn for a
        problem serves all of its mutants; the substrates of a problem take turns.
        """
        run = self._run
        problems = [own for work in works if (own := [q for q in self._queues(work) if q.mutants])]
        if len(problems) < self._lanes.count:
            problems = [[queue] for own in problems for queue in own]
        turns = Turns(problems, self._lanes.count, run.budget)
        backends = {queue.substrate.backend for own in problems for queue in own}
        self._total = turns.mutants
        self._began = time.monotonic()
        run.report("mutants", 0, self._total)
        with contextlib.ExitStack() as stack:
            screeners = {backend: stack.enter_context(Screener(backend)) for backend in backends}
            executor = stack.enter_context(ThreadPoolExecutor(self._lanes.count, thread_name_prefix="mutants"))
            try:
                jobs = [executor.submit(self._lane, lane, turns, screeners) for lane in range(self._lanes.count)]
                for job in as_done(jobs):
                    job.result()
            finally:
                turns.end()
        run.tally.waiting = turns.mutants
        run.tally.out_of_time = turns.mutants > 0

    def _lane(self, lane: int, turns: Turns[_Queue], screeners: Mapping[Backend, Screener]) -> None:
        while (turn := turns.take()) is not None:
            queues, until = turn
            while queues and turns.go_on(until):
                queue = queues.pop(0)
                self._done(self._batch(screeners[queue.substrate.backend], queue, lane))
                if queue.mutants:
                    queues.append(queue)
            turns.give_back(queues)

    def _done(self, mutants: int) -> None:
        with self._lock:
            self._run.tally.mutants += mutants
            self._run.report("mutants", self._run.tally.mutants, self._total)

    def _queues(self, work: Work) -> Iterator[_Queue]:
        matrix, options, tally = self._run.matrix, self._run.options, self._run.tally
        if options.renew:
            there = (*work.target.substrates, *work.target.guests)
            withdraw_substrates(matrix, work.target.problem, {s.hash for s in there})
        asked = matrix.asked(work.problem_id)
        rows = {row.uid: (id, row) for id, row in matrix.mutants(work.problem_id).items()}
        wanted = questions_hash(work.questions)
        for id, substrate in (*work.substrates.items(), *work.guests.items()):
            here = matrix.add_environment(self._environment(substrate.backend))
            try:
                pairs = members(substrate)
                made = members_first(ordered(generate(substrate)), pairs)
            except ValueError as error:  # a policy's kernel, in a text that is not taken apart here
                tally.quarantined[substrate.name] = f"no mutants: {error}"
                continue
            if options.renew:
                rows |= renewed_mutants(matrix, id, {m.id for m in made}, rows)
            chosen = of_families(made, pairs, options.families)[: options.per_substrate]
            if options.renew:
                taken = {m.id for m in chosen}
                chosen += [m for m in made if m.id in rows and m.id not in taken]
            todo = []
            for mutant in chosen:
                row_id, row = rows.get(mutant.id, (0, None))
                counts = row is None or row.state in ("generated", "ready")
                tally.current += counts
                if row is None or row.state == "generated" or (counts and asked.get((row_id, here)) != wanted):
                    todo.append(mutant)
            seen = {row.code_hash: row.uid for _, row in rows.values() if row.substrate == id and row.state == "ready"}
            origin: Origin = "bank" if id in work.guests else "substrate"
            yield _Queue(work, id, substrate, todo, seen, here, origin, pairs)

    def _batch(self, screener: Screener, queue: _Queue, lane: int) -> int:
        """Screen and measure the next mutants of a substrate; returns how many."""
        batch, queue.mutants[:] = queue.mutants[:BATCH], queue.mutants[BATCH:]
        problem = queue.work.target.problem
        rows = self._run.matrix.add_mutants([_row(m, queue) for m in batch])
        ids = dict(zip((m.id for m in batch), rows, strict=True))
        try:
            screened = self._screened(screener, queue, batch, ids)
            for count, (mutant, state) in enumerate(zip(batch, screened, strict=True)):
                if not self._run.budget.may_run():
                    queue.mutants[:0] = batch[count:]
                    return count
                if state == "ready" and self._counts(queue, mutant, ids[mutant.id]):
                    self._measure(queue, mutant, ids[mutant.id], problem, lane)
        except ScreenError as error:
            self._run.fault(f"{queue.substrate.name}: {error}")
            queue.mutants.clear()
        return len(batch)

    def _counts(self, queue: _Queue, mutant: Mutant, id: int) -> bool:
        """Whether a mutant is to be measured: two faults at once only where each alone passes the official check."""
        if mutant.family != "interaction":
            return True
        matrix, groups = self._run.matrix, queue.work.questions.official
        if survive_alone(matrix, queue.pairs[mutant.id], [a.id for a in groups[0].asked] if groups else []):
            return True
        matrix.set_mutant_state(id, "excluded", how="members")
        return False

    def _screened(
        self, screener: Screener, queue: _Queue, batch: Sequence[Mutant], ids: Mapping[str, int]
    ) -> list[MutantState]:
        """The states of a batch; those that were screened before are not compiled again."""
        matrix = self._run.matrix
        there = matrix.mutants(queue.work.problem_id, state="ready")
        fresh = [m for m in batch if ids[m.id] not in there]
        answers = screener.screen(fresh, queue.substrate, queue.seen, queue.work.target.problem) if fresh else []
        matrix.set_mutant_states((ids[m.id], s.state, s.code_hash, s.how) for m, s in zip(fresh, answers, strict=True))
        states: dict[str, MutantState] = {m.id: s.state for m, s in zip(fresh, answers, strict=True)}
        return [states.get(m.id, "ready") for m in batch]

    def _measure(self, queue: _Queue, mutant: Mutant, id: int, problem: Problem, lane: int) -> None:
        run = self._run
        done = {(c.entry, c.variant) for c in run.matrix.cells(id) if c.environment == queue.environment}
        questions = queue.work.questions
        for attempt in range(2):
            try:
                asked = questions.pool, questions.official
                found = self._lanes.run(lane, measure_mutant, problem, mutant, *asked, done)
                break
            except ChildFailure as failure:
                if attempt:
                    run.fault(f"mutant {mutant.id}: {failure}")
                    return
        cells = [_cell(id, entry, queue.environment, result) for entry, result in found.cells]
        if found.broken and not cells and not done:  # valid CUDA that this engine cannot run: no mutant here
            run.matrix.set_mutant_state(id, "excluded", how="engine")
            return
        run.matrix.put_row(id, queue.environment, questions_hash(questions), cells)
        run.evaluated(len(cells))


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
