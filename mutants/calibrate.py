"""`kernelward calibrate`: measure how much every protocol notices, and choose suites that notice the most.

Phases, each of which picks up where an earlier run stopped:

1. pools: entries of each problem through the validity gate, which knows no mutant (`calibrate_pools`);
2. clean run and forced failure: every substrate must pass every entry, a kernel that answers zero must fail each
   (`calibrate_clean`);
3. mutants, in an order whose beginnings are fair samples: screened by compiled code, then put to the entries, until
   the budget is spent or all is done (`calibrate_mutants`);
4. suites: chosen from the matrix, written with the coverage measured for them (`calibrate_suites`).

All that was measured is in one SQLite file (`matrix`), so a second run with nothing changed evaluates nothing.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from ..reward.sandbox.failure import ChildFailure
from .calibrate_clean import CleanRuns, mark_of
from .calibrate_mutants import Mutants
from .calibrate_pools import Pools
from .calibrate_values import Budget, CalibrateOptions, Host, Report, Run, Tally, Work
from .done import as_done
from .evaluate import Evaluator, environment
from .lanes import Lanes
from .matrix import Matrix
from .mutant import Substrate
from .pool import Pool

SEVERAL = 3  # mutants after which an operator that made nothing that compiles is suspicious


class Calibrator:
    """One run of the phases; see the module's text.

    Args:
        options: how.
        matrix: what was measured before.
        report: see `Report`.
        host: receives the targets' guests; without one they are left alone.
        free: whether the device may be used now; asked before each mutant, which waits until it may.
        pace: called before each cell on a CPU, and may sleep.
        patience: times the limits of a kernel's calls on a CPU, where less than a core may be had for each.

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
        pace: Callable[[], None] | None = None,
        patience: float = 1.0,
    ) -> None:
        self._pace = pace
        self._patience = patience
        self._spare = free is None  # whoever waits for a device holds nothing on it meanwhile
        self._run = Run(options, matrix, report, Budget(options.budget_s, free))
        self._pools = Pools(self._run)
        self._host = host
        self._mutants: Mutants | None = None

    @property
    def tally(self) -> Tally:
        """What was done so far."""
        return self._run.tally

    @property
    def device_class(self) -> str:
        """`cpu` or `cuda`."""
        return self._run.options.device_class

    @property
    def rate(self) -> float:
        """Evaluations a second of this run's mutants so far."""
        return 0.0 if self._mutants is None else self._mutants.rate

    @property
    def left_s(self) -> float:
        """Seconds of the budget that are left."""
        return self._run.budget.left_s

    def run(self) -> Tally:
        """All phases but the writing of suites (`calibrate_suites`)."""
        with self._timed("pools"):
            pools = self._pools.build()
        options = self._run.options
        apart = options.device_class == "cuda" and options.workers > 1
        evaluator = Evaluator(options.device, pace=self._pace, patience=self._patience)
        with evaluator, Lanes(evaluator, options.workers, apart, self._spare) as lanes:
            with self._timed("clean run"):
                works = CleanRuns(self._run, self._pools, lanes).finish(pools)
            if self._run.options.renew:
                self._run.budget.begin()  # a pass is for mutants, however it began
            if self._host is not None:
                with self._timed("guests"):
                    self._guests(self._host, evaluator, works)
            self._mutants = Mutants(self._run, lanes, partial(environment, evaluator))
            with self._timed("mutants"):
                self._mutants.work(works)
        self._run.tally.uncompilable = self._run.matrix.uncompilable(SEVERAL)
        return self._run.tally

    def stop(self) -> None:
        """No further mutant is begun; `run` returns when those under way are done. From any thread."""
        self._run.budget.stop()

    def remember(self, pool: Pool) -> None:
        """Take over what the gate said elsewhere: the problem's entries are these, and are not put to it again."""
        self._pools.remember(pool)

    @contextlib.contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self._run.tally.seconds[phase] = time.monotonic() - started

    def _guests(self, host: Host, evaluator: Evaluator, works: Sequence[Work]) -> None:
        """Let kernels that a policy wrote be verified, for half of the budget at most."""
        run = self._run
        until = time.monotonic() + run.budget.left_s / 2

        def receive(work: Work, guest: Substrate) -> tuple[Work, Substrate, int | None]:
            id = None
            if time.monotonic() < until and run.budget.may_run():
                try:
                    id = host.receive(evaluator, run.matrix, work.problem_id, work.pool, mark_of(work.pool), guest)
                except ChildFailure as failure:
                    run.fault(f"kernel {guest.name}: {failure}")
            return work, guest, id

        with ThreadPoolExecutor(run.options.workers, thread_name_prefix="guests") as executor:
            backends = (*run.options.backends, "torch")  # those are verified alone
            welcome = [(w, g) for w in works for g in w.target.guests if g.backend in backends]
            jobs = [executor.submit(receive, work, guest) for work, guest in welcome]
            for done, job in enumerate(as_done(jobs), 1):
                work, guest, id = job.result()
                if id is not None:
                    work.guests[id] = guest
                run.report("guests", done, len(jobs))
