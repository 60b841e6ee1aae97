"""The first phase of a calibration: the entries of each problem through the validity gate, which knows no mutant.

What the gate said is kept in the matrix with the gate's identity, so that it is not asked again while it is the same.
"""

import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Literal

import torch

from ..suites.entry import Entry
from ..suites.hashing import short
from ..suites.lifetime import end_with_process
from ..suites.problem import Problem
from ..suites.suite_cache import gate_key
from ..suites.validity import Admission, Measured
from .calibrate_plan import Target, protocol_entries, protocol_rows
from .calibrate_values import Run
from .done import as_done
from .matrix_schema import EntryRow
from .pool import Pool, asked_pool, build_pool
from .pool_memory import PoolMemory
from .withdraw import WITHDRAWN, withdraw_entries

CLEAN_RUN = "clean-run"  # reason of an entry that the gate admitted and the clean run did not


class Pools:
    """The pools of one calibration's targets, in the matrix and out of it."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._memory = PoolMemory(run.options.out / "pools.json")

    def build(self) -> list[tuple[Target, Pool]]:
        """The pool of each target; the gate's answers are stored as they come.

        Raises:
            InputError: a problem's own code is broken.
        """
        run = self._run
        targets = run.options.targets
        device = "cuda:0" if run.options.device_class == "cuda" else "cpu"
        known = [self._known(t.problem) for t in targets]
        found: dict[int, Pool] = {}
        for i, (target, answers) in enumerate(zip(targets, known, strict=True)):
            ids = self._memory.get(self._gate_identity(target.problem))
            if ids is not None and all(id in answers for id in ids):
                own = {id: answers[id].entry for id in ids}
                found[i] = asked_pool(target.problem, torch.device(device), own, known=answers, extra=target.extra)
        run.report("pools", len(found), len(targets))
        todo = [i for i in range(len(targets)) if i not in found]
        if not todo:
            return [(t, found[i]) for i, t in enumerate(targets)]
        run.budget.wait_free()
        with ProcessPoolExecutor(
            min(len(todo), run.options.workers),
            mp_context=get_context("spawn"),
            initializer=_begin,
            initargs=(os.getpid(),),
        ) as executor:
            waiting = {
                executor.submit(build_pool, targets[i].problem, device, known=known[i], extra=targets[i].extra): i
                for i in todo
            }
            for future in as_done(waiting):
                i = waiting[future]
                found[i] = future.result()
                self._store_answers(found[i], known[i])
                self._remember(found[i])
                self._memory.save()
                run.report("pools", len(found), len(targets))
        return [(t, found[i]) for i, t in enumerate(targets)]

    def remember(self, pool: Pool) -> None:
        """Take over what the gate said elsewhere: the problem's entries are these, and are not put to it again."""
        self.store(self._run.matrix.add_problem(pool.problem.id, pool.problem.hash), pool, "all")
        self._remember(pool)
        self._memory.save()

    def store(self, problem: int, pool: Pool, which: Literal["all", "protocol"]) -> None:
        """Bring a problem's entries in the matrix up to date, or those of the official protocols alone."""
        matrix, device_class = self._run.matrix, self._run.options.device_class
        gate = self._gate_identity(pool.problem)
        rows: list[EntryRow] = []
        if which == "all":
            rows += [_with_gate(EntryRow.of(problem, a, device_class), gate) for a in pool.admissions]
        protocols = sorted(protocol_entries())
        if which == "all" or self._memory.get(gate, "protocols") != protocols:
            rows += [replace(row, problem=problem) for row in protocol_rows(pool.problem, pool)]
            self._memory.put(protocols, gate, "protocols")
        matrix.add_entries(rows)
        self._memory.save()
        withdraw_entries(matrix, problem, device_class, [a.entry.id for a in pool.admissions])

    def _store_answers(self, pool: Pool, known: Mapping[str, Admission]) -> None:
        """What the gate said just now, so that a run which is killed need not ask again; the rest stays as it is."""
        matrix, device_class = self._run.matrix, self._run.options.device_class
        problem = matrix.add_problem(pool.problem.id, pool.problem.hash)
        gate = self._gate_identity(pool.problem)
        fresh = [a for a in pool.admissions if a.entry.id not in known]
        matrix.add_entries([_with_gate(EntryRow.of(problem, a, device_class), gate) for a in fresh])

    def _remember(self, pool: Pool) -> None:
        own = [a.entry.id for a in pool.admissions if a.entry.id not in pool.extra]
        self._memory.put(own, self._gate_identity(pool.problem))

    def _known(self, problem: Problem) -> dict[str, Admission]:
        """What the gate said in an earlier run, if the gate is still the same."""
        id = self._run.matrix.add_problem(problem.id, problem.hash)
        wanted = self._gate_identity(problem)
        rows = self._run.matrix.entries(id, device_class=self._run.options.device_class, role="pool").values()
        return {r.uid: gate_answer(r) for r in rows if _gate_of(r) == wanted}

    def _gate_identity(self, problem: Problem) -> str:
        """Of all that its answers depend on. It asks no suite, so a suite in the library must not stand for it."""
        return short(gate_key(problem, self._run.options.device_class, "fp32"))


def gate_answer(row: EntryRow) -> Admission:
    """What the gate itself said about an entry of a pool."""
    measured = None if row.measured is None else Measured.from_dict(dict(row.measured))
    if row.reason in (CLEAN_RUN, WITHDRAWN):  # the gate itself had nothing against it
        return Admission(Entry.from_dict(row.recipe), True, measured=measured)
    return Admission(Entry.from_dict(row.recipe), row.admitted, row.reason, row.detail.partition("; ")[2], measured)


def _with_gate(row: EntryRow, gate: str) -> EntryRow:
    """The row with the gate's identity in its detail, so that a later run knows whether it may rely on it."""
    return replace(row, detail=f"gate {gate}; {row.detail}" if row.detail else f"gate {gate}")


def _gate_of(row: EntryRow) -> str:
    return row.detail.partition(";")[0].removeprefix("gate ")


def _begin(parent: int) -> None:
    end_with_process(parent)  # a killed calibration leaves nobody behind
    torch.set_num_threads(1)
