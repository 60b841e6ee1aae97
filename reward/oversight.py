"""What watches the reward while it pays: the bank of accepted kernels, audits, and a shadow protocol.

All of it happens on two threads of its own, and in the judge only while nothing waits there, so no reward is late for
it. One writes down at once what a kill must not lose, kernels and samples; the other judges the samples, which may take
long. Whatever fails here is said once and costs nothing but the measurement.
"""

import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from ..suites.errors import InputError
from ..suites.hashing import sha256_text, stable_hash
from .audit import Finding, Sample, ShadowConfig, Tally, estimate, estimate_metrics, look_again, sampled
from .bank import BankedKernel, BankError, KernelBank, kernel_hash
from .cache import VerdictCache
from .client import JudgeClient, JudgeLost, read_reply
from .metrics import protocol_label
from .store import RunStore
from .task import Task
from .verdict import Outcome, Verdict

if TYPE_CHECKING:
    from ..suites.suite import Suite

_log = logging.getLogger(__name__)

MOST_WAITING = 256  # samples; a judge that is never idle long enough gets no more of them
MOST_KEPT = 100_000  # kernels whose names are remembered, so that the bank is not asked for each of them again
_POLL_S = 2.0  # between two looks for what the calibrator found in the bank
_SKEW_S = 60.0  # between the clocks of machines that share a bank
_T = TypeVar("_T")
_Jobs = queue.Queue[Callable[[], None] | None]


@dataclass(frozen=True, slots=True)
class Judged:
    """A candidate that the reward has a verdict for."""

    task: Task
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class OversightOptions:
    """What is watched.

    Attributes:
        share: of the accepted candidates that are audited.
        shadow: see `ShadowConfig`.
        run_key: the run's secret.
        shared: the store may hold samples of other processes, or of an earlier one.
    """

    share: float
    shadow: ShadowConfig | None
    run_key: bytes
    shared: bool


class Oversight:
    """Watches one reward. Its methods return at once, but for `drain` and `close`.

    Args:
        options: see there.
        client: the reward's.
        cache: of verdicts; those of kernels that turn out to be wrong are dropped.
        store: for samples and what became of them.
        bank: None keeps no kernels.
    """

    def __init__(
        self,
        options: OversightOptions,
        client: JudgeClient,
        cache: VerdictCache,
        store: RunStore,
        bank: KernelBank | None,
    ) -> None:
        self._options = options
        self._client = client
        self._cache = cache
        self._store = store
        self._bank = bank
        self._banks = bank is not None
        self._notes: _Jobs = queue.Queue()
        self._queue: _Jobs = queue.Queue()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._polling = threading.RLock()
        self._tally = Tally()
        self._last = 0
        self._uses_store = options.shared
        self._waiting = 0
        self._kept: set[str] = set()
        self._banked_wrong: set[str] = set()
        self._counted = 0
        self._polled = 0.0
        self._known_until = 0.0
        self._started_at = time.time()
        self._answers: dict[tuple[str, str, str, int], Finding | None] = {}
        self._said: set[str] = set()
        self._suites: dict[str, str] = {}
        self._pid = os.getpid()
        self._threads = [
            threading.Thread(target=self._work, args=(jobs,), name=f"kernelward-{name}", daemon=True)
            for name, jobs in (("notes", self._notes), ("oversight", self._queue))
        ]
        for thread in self._threads:
            thread.start()
        if options.shared and os.environ.get("RANK", "0") == "0":
            self._notes.put(self._resume)

    def watch(self, judged: Sequence[Judged], step: int) -> None:
        """Take note of one call of the reward.

        Args:
            judged: its candidates that have a verdict; repeated ones may be left out.
            step: the optimiser's step, or the number of the call.
        """
        self._notes.put(lambda: self._take(judged, step))

    def note_suites(self, epoch: int, suites: "Mapping[str, Suite]") -> None:
        """Write down by which suites of the user's folder an epoch is judged, where that changed."""
        hashes = {problem: suite.hash for problem, suite in suites.items()}
        if hashes != self._suites:
            self._suites = hashes
            if self._options.shared:
                body = {"kind": "suites", "epoch": epoch, "suites": hashes}
                self._store.put_sample(stable_hash(body), body)

    def metrics(self, name: str) -> dict[str, float]:
        """What is known by now, under `<name>/...`; always the same keys."""
        self._read()
        tally, values = self._tally, {}
        if self._options.share > 0:
            values[f"{name}/audit/samples"] = float(tally.audits)
            values[f"{name}/audit/false_accepts"] = float(tally.false_accepts)
            values[f"{name}/audit/waiting"] = float(self._waiting)
            values |= estimate_metrics(f"{name}/audit/false_accept_rate", tally.false_accept_rate)
        if self._options.shadow is not None:
            label = f"{name}/shadow/{protocol_label(self._options.shadow.protocol)}"
            values[f"{label}/samples"] = float(tally.shadows)
            values |= estimate_metrics(f"{label}/disagreement", tally.disagreement)
        if self._banks:
            values[f"{name}/bank/false_accepts"] = float(self._counted)
        return values

    @property
    def tally(self) -> Tally:
        """All samples of the run so far, of all processes that share the store."""
        self._read()
        return self._tally

    @property
    def false_accepts(self) -> int:
        """Kernels that were found wrong, by an audit or by the calibrator, since this began."""
        return self._counted

    def drain(self, timeout: float) -> bool:
        """Wait until all that was noted has been dealt with; returns whether it was in time."""
        done = threading.Event()
        self._notes.put(lambda: self._queue.put(done.set))  # behind the samples that the noted calls put there
        return done.wait(timeout)

    def close(self) -> None:
        """End the threads; samples that are still waiting stay in the store."""
        if os.getpid() != self._pid:  # a fork has neither the threads nor a connection of its own
            return
        self._closing.set()
        for jobs in (self._notes, self._queue):
            jobs.put(None)
        for thread in self._threads:
            if threading.current_thread() is not thread:
                thread.join(timeout=2.0)
        if self._bank is not None:
            self._bank.close()

    # --- on the threads -----------------------------------------------------------------------------------------------

    def _work(self, jobs: _Jobs) -> None:
        if jobs is self._queue and (self._options.share or self._options.shadow is not None):
            estimate(0, 1)  # what it imports takes seconds, which no call of the reward should wait for
        while not self._closing.is_set():
            job = jobs.get()
            if job is None:
                return
            try:
                job()
            except Exception:  # a fault of ours must not end what watches the run
                if "fault" not in self._said:
                    self._said.add("fault")
                    _log.exception("a fault while the reward was watched; it goes on (said once)")

    def _take(self, judged: Sequence[Judged], step: int) -> None:
        for one in judged:
            accepted = one.verdict.verdict is Outcome.CORRECT
            if accepted:
                self._keep(one)
            if accepted:
                self._offer(Sample("audit", one.task, step, True), self._options.share)
            if self._options.shadow is not None:
                self._offer(Sample("shadow", one.task, step, accepted), self._options.shadow.share)
        if time.monotonic() - self._polled > _POLL_S:
            self._poll()

    def _keep(self, one: Judged) -> None:
        """Bank a kernel, once in this process: also where the verdict is an earlier one's that was killed before."""
        kernel = _banked(one)
        name = kernel_hash(kernel.source, kernel.problem_hash)
        if name in self._kept:
            return
        if len(self._kept) >= MOST_KEPT:
            self._kept.clear()
        if self._banking(lambda bank: bank.add(kernel)) is not None:
            self._kept.add(name)

    def _poll(self) -> None:
        """Drop the verdicts of kernels that were found to be wrong."""
        with self._polling:
            self._polled = time.monotonic()
            since, self._known_until = self._known_until, time.time() - _SKEW_S
            for kernel in self._banking(lambda bank: bank.false_accepts(since)) or ():
                if kernel.hash not in self._banked_wrong:
                    self._drop(kernel)

    def _drop(self, kernel: BankedKernel) -> None:
        self._banked_wrong.add(kernel.hash)
        self._cache.drop(sha256_text(kernel.source), kernel.problem_hash)
        if kernel.decided_at is not None and kernel.decided_at < self._started_at:
            return  # an earlier run's
        self._counted += 1
        evidence = kernel.evidence
        _log.warning(
            "false accept: a kernel for %s that was paid as correct in epoch %d fails entry %s (seed %s%s), found by "
            "%s; `kernelward suite promote %s` adds the entry to the suite",
            kernel.problem_id,
            kernel.epoch,
            evidence.entry if evidence else "unknown",
            evidence.seed if evidence else "unknown",
            f", {evidence.reason}" if evidence and evidence.reason else "",
            evidence.found_by if evidence else "an unknown check",
            kernel.problem_id,
        )

    def _offer(self, sample: Sample, share: float) -> None:
        if not sampled(sample.kind, sample.task, sample.step, self._options.run_key, share):
            return
        if self._waiting >= MOST_WAITING:
            self._say("waiting", "%d audits are waiting for an idle judge; further ones are left out", MOST_WAITING)
            return
        self._uses_store = True
        if self._store.put_pending(sample.key, sample.to_json()):
            self._enqueue(sample)

    def _resume(self) -> None:
        """Take up what an earlier process left."""
        for body in self._store.pending().values():
            with contextlib.suppress(InputError, KeyError, TypeError, ValueError):  # another version's
                self._enqueue(Sample.from_json(body, self._options.run_key))

    def _enqueue(self, sample: Sample) -> None:
        with self._lock:
            self._waiting += 1
        self._queue.put(lambda: self._look(sample))

    def _look(self, sample: Sample) -> None:
        try:
            if sample.group not in self._answers:
                shadow = self._options.shadow
                self._answers[sample.group] = look_again(sample, self._judge, shadow.protocol if shadow else None)
                while len(self._answers) > MOST_WAITING:
                    del self._answers[next(iter(self._answers))]
            if self._closing.is_set():
                return
            found = self._answers[sample.group]
            finding = None if found is None else Finding(sample, found.verdict, found.wrong, found.unsteady)
            self._store.put_sample(sample.key, None if finding is None else finding.to_json())
            if finding is not None and finding.evidence is not None:
                self._false_accept(finding)
        finally:
            with self._lock:
                self._waiting -= 1

    def _false_accept(self, finding: Finding) -> None:
        task, evidence = finding.sample.task, finding.evidence
        assert evidence is not None
        self._keep(Judged(task, finding.verdict))
        hash, detail = kernel_hash(task.candidate, task.problem.hash), evidence.to_json()
        self._banking(lambda bank: bank.settle(hash, "false-accept", detail))
        if self._bank is not None:
            self._poll()
        elif hash not in self._banked_wrong:
            self._drop(replace(_banked(Judged(task, finding.verdict)), hash=hash, state="false-accept", detail=detail))

    def _judge(self, task: Task) -> Verdict | None:
        try:
            future = self._client.submit(task)
            while not self._closing.is_set():
                with contextlib.suppress(TimeoutError):
                    result = read_reply(future.result(timeout=0.2))
                    return result if isinstance(result, Verdict) else None
        except (JudgeLost, InputError) as error:
            self._say("judge", "a candidate could not be judged again: %s", error)
        return None

    # --- helpers ------------------------------------------------------------------------------------------------------

    def _banking(self, action: Callable[[KernelBank], _T]) -> _T | None:
        """Do something with the bank; where that fails it is left alone from then on."""
        if self._bank is None:
            return None
        try:
            return action(self._bank)
        except BankError as error:
            self._say("bank", "accepted kernels are not kept any more: %s", error)
            bank, self._bank = self._bank, None
            bank.close()
            return None

    def _say(self, topic: str, message: str, *values: object) -> None:
        if topic not in self._said:
            self._said.add(topic)
            _log.warning(message + " (said once)", *values)

    def _read(self) -> None:
        if not self._uses_store:
            return
        with self._lock:
            self._last, bodies = self._store.samples_after(self._last)
            for body in bodies:
                self._tally = self._tally.plus(body)


def _banked(one: Judged) -> BankedKernel:
    problem = one.task.problem
    return BankedKernel(
        problem_id=problem.id,
        problem_hash=problem.hash,
        problem_source=problem.source,
        backend=one.verdict.backend,
        source=one.task.candidate,
        accepted_at=time.time(),
        epoch=one.task.epoch,
        suite=one.verdict.suite,
    )
