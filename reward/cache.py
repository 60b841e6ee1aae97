"""Verdicts that are known already: in memory, and in a store that processes share."""

import hashlib
import threading
from collections import OrderedDict
from dataclasses import asdict, replace
from importlib import metadata

from ..suites.hashing import sha256_text, stable_hash
from .store import RunStore
from .task import JudgeConfig, Task
from .verdict import Verdict

#: Settings of a judge that cannot change a verdict.
_IRRELEVANT = ("workers", "threads", "truth_bytes", "suite_cache")


def engine_fingerprint(judge: JudgeConfig) -> str:
    """Hash of what runs and judges the candidates: the judge's settings and the versions of the packages involved."""
    settings = {k: v for k, v in asdict(judge).items() if k not in _IRRELEVANT}
    settings["device"] = judge.device.partition(":")[0]  # GPUs of one machine count as the same
    versions = {}
    for package in ("kernelward", "torch", "triton"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "none"
    return stable_hash({"settings": settings, "versions": versions})


def verdict_key(task: Task, protocol_hash: str, suite_hash: str | None, engine: str) -> str:
    """Key of a verdict: candidate, problem, suite, protocol, policy, engine, run key and epoch.

    Args:
        task: what is judged; its candidate is normalised (`completion.normalise`).
        protocol_hash: content hash of its protocol.
        suite_hash: content hash of the suite that the protocol uses; None where it uses none, or where the judge builds
            the default one (which follows from the problem, the policy and the versions).
        engine: `engine_fingerprint` of the judge, which the tolerance policy is a part of.
    """
    return stable_hash(
        {
            "candidate": sha256_text(task.candidate),
            "problem": task.problem.hash,
            "suite": suite_hash,
            "protocol": protocol_hash,
            "engine": engine,
            "run": hashlib.sha256(task.run_key).hexdigest(),
            "epoch": task.epoch,
            "entries": [task.all_entries, task.only_entry, task.seed, task.audit],
            "speed": task.speed,
        }
    )


class VerdictCache:
    """The most recently used verdicts, and behind them a store.

    A verdict that is none (`infra_error`, `unrefereeable`) is never kept: the next attempt may go better. Safe to use
    from several threads.

    Args:
        capacity: verdicts kept in memory.
        store: further verdicts, shared between processes.
    """

    def __init__(self, capacity: int, store: RunStore | None = None) -> None:
        self._capacity = capacity
        self._store = store
        self._lock = threading.Lock()
        self._recent: OrderedDict[str, Verdict] = OrderedDict()

    def __len__(self) -> int:
        return len(self._recent)

    def get(self, key: str) -> Verdict | None:
        """The verdict under a key, marked `cached`."""
        with self._lock:
            verdict = self._recent.get(key)
            if verdict is not None:
                self._recent.move_to_end(key)
                return verdict
        stored = self._store.get_verdict(key) if self._store is not None else None
        if stored is None:
            return None
        verdict = replace(Verdict.from_json(stored), cached=True)
        self._remember(key, verdict)
        return verdict

    def put(self, key: str, verdict: Verdict) -> None:
        """Keep a verdict if it is one."""
        if not verdict.verdict.decided:
            return
        self._remember(key, replace(verdict, cached=True))
        if self._store is not None:
            self._store.put_verdict(key, verdict.to_json())

    def drop(self, candidate: str, problem_hash: str) -> None:
        """Forget what was found about a candidate (the SHA-256 of its source): it turned out to be wrong."""
        with self._lock:
            for key, verdict in list(self._recent.items()):
                if verdict.candidate == candidate and verdict.problem_hash == problem_hash:
                    del self._recent[key]
        if self._store is not None:
            self._store.drop_verdicts(candidate, problem_hash)

    def _remember(self, key: str, verdict: Verdict) -> None:
        with self._lock:
            self._recent[key] = verdict
            self._recent.move_to_end(key)
            while len(self._recent) > self._capacity:
                self._recent.popitem(last=False)
