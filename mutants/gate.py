"""Which substrates are correct: each is judged like any candidate, by our protocol and by KernelBench's, all entries.

A substrate that fails is quarantined with its reason: mutants of a wrong kernel say nothing, and one kernel that
disagrees is no reason to drop an entry. Results are kept in an SQLite file under everything that they depend on, so an
interrupted gate goes on where it stopped and a second one judges nothing.
"""

import contextlib
import json
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, Self

from ..reward.client import JudgeClient
from ..reward.task import JudgeConfig, Task
from ..reward.verdict import Outcome, Verdict
from ..suites.errors import InputError
from ..suites.hashing import stable_hash
from ..suites.problem import Problem
from ..suites.protocol import ProtocolSpec, load_protocol
from ..suites.suite_cache import suite_identity
from ..suites.tolerance import TolerancePolicy
from ..suites.version import version
from .calibrate_plan import find_in
from .mutant import Substrate

PROTOCOLS = ("kernelward", "kernelbench")
RUN_KEY = b"the gate of substrates"  # not secret: a substrate is ours, and a second gate draws the same inputs

State = Literal["verified", "quarantined", "undecided"]


@dataclass(frozen=True, slots=True)
class GateCheck:
    """What one protocol says of a substrate.

    Attributes:
        protocol: its name.
        verdict, reason, message, entry, err, tolerance, seed: as in `Verdict`.
        engine: what ran the kernel.
        entries: how many entries were judged.
        seconds: wall-clock seconds, the building of the kernel and, at first, of the suite included.
    """

    protocol: str
    verdict: Outcome
    reason: str
    message: str
    entry: str | None
    err: float | None
    tolerance: float | None
    seed: int | None
    engine: str
    entries: int
    seconds: float

    def __str__(self) -> str:
        reason = f" ({self.reason})" if self.reason else ""
        where = f" at {self.entry}" if self.entry else ""
        value = f": error {self.err:.3g} of {self.tolerance:.3g}" if self.err is not None and self.tolerance else ""
        return f"{self.protocol}: {self.verdict}{reason}{where}{value}"


@dataclass(frozen=True, slots=True)
class GateResult:
    """What the gate says of one substrate.

    Attributes:
        substrate: its name; `substrate_hash`, `problem` and `style` are its own.
        state: `verified`: correct by every protocol. `quarantined`: some protocol says otherwise. `undecided`: the
            problem is not at hand, cannot be refereed here, or the fault is ours; never held against the kernel.
        reason: why it is not verified; empty where it is.
        checks: one per protocol that ran. The first that does not say `correct` is the last.
        cached: whether an earlier gate found this.
    """

    substrate: str
    substrate_hash: str
    problem: str
    style: str
    state: State
    reason: str
    checks: tuple[GateCheck, ...] = ()
    cached: bool = False

    @property
    def seconds(self) -> float:
        """Of all checks, whenever they ran."""
        return sum(check.seconds for check in self.checks)


Progress = Callable[[int, int, GateResult], None]


def gate_substrates(
    substrates: Sequence[Substrate],
    device: str = "cpu",
    progress: Progress | None = None,
    *,
    problems: Sequence[Path] = (),
    cache: Path | None = None,
    config: JudgeConfig | None = None,
) -> list[GateResult]:
    """Judge substrates by every protocol of `PROTOCOLS`.

    Args:
        device: `cpu` or `cuda:N`.
        progress: called on this thread with the number done, the number of all, and the newest result.
        problems: folders in which the problems are looked up, the first that has one wins.
        cache: SQLite file of earlier results, created if missing; undecided ones are not kept. Threads and processes
            may share it.
        config: how the judge is set up; its device is replaced by `device`.

    Returns:
        In the order of `substrates`.

    Raises:
        InputError: the device is not there, or `cache` is no such file.
    """
    values = asdict(config or JudgeConfig()) | {"device": device}
    values["limits"] = dict(values["limits"])
    settled = JudgeConfig.from_wire(values)
    results: dict[int, GateResult] = {}
    with GateCache(cache) as known, JudgeClient(settled) as client:
        gate = _Gate(client, settled, problems, known)
        with ThreadPoolExecutor(settled.workers, thread_name_prefix="gate") as pool:
            futures = {pool.submit(gate.judge, substrate): i for i, substrate in enumerate(substrates)}
            try:
                for future in as_completed(futures):
                    result = future.result()
                    results[futures[future]] = result
                    if progress is not None:
                        progress(len(results), len(substrates), result)
            except BaseException:  # those under way end, and are kept
                pool.shutdown(cancel_futures=True)
                raise
    return [results[i] for i in range(len(substrates))]


class _Gate:
    def __init__(self, client: JudgeClient, config: JudgeConfig, problems: Sequence[Path], known: "GateCache") -> None:
        self._client = client
        self._config = config
        self._problems = problems
        self._known = known
        self._protocols = {name: load_protocol(name) for name in PROTOCOLS}
        self._policy = TolerancePolicy.parse(config.precision + ("+ties=value" if config.ties == "value" else "")).name
        self._device_class = config.device.partition(":")[0]

    def judge(self, substrate: Substrate) -> GateResult:
        try:
            problem = find_in(substrate.problem, self._problems)
        except InputError as error:
            return _result(substrate, "undecided", str(error))
        key = self._key(substrate, problem)
        found = self._known.get(key)
        if found is not None:
            return found.of(substrate)
        result = self._judge(substrate, problem)
        if result.state != "undecided":
            self._known.put(key, result)
        return result

    def _judge(self, substrate: Substrate, problem: Problem) -> GateResult:
        checks: list[GateCheck] = []
        for name in self._protocols:
            task = Task(substrate.source, problem, name, run_key=RUN_KEY, all_entries=True)
            try:
                verdict = self._client.judge(task)
            except InputError as error:
                return _result(substrate, "undecided", str(error), checks)
            checks.append(_check(name, verdict))
            if verdict.verdict is not Outcome.CORRECT:
                state: State = "quarantined" if verdict.verdict.decided else "undecided"
                return _result(substrate, state, str(checks[-1]), checks)
        return _result(substrate, "verified", "", checks)

    def _key(self, substrate: Substrate, problem: Problem) -> str:
        return stable_hash(
            {
                "substrate": substrate.hash,
                "problem": problem.hash,
                "asked": [self._asked(spec, problem) for spec in self._protocols.values()],
                "device": self._device(),
                "limits": sorted(self._config.limits),
                "screen": self._config.screen.to_dict(),
                "policy": self._policy,
                "versions": _versions(substrate.backend),
            }
        )

    def _device(self) -> str:
        """Which device it is. Only for a GPU must the judge say it, so a gate that knows all results starts none."""
        return "cpu" if self._device_class == "cpu" else str(self._client.describe()["device_name"])

    def _asked(self, spec: ProtocolSpec, problem: Problem) -> list[str]:
        suite = suite_identity(problem, self._device_class, self._policy) if spec.entries == "suite" else ""
        return [spec.hash, suite]


def _versions(backend: str) -> dict[str, str]:
    names = ("torch", "triton") if backend == "triton" else ("torch",)
    found = {"kernelward": version()}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _result(substrate: Substrate, state: State, reason: str, checks: Sequence[GateCheck] = ()) -> GateResult:
    return GateResult(
        substrate.name, substrate.hash, substrate.problem, substrate.style, state, reason, checks=tuple(checks)
    )


def _check(protocol: str, verdict: Verdict) -> GateCheck:
    return GateCheck(
        protocol=protocol,
        verdict=verdict.verdict,
        reason=verdict.reason,
        message=verdict.message,
        entry=verdict.entry,
        err=verdict.err,
        tolerance=verdict.tolerance,
        seed=verdict.seed,
        engine=verdict.engine,
        entries=len(verdict.entries),
        seconds=round(verdict.seconds, 3),
    )


_SCHEMA = """
CREATE TABLE IF NOT EXISTS results (
    key TEXT PRIMARY KEY, state TEXT NOT NULL, reason TEXT NOT NULL, checks TEXT NOT NULL
) WITHOUT ROWID
"""


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is kept of a result: all but what the substrate says of itself."""

    state: State
    reason: str
    checks: tuple[GateCheck, ...]

    def of(self, substrate: Substrate) -> GateResult:
        result = _result(substrate, self.state, self.reason, self.checks)
        return replace(result, cached=True)


class GateCache:
    """Earlier results by key, safe for several threads and processes; every result is committed by itself.

    Args:
        path: SQLite file; None keeps nothing.

    Raises:
        InputError: it is no such file, or cannot be opened.
    """

    def __init__(self, path: Path | None) -> None:
        self._lock = threading.Lock()
        try:
            self._connection = sqlite3.connect(path or ":memory:", timeout=60.0, check_same_thread=False)
            if path is not None:
                self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute(_SCHEMA)
        except sqlite3.Error as error:
            raise InputError(f"gate cache {path}: {error}; name another file, or remove this one") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._connection.close()

    def get(self, key: str) -> _Kept | None:
        """The result under a key."""
        with self._lock:
            row = self._connection.execute("SELECT state, reason, checks FROM results WHERE key = ?", (key,)).fetchone()
        return row and _Kept(row[0], row[1], tuple(_read_check(check) for check in json.loads(row[2])))

    def put(self, key: str, result: GateResult) -> None:
        """Keep a result."""
        checks = json.dumps([asdict(check) for check in result.checks])
        with self._lock, self._connection:
            row = (key, result.state, result.reason, checks)
            self._connection.execute("INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?)", row)


def _read_check(data: Mapping[str, Any]) -> GateCheck:
    return GateCheck(**{**data, "verdict": Outcome(data["verdict"])})


def describe_gate(results: Sequence[GateResult]) -> list[str]:
    """One line per substrate, then the counts: what `calibrate --gate` prints."""
    width = max((len(r.substrate) for r in results), default=0)
    lines = []
    for result in results:
        share = max((c.err / c.tolerance for c in result.checks if c.err is not None and c.tolerance), default=None)
        closest = "" if share is None else f", {share:.3g} of its tolerance at most"
        tail = f": {result.reason}" if result.reason else f" in {result.seconds:.1f} s{closest}"
        lines.append(f"{result.substrate:<{width}}  {result.state}{tail}")
    counts = {state: sum(r.state == state for r in results) for state in ("verified", "quarantined", "undecided")}
    lines.append(", ".join(f"{number} {state}" for state, number in counts.items()))
    return lines
