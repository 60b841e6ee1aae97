"""The second phase of a calibration: the clean run and the forced failure of every problem (`clean_run`)."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from ..reward.sandbox.failure import ChildFailure
from ..suites.hashing import short, stable_hash
from ..suites.validity import Admission
from .calibrate_plan import Questions, Target, entry_ids, official_questions, pool_questions
from .calibrate_pools import CLEAN_RUN, Pools
from .calibrate_values import Run, Work
from .clean_run import closest_text, failures_of, settle, too_loose, unnoticed_by
from .done import as_done
from .lanes import Lanes
from .matrix_schema import SubstrateRow
from .pool import Pool


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


class CleanRuns:
    """The clean runs of one calibration."""

    def __init__(self, run: Run, pools: Pools, lanes: Lanes) -> None:
        self._run = run
        self._pools = pools
        self._lanes = lanes

    def finish(self, pools: Sequence[tuple[Target, Pool]]) -> list[Work]:
        """Problems side by side; each is stored when its substrates are through, so a killed run keeps it."""
        options = self._run.options
        works: dict[int, Work] = {}
        jobs: dict[Future[_Clean], int] = {}
        with ThreadPoolExecutor(options.workers, thread_name_prefix="clean") as executor:
            for i, (target, pool) in enumerate(pools):
                if self._had(target, pool) or not options.used(target):
                    works[i] = self._work(target, pool, _Clean())
                else:
                    jobs[executor.submit(self._observe, target, pool, i % self._lanes.count)] = i
            for done, future in enumerate(as_done(jobs), 1):
                i = jobs[future]
                works[i] = self._work(*pools[i], future.result())
                self._run.report("clean run", done, len(jobs))
        return [works[i] for i in range(len(pools))]

    def _observe(self, target: Target, pool: Pool, lane: int) -> _Clean:
        run, found = self._run, _Clean()
        used = run.options.used(target)
        for substrate in used:
            run.budget.wait_free()
            for attempt in range(2):
                try:
                    failures, passed = self._lanes.run(lane, failures_of, target.problem, pool, substrate)
                    found.failures[substrate.name], found.ratios[substrate.name] = failures, passed
                    break
                except ChildFailure as failure:  # nothing is known about the substrate: it waits for the next run
                    if attempt:
                        run.fault(f"clean run of {substrate.name}: {failure}")
        if found.failures:
            known = next(s for s in used if s.name in found.failures)
            try:
                found.unnoticed |= self._lanes.run(lane, unnoticed_by, target.problem, pool, known)
            except ChildFailure as failure:
                run.fault(f"forced failure for {target.problem.id}: {failure}")
                return _Clean()
        return found

    def _had(self, target: Target, pool: Pool) -> bool:
        """Whether all substrates in use had their clean run with these very entries."""
        matrix = self._run.matrix
        problem = matrix.add_problem(target.problem.id, target.problem.hash)
        rows = matrix.substrates(problem).values()
        had = {row.hash for row in rows if row.status != "pending" and row.detail.startswith(mark_of(pool))}
        used = self._run.options.used(target)
        return bool(used) and all(s.hash in had for s in used)

    def _work(self, target: Target, pool: Pool, found: _Clean) -> Work:
        """Store entries and substrates as the clean run leaves them; without a new one they stay as they are."""
        matrix, tally, used = self._run.matrix, self._run.tally, self._run.options.used(target)
        clean = settle(found.failures, found.unnoticed, too_loose(pool) if found.failures else {})
        id = matrix.add_problem(target.problem.id, target.problem.hash)
        there = {row.hash: row for row in matrix.substrates(id).values()}
        before = self._had(target, pool)
        mark = mark_of(pool)
        tally.dropped.update({(target.problem.id, uid): why for uid, why in clean.dropped.items()})
        pool = replace(pool, admissions=tuple(_without(a, clean.dropped) for a in pool.admissions))
        if before or not used:
            entries = matrix.entries(id, device_class=self._run.options.device_class, role="pool").values()
            kept = {row.uid for row in entries if row.reason == CLEAN_RUN}
            pool = replace(pool, admissions=tuple(_without(a, dict.fromkeys(kept, "")) for a in pool.admissions))
        self._pools.store(id, pool, "protocol" if before else "all")
        work = Work(target, id, pool, questions_of(self._run, id, pool))
        for substrate in used:
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
            row_id = matrix.add_substrate(row)
            if row.status == "admitted":
                work.substrates[row_id] = substrate
            else:
                tally.quarantined[substrate.name] = row.detail
        return work


def questions_of(run: Run, problem: int, pool: Pool) -> Questions:
    """What is asked of a problem's kernels.

    Args:
        problem: row id.
    """
    matrix, device_class = run.matrix, run.options.device_class
    ids = entry_ids(matrix, problem, device_class)
    rows = matrix.entries(problem, device_class=device_class, role="protocol")
    return Questions(pool_questions(pool, ids), official_questions(rows))


def mark_of(pool: Pool) -> str:
    """Names the entries that a clean run was about."""
    return f"clean run {short(stable_hash([a.entry.id for a in pool.admitted]))}"


def _without(admission: Admission, dropped: Mapping[str, str]) -> Admission:
    if admission.entry.id not in dropped:
        return admission
    return replace(admission, admitted=False, reason=CLEAN_RUN, detail=dropped[admission.entry.id])
