"""The last phase of a calibration: mutants are screened by compiled code, then put to the entries.

Where a problem has costly entries (`Asked.costly`, on a GPU), they have a stage of their own after the others, so that
a short budget decides many mutants at small shapes first. It does not make the cells faster: on one H200 with 15 lanes
a call at a small shape took 40 to 70 ms in either case, and rows came no faster.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from ..reward.sandbox.failure import ChildFailure
from ..suites.problem import Problem
from .calibrate_plan import Questions, ordered, questions_hash
from .calibrate_values import Budget, PartOfBudget, Report, Run, Work
from .cell import SEEDS, CellResult, Variant
from .done import as_done
from .interactions import all_asked, members, members_first, of_families, survive_alone
from .lanes import Lanes
from .matrix_schema import Cell, MutantRow, MutantState, Origin
from .measure import Known, in_sample, measure_mutant
from .mutant import Backend, Mutant, Substrate, generate
from .screens import Screener, ScreenError
from .turns import Turns
from .withdraw import renewed_mutants, withdraw_substrates

BATCH = 6  # mutants of one substrate that are screened and measured in one go
CHEAP_SHARE = 0.65  # of the time, for what every mutant is put to, where there are costly entries as well
COSTLY_PHASE = "costly entries"


@dataclass(slots=True)
class _Queue:
    """The mutants of one substrate that are still to be done; `seen` maps hashes of compiled code to ids, `pairs`
    interactions to their members, `asked` is what they are put to now, `more` says that costly entries come later."""

    work: Work
    asked: Questions
    more: bool
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
        self._lock = threading.Lock()
        self._made: dict[int, tuple[list[Mutant], dict[str, tuple[str, str]]]] = {}
        self._taken: set[str] = set()
        self._current: set[str] = set()

    @property
    def rate(self) -> float:
        """Evaluations a second so far."""
        return self._run.tally.evaluations / max(1e-3, time.monotonic() - self._began)

    def work(self, works: Sequence[Work]) -> None:
        """Until the budget is spent or all is done.

        Each lane takes one problem after the other, each for its part of the time, so that what was drawn for a
        problem serves all of its mutants; the substrates of a problem take turns.
        """
        self._began = time.monotonic()
        budget = self._run.budget
        both = any(_stages(work) == (True, True) for work in works)
        while True:
            waiting = self._stage(works, PartOfBudget(budget, CHEAP_SHARE) if both else budget, costly=False)
            waiting += self._stage(works, budget, costly=True)
            if not waiting or budget.spent:
                break
        self._run.tally.waiting = waiting
        self._run.tally.out_of_time = waiting > 0

    def _stage(self, works: Sequence[Work], budget: Budget | PartOfBudget, costly: bool) -> int:
        """One stage, until the budget is spent or it is done; returns how many mutants wait."""
        run = self._run
        problems = [own for work in works if (own := [q for q in self._queues(work, costly) if q.mutants])]
        if costly and not problems:
            return 0
        if len(problems) < self._lanes.count:
            problems = [[queue] for own in problems for queue in own]
        turns = Turns(problems, self._lanes.count, budget)
        backends = {queue.substrate.backend for own in problems for queue in own}
        progress = _Progress(run.report, COSTLY_PHASE if costly else "mutants", turns.mutants)
        with contextlib.ExitStack() as stack:
            screeners = {backend: stack.enter_context(Screener(backend)) for backend in backends}
            executor = stack.enter_context(ThreadPoolExecutor(self._lanes.count, thread_name_prefix="mutants"))
            try:
                lanes = range(self._lanes.count)
                jobs = [executor.submit(self._lane, lane, turns, screeners, progress) for lane in lanes]
                for job in as_done(jobs):
                    job.result()
            except BaseException:
                run.budget.stop()  # each lane ends with the mutant that it is at, not with its batch
                raise
            finally:
                turns.end()
        return turns.mutants

    def _lane(
        self, lane: int, turns: Turns[_Queue], screeners: Mapping[Backend, Screener], progress: "_Progress"
    ) -> None:
        while (turn := turns.take()) is not None:
            queues, until = turn
            while queues and turns.go_on(until):
                queue = queues.pop(0)
                batch = queue.mutants[:BATCH]
                count = self._batch(screeners[queue.substrate.backend], queue, lane)
                with self._lock:
                    self._taken.update(m.id for m in batch[:count])
                    self._run.tally.mutants = len(self._taken)
                    progress.add(count)
                if queue.mutants:
                    queues.append(queue)
            turns.give_back(queues)

    def _queues(self, work: Work, costly: bool) -> Iterator[_Queue]:
        """What a stage has to do for a problem."""
        matrix, options, tally = self._run.matrix, self._run.options, self._run.tally
        has_cheap, has_costly = _stages(work)
        if costly and not has_costly:
            return
        if options.renew and not costly:
            there = (*work.target.substrates, *work.target.guests)
            withdraw_substrates(matrix, work.target.problem, {s.hash for s in there})
        asked = matrix.asked(work.problem_id)
        rows = {row.uid: (id, row) for id, row in matrix.mutants(work.problem_id).items()}
        whole, part = questions_hash(work.questions), questions_hash(work.questions.cheap)
        for id, substrate in (*work.substrates.items(), *work.guests.items()):
            here = matrix.add_environment(self._environment(substrate.backend))
            try:
                made, pairs = self._mutants_of(id, substrate)
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
                # two faults at once are judged by what the official check says of each, which here a sample is put to
                pair = pairs[mutant.id] if mutant.family == "interaction" and _official_is_costly(work) else ()
                counts = (row is None or row.state in ("generated", "ready")) and all(map(in_sample, pair))
                if counts:
                    self._current.add(mutant.id)
                if not all(asked.get((rows.get(member, (0, None))[0], here)) for member in pair):
                    continue  # they come first
                known = None if row is None or row.state == "generated" else asked.get((row_id, here))
                late = not has_cheap or bool(pair)
                stage = has_costly and (late or known == part)
                if counts and known != whole and stage == costly:
                    todo.append(mutant)
            tally.current = len(self._current)
            seen = {row.code_hash: row.uid for _, row in rows.values() if row.substrate == id and row.state == "ready"}
            origin: Origin = "bank" if id in work.guests else "substrate"
            questions = work.questions if costly else work.questions.cheap
            yield _Queue(work, questions, not costly and has_costly, id, substrate, todo, seen, here, origin, pairs)

    def _mutants_of(self, id: int, substrate: Substrate) -> tuple[list[Mutant], dict[str, tuple[str, str]]]:
        """A substrate's mutants in their order, and the members of its interactions."""
        if id not in self._made:
            pairs = members(substrate)
            self._made[id] = members_first(ordered(generate(substrate)), pairs), pairs
        return self._made[id]

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
        official = [a.id for a in groups[0].asked] if groups else []
        if survive_alone(matrix, queue.pairs[mutant.id], official):
            return True
        if _official_is_costly(queue.work) and not all_asked(matrix, queue.pairs[mutant.id], official):
            return False  # a member met a fault of ours: the pair waits as well
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
        there = [c for c in run.matrix.cells(id) if c.environment == queue.environment]
        strict = [c for c in there if c.variant == "strict"]
        before = any(map(_shows, strict))
        done = {(c.entry, c.variant) for c in there} - unproved_kills(there, {a.id for a in queue.work.questions.pool})
        questions = queue.asked
        proved = any(c.outcome == "crash" and c.seeds >= SEEDS for c in there)
        crashes = {c.entry for c in there if c.outcome == "crash"} if proved else set()
        known = Known(done, before, any(c.outcome == "race" for c in strict), crashes)
        for attempt in range(2):
            try:
                asked = questions.pool, questions.official
                found = self._lanes.run(lane, measure_mutant, problem, mutant, *asked, known)
                break
            except ChildFailure as failure:
                if attempt:
                    run.fault(f"mutant {mutant.id}: {failure}")
                    return
        cells = [_cell(id, entry, queue.environment, result) for entry, result in found.cells]
        if found.broken and not cells and not done:  # valid CUDA that this engine cannot run: no mutant here
            run.matrix.set_mutant_state(id, "excluded", how="engine")
            return
        shown = before or any(result.killed for _, result in found.cells)
        later = queue.more and (not shown or in_sample(mutant.id))  # the costly entries are for it as well
        answered = questions if later else queue.work.questions
        run.matrix.put_row(id, queue.environment, questions_hash(answered), cells)
        run.evaluated(len(cells))


def _shows(cell: Cell) -> bool:
    return cell.outcome not in ("pass", "refused")


def unproved_kills(cells: Sequence[Cell], asked: Collection[int]) -> set[tuple[int, Variant]]:
    """Strict kills over fewer draws than a witness needs, where no entry that is asked now is a witness.

    They were taken on the word of one that is asked no more.
    """
    strict = [c for c in cells if c.variant == "strict" and c.entry in asked and _shows(c)]
    if any(c.seeds >= SEEDS for c in strict):
        return set()
    return {(c.entry, c.variant) for c in strict}


class _Progress:
    """Of one stage; not thread-safe."""

    def __init__(self, report: Report, phase: str, total: int) -> None:
        self._report, self._phase, self._total, self._done = report, phase, total, 0
        report(phase, 0, total)

    def add(self, count: int) -> None:
        self._done += count
        self._report(self._phase, self._done, self._total)


def _stages(work: Work) -> tuple[bool, bool]:
    """Whether a problem has entries for every mutant, and entries for a sample."""
    questions = work.questions
    return bool(questions.cheap.pool), questions.cheap != questions


def _official_is_costly(work: Work) -> bool:
    return any(group.costly for group in work.questions.official)


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
