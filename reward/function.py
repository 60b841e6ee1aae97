"""The reward function for trainers: completions in, one number or None per completion out."""

import itertools
import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ..suites.errors import InputError
from ..suites.protocol import load_protocol
from .audit import Tally
from .cache import VerdictCache, engine_fingerprint, verdict_key
from .client import JudgeClient
from .columns import ProblemColumns
from .completion import Extraction, extract, normalise
from .config import RewardConfig
from .metrics import CallStats, summarise
from .oversight import Judged, Oversight, OversightOptions
from .promoted import SuiteFolder, SuitesAt
from .ranks import agreed, device_here, resolve_device, several_ranks, shared_run_key
from .store import RunStore, run_store_path
from .task import Task
from .verdict import Outcome, Verdict

if TYPE_CHECKING:
    from ..suites.problem import Problem
    from ..suites.protocol import ProtocolSpec
    from ..suites.suite import Suite

_log = logging.getLogger(__name__)
_NUMBERS = itertools.count()  # of the rewards of a process: the ranks, which make them in the same order, agree by it
_EPOCHS = 4  # whose suites are kept: concurrent calls of an asynchronous trainer may lag behind


@dataclass(frozen=True, slots=True)
class _Runtime:
    """What a process needs to judge; made at the first call, never pickled."""

    client: JudgeClient
    cache: VerdictCache
    store: RunStore | None
    engine: str
    protocols: "dict[str, ProtocolSpec]"
    folder: SuiteFolder  # the user's own suites
    suites: dict[int, SuitesAt]  # what they are in an epoch
    oversight: Oversight | None


@dataclass(frozen=True, slots=True)
class Judgement:
    """One call's verdicts, in the order of the completions.

    Attributes:
        verdicts: by protocol, the paying one first.
        codes: the candidates.
        judged: how many candidates were judged for it, not found in the cache or in the same call.
        tasks: what was put to the judge for the paying protocol, with what it found; each candidate once.
    """

    verdicts: dict[str, list[Verdict]]
    codes: list[str]
    judged: int
    tasks: tuple[Judged, ...] = field(default=(), repr=False)


class KernelReward:
    """A reward function for TRL's trainers (`reward_funcs=KernelReward(...)`).

    The dataset has a column `problem` (an id such as `level1/23_Softmax`, or a path) or `reference` (the problem's
    source text). A call gives one finite number per completion, or None where there is no verdict. It never raises for
    anything that a policy wrote; it raises `InputError` at its first call where the dataset or the configuration is
    wrong. Safe to use from several threads, on several ranks and, pickled, in other processes; the judge is a process
    of its own, started at the first call.

    Args:
        config: how it is set up; None takes KERNELWARD_CONFIG, else the packaged `default`.
    """

    def __init__(self, config: RewardConfig | None = None) -> None:
        self.config = config if config is not None else RewardConfig.load()
        self.__name__ = self.config.name  # what TRL logs the reward as
        self._visible_gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
        self._run_key: bytes | None = None
        self._device: str | None = None
        self._calls = 0
        self._number = next(_NUMBERS)
        self._reset(owner=True)

    @classmethod
    def from_config(cls, ref: str | Path) -> Self:
        """A reward from a YAML file, or from a packaged configuration by its name.

        Raises:
            InputError: no such configuration, or a fault in it (file, line and key are named).
        """
        return cls(RewardConfig.load(ref))

    def _reset(self, owner: bool) -> None:
        self._owner = owner  # whether this process removes a temporary store
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._runtime_now: _Runtime | None = None
        self._store: RunStore | None = None
        self._columns = ProblemColumns(self.config.problems)
        self._started = False
        self._warned: set[str] = set()

    def __repr__(self) -> str:
        return f"KernelReward(name={self.config.name!r}, protocol={self.config.protocol!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {
            "config": self.config,
            "run_key": self.run_key,
            "device": self.device,
            "visible_gpus": self._visible_gpus,
            "calls": self._calls,
            "number": self._number,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.config = state["config"]
        self.__name__ = self.config.name
        self._run_key = state["run_key"]
        self._device = state["device"]
        self._visible_gpus = state["visible_gpus"]
        self._calls = state["calls"]
        self._number = state["number"]
        self._reset(owner=False)

    @property
    def run_key(self) -> bytes:
        """The run's secret, equal on all ranks: the configuration's, KERNELWARD_RUN_KEY, or one drawn by the ranks."""
        with self._lock:
            if self._run_key is None:
                self._run_key = shared_run_key(self.config.run_key)
            return self._run_key

    @property
    def device(self) -> str:
        """`cpu` or `cuda:N`: where this rank's candidates are judged."""
        with self._lock:
            if self._device is None:
                self._device = resolve_device(self.config.device)
            return self._device

    @property
    def store(self) -> RunStore:
        """The store that the run's processes share (see `metrics.log_stored_metrics`)."""
        with self._lock:
            if self._store is None:
                path = Path(self.config.store) if self.config.store else run_store_path(self.run_key)
                if self._owner and not self.config.store:
                    weakref.finalize(self, _remove, path)
                self._store = RunStore(path, self.run_key)
            return self._store

    def __call__(
        self,
        completions: Sequence[Any],
        *,
        problem: Sequence[str | None] | None = None,
        reference: Sequence[str | None] | None = None,
        trainer_state: Any = None,
        log_metric: Callable[[str, float], None] | None = None,
        log_extra: Callable[[str, list[Any]], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """Score completions; TRL calls this with keywords.

        Args:
            completions: texts, or lists of chat messages.
            problem: a problem's id or path per completion.
            reference: a problem's source text per completion; goes before `problem` where both are given.
            trainer_state: its `global_step` says when the inputs change.
            log_metric, log_extra: the trainer's loggers; without the first, metrics go to the store.
            columns: the dataset's other columns, unused.

        Raises:
            InputError: at the first call, where the dataset or the configuration is wrong.
        """
        started = time.monotonic()
        problems = self._find_problems(len(completions), problem, reference, columns)
        needs_store = log_metric is None or several_ranks()
        step = self._step(trainer_state)
        judgement = self._judge(completions, problems, step // self.config.rotate_every, needs_store)
        paid = judgement.verdicts[self.config.protocol]
        rewards = [
            self.config.shaping.reward(verdict, len(code)) for verdict, code in zip(paid, judgement.codes, strict=True)
        ]
        self._warn_of_missing(paid)
        measured = {p: judgement.verdicts[p] for p in self.config.measure}
        stats = CallStats(paid, measured, time.monotonic() - started, judgement.judged)
        values = summarise(self.config.name, self.config.protocol, stats)
        oversight = self._runtime(needs_store).oversight
        if oversight is not None:
            oversight.watch(judgement.tasks, step)
            values |= oversight.metrics(self.config.name)
        if log_metric is not None:
            for name, value in values.items():
                log_metric(name, value)
        else:
            self.store.add_metrics(values)
        if log_extra is not None:
            log_extra(f"{self.config.name}/verdict", [v.verdict.value for v in paid])
            log_extra(f"{self.config.name}/reason", [v.reason for v in paid])
            log_extra(f"{self.config.name}/suite", [v.suite for v in paid])
        return rewards

    def judge(self, completions: Sequence[Any], problems: Sequence[str], epoch: int = 0) -> Judgement:
        """The verdicts behind the rewards, for scripts and for looking into a run.

        Raises:
            InputError: a problem or the configuration is wrong.
        """
        found = self._find_problems(len(completions), problems, None, ())
        return self._judge(completions, found, epoch, needs_store=False)

    @property
    def audits(self) -> Tally:
        """What the audits of the run have found so far; its `false_accept_rate` is None while there is no estimate."""
        with self._lock:
            oversight = self._runtime_now.oversight if self._runtime_now is not None else None
        return Tally() if oversight is None else oversight.tally

    @property
    def false_accepts(self) -> int:
        """Kernels that were paid in this run, by this process or another, and turned out to be wrong."""
        with self._lock:
            oversight = self._runtime_now.oversight if self._runtime_now is not None else None
        return 0 if oversight is None else oversight.false_accepts

    def finish_audits(self, timeout: float) -> bool:
        """Wait, at the end of a training for example, until the audits so far are done; whether they were in time."""
        with self._lock:
            oversight = self._runtime_now.oversight if self._runtime_now is not None else None
        return oversight is None or oversight.drain(timeout)

    def close(self) -> None:
        """End the judge process. The next call would start a new one."""
        with self._lock:
            runtime, self._runtime_now = self._runtime_now, None
            store, self._store = self._store, None
        if self._pid == os.getpid():
            if runtime is not None:
                if runtime.oversight is not None:
                    runtime.oversight.close()
                runtime.client.close()
            if store is not None:
                store.close()

    # --- judging -----------------------------------------------------------------------------------------------------

    def _judge(
        self, completions: Sequence[Any], problems: "Sequence[Problem | InputError]", epoch: int, needs_store: bool
    ) -> Judgement:
        extractions = [extract(c) for c in completions]
        codes = [normalise(e.code) for e in extractions]
        runtime = self._runtime(needs_store)
        suites = self._suites(runtime, epoch)
        wanted: dict[str, Task] = {}  # by key: a candidate that is there several times is judged once
        keys: dict[str, list[str | Verdict]] = {}
        for protocol in (self.config.protocol, *self.config.measure):
            spec = runtime.protocols[protocol]
            rotates = _rotates(spec)
            row: list[str | Verdict] = []
            for extraction, code, problem in zip(extractions, codes, problems, strict=True):
                early = _without_judge(extraction, problem, protocol, epoch)
                if early is not None or isinstance(problem, InputError):
                    assert early is not None
                    row.append(early)
                    continue
                task = Task(
                    candidate=code,
                    problem=problem,
                    protocol=protocol,
                    suite=suites.suites.get(problem.hash),
                    run_key=self.run_key,
                    epoch=epoch if rotates else 0,
                    speed=self.config.shaping.speed is not None and protocol == self.config.protocol,
                )
                suite_hash = _suite_hash(suites, problem) if spec.uses_suite else None
                key = verdict_key(task, spec.hash, suite_hash, runtime.engine)
                wanted[key] = task
                row.append(key)
            keys[protocol] = row
        known, judged = self._verdicts(runtime, wanted)
        verdicts = {p: [known[k] if isinstance(k, str) else k for k in row] for p, row in keys.items()}
        self._started = True
        asked = dict.fromkeys(k for k in keys[self.config.protocol] if isinstance(k, str))
        tasks = tuple(Judged(wanted[k], known[k]) for k in asked if known[k].verdict.decided)
        return Judgement(verdicts, codes, judged, tasks)

    def _verdicts(self, runtime: _Runtime, wanted: dict[str, Task]) -> tuple[dict[str, Verdict], int]:
        """A verdict for every key, and how many had to be judged."""
        found = {key: runtime.cache.get(key) for key in wanted}
        known = {key: verdict for key, verdict in found.items() if verdict is not None}
        missing = [key for key in wanted if key not in known]
        if not missing:
            return known, 0
        try:
            results: Sequence[Verdict | InputError] = runtime.client.judge_each([wanted[k] for k in missing])
        except Exception as error:  # a fault of ours must neither end the training nor score a candidate
            if isinstance(error, InputError) and not self._started:
                raise  # the judge's configuration asks for what this machine does not have
            _log.exception("the judge's client failed; these completions get no reward")
            fault = f"{type(error).__name__}: {error}"
            results = [Verdict(Outcome.INFRA_ERROR, "client-error", fault) for _ in missing]
        for key, result in zip(missing, results, strict=True):
            if isinstance(result, InputError):
                known[key] = self._unusable(result, wanted[key])
            else:
                runtime.cache.put(key, result)
                known[key] = result
        return known, len(missing)

    def _unusable(self, error: InputError, task: Task) -> Verdict:
        """A problem that cannot be judged: the user's error at the first call, no verdict once training runs."""
        if not self._started:
            raise error
        self._warn_once(f"problem {task.problem.id}", "%s; its completions get no reward", error)
        return Verdict(Outcome.UNREFEREEABLE, "problem", str(error), task.problem.id, protocol=str(task.protocol))

    # --- set-up ------------------------------------------------------------------------------------------------------

    def _runtime(self, needs_store: bool) -> _Runtime:
        if self._pid != os.getpid():  # inherited through a fork: its judge and its files belong to the parent
            self._reset(owner=False)
        with self._lock:
            runtime = self._runtime_now
            if runtime is None:
                store = self.store if needs_store or self.config.store else None
                judge = replace(self.config.judge, device=device_here(self.device, self._visible_gpus))
                names = (self.config.protocol, *self.config.measure)
                protocols = {name: load_protocol(name) for name in names}
                client, cache = JudgeClient(judge), VerdictCache(self.config.cache, store)
                runtime = _Runtime(
                    client=client,
                    cache=cache,
                    store=store,
                    engine=engine_fingerprint(judge),
                    protocols=protocols,
                    folder=SuiteFolder(Path(self.config.suites) if self.config.suites else None),
                    suites={},
                    oversight=self._watched(client, cache, protocols[self.config.protocol], store is not None),
                )
                self._runtime_now = runtime
            return runtime

    def _watched(
        self, client: JudgeClient, cache: VerdictCache, spec: "ProtocolSpec", shared: bool
    ) -> Oversight | None:
        config = self.config
        audit = config.audit if spec.uses_suite else 0.0  # an official protocol accepts what it accepts
        bank = config.bank.open() if config.bank is not None and spec.uses_suite else None
        if not audit and config.shadow is None and bank is None:
            return None
        options = OversightOptions(audit, config.shadow, self.run_key, shared)
        oversight = Oversight(options, client, cache, self.store, bank)
        weakref.finalize(self, oversight.close)
        return oversight

    def _suites(self, runtime: _Runtime, epoch: int) -> SuitesAt:
        """The user's own suites in an epoch: read once, when it begins, and the same on all ranks."""
        with self._lock:
            if epoch not in runtime.suites:
                held = runtime.folder.read()
                if self.config.suites is not None:
                    mine = json.dumps({problem: suite.hash for problem, suite in sorted(held.items())})
                    theirs = json.loads(agreed(f"suites/{self._number}/{epoch}", mine))
                    found = {problem: self._suite(runtime, held, problem, wanted) for problem, wanted in theirs.items()}
                    held = {problem: suite for problem, suite in found.items() if suite is not None}
                hashes: dict[str, str | None] = {problem: suite.hash for problem, suite in held.items()}
                if hashes and runtime.oversight is not None:
                    runtime.oversight.note_suites(epoch, held)
                runtime.suites[epoch] = SuitesAt(held, hashes)
                while len(runtime.suites) > _EPOCHS:
                    del runtime.suites[min(runtime.suites)]
            return runtime.suites[epoch]

    def _suite(self, runtime: _Runtime, held: "Mapping[str, Suite]", problem: str, wanted: str) -> "Suite | None":
        """The suite with a hash that the ranks agreed on."""
        mine = held.get(problem)
        suite = mine if mine is not None and mine.hash == wanted else runtime.folder.find(wanted)
        if suite is None:
            what = (
                f"another rank judges by a suite {wanted[:12]} that this one does not find in {self.config.suites}: "
                "every rank has to read the same folder"
            )
            if not self._started:
                raise InputError(what)
            self._warn_once(f"suite {wanted}", "%s", what)
        return suite or mine

    def _step(self, trainer_state: Any) -> int:
        step = getattr(trainer_state, "global_step", None)
        with self._lock:
            calls, self._calls = self._calls, self._calls + 1
        return int(calls if step is None else step)

    def _find_problems(
        self,
        count: int,
        problem: Sequence[str | None] | None,
        reference: Sequence[str | None] | None,
        others: Iterable[str],
    ) -> "list[Problem | InputError]":
        found = self._columns.problems(count, problem, reference, others)
        errors = [f for f in found if isinstance(f, InputError)]
        if errors and not self._started:
            raise errors[0]
        for error in errors:
            self._warn_once(str(error), "%s; its completions get no reward", error)
        return found

    # --- warnings ----------------------------------------------------------------------------------------------------

    def _warn_once(self, topic: str, message: str, *values: Any) -> None:
        with self._lock:
            if topic in self._warned:
                return
            self._warned.add(topic)
        _log.warning(message, *values)

    def _warn_of_missing(self, verdicts: Sequence[Verdict]) -> None:
        missing = [v for v in verdicts if not v.verdict.decided]
        if missing:
            first = missing[0]
            self._warn_once(
                "no verdict",
                "no verdict, so reward None, for %d of %d completions (first: %s, %s: %s). TRL leaves them out of the "
                "advantage as long as this is the only reward function; with several it adds None as 0, which punishes "
                "a completion for a fault that is not its own. Said once; watch %s/share_no_verdict",
                len(missing),
                len(verdicts),
                first.verdict.value,
                first.reason or "no reason",
                _shortened(first.message),
                self.config.name,
            )


def _without_judge(
    extraction: Extraction, problem: "Problem | InputError", protocol: str, epoch: int
) -> Verdict | None:
    """The verdict where there is nothing to judge, or nothing to judge it by."""
    if isinstance(problem, InputError):
        return Verdict(Outcome.UNREFEREEABLE, "problem", str(problem), protocol=protocol, epoch=epoch)
    if extraction.code.strip():
        return None
    outcome = Outcome.REJECTED if extraction.reason == "too-large" else Outcome.COMPILE_ERROR
    reason = extraction.reason or "no-code"
    message = "the completion is too long" if reason == "too-large" else "the completion holds no candidate"
    return Verdict(
        outcome, reason, message, problem=problem.id, problem_hash=problem.hash, protocol=protocol, epoch=epoch
    )


def _rotates(spec: "ProtocolSpec") -> bool:
    """Whether a protocol's inputs depend on the run key and the epoch."""
    return isinstance(spec.entries, str) or any(entry.seed_policy == "secret" for entry in spec.entries)


def _suite_hash(suites: SuitesAt, problem: "Problem") -> str | None:
    """Hash of the suite that a problem is judged by, as far as the trainer's process can know it."""
    from ..suites.suite import find_suite

    if problem.hash not in suites.hashes:
        found = find_suite(problem)
        suites.hashes[problem.hash] = None if found is None else found.hash
    return suites.hashes[problem.hash]


def _shortened(text: str, limit: int = 600) -> str:
    """The beginning and the end of a long text (the end of a traceback says what happened)."""
    return text if len(text) <= limit else f"{text[: limit // 3]} [...] {text[-(limit - limit // 3) :]}"


def _remove(path: Path) -> None:
    for name in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
        name.unlink(missing_ok=True)
