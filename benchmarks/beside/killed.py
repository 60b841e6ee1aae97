"""kill -9 of trainer, watcher, a pass, or both, at random moments: what is lost, what is there twice, what goes on."""

import hashlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from contextlib import closing
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from .trainer import last_checkpoint
from .world import World, end, lines, until

WHO = ("trainer", "watcher", "both", "pass")
MORE = 1  # mutants of each substrate that are new in every round
SAVE_STEPS = 2
LEFT_S = 20.0  # that what a killed process started may take to end
Popen = subprocess.Popen[bytes]


@dataclass(slots=True)
class Outcome:
    """What the rounds showed; every list ought to be empty.

    Attributes:
        kills: who was killed how often.
        at: seconds after the processes were (re)started.
        steps: the trainer's step at each of its kills, and the one that it went on from.
        wrong: what was lost, damaged or there twice.
        cells, missing, surplus, otherwise: of the matrix, against one that was filled without a kill: how many cells,
            which are lacking or too many, and how many have another class.
        kernels, samples: in the bank and in the audit log at the end.
    """

    kills: Counter[str] = field(default_factory=Counter)
    at: list[float] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    cells: int = 0
    missing: int = 0
    surplus: int = 0
    otherwise: int = 0
    kernels: int = 0
    samples: int = 0

    @property
    def whole(self) -> bool:
        """Nothing lost and nothing double."""
        return not (self.wrong or self.missing or self.surplus)


@dataclass(slots=True)
class _Both:
    """The two processes of a round."""

    world: World
    folder: Path
    config: Path
    per_substrate: int
    trainer: Popen | None = None
    watcher: Popen | None = None

    def start(self) -> None:
        """Start whatever does not run."""
        if self.watcher is None or self.watcher.poll() is not None:
            self.watcher = self.world.watch_at_once(per_substrate=self.per_substrate)
        if self.trainer is None or self.trainer.poll() is not None:
            self.trainer = self.world.train(self.config, self.folder, save_steps=SAVE_STEPS)

    def kill(self, who: str) -> None:
        """End it at once."""
        assert self.trainer is not None
        assert self.watcher is not None
        if who in ("trainer", "both"):
            self.trainer.kill()
        if who in ("watcher", "both"):
            self.watcher.kill()
        if who in ("trainer", "both"):
            self.trainer.wait()
        if who in ("watcher", "both"):
            self.watcher.wait()
        if who == "pass":
            for pid in _children(self.watcher.pid):
                os.kill(pid, signal.SIGKILL)


def survive(world: World, base: World, rounds: int, seed: int) -> Outcome:
    """Train and watch, kill by turns, restart, and hold the stores against what they held before.

    Args:
        base: the calibrated world that `world` is a copy of.
    """
    found, chance = Outcome(), random.Random(seed)
    config = world.reward_config("reward", audit=0.5, run_key=f"killed {seed}")
    both = _Both(world, world.root / "training", config, world.per_substrate)
    before = _Stores.of(world)
    try:
        for number in range(rounds):
            both.per_substrate += MORE
            if both.watcher is not None:
                end(both.watcher)
            both.start()
            started = time.monotonic()
            who = WHO[number % len(WHO)]
            if number >= len(WHO):  # the first kills come while the processes start, the others while they work
                _both_at_work(both, time.time())
            time.sleep(chance.uniform(0.5, 8.0))
            before.check(world, found.wrong)
            step = _last_step(both.folder)
            both.kill(who)
            found.kills[who] += 1
            found.at.append(round(time.monotonic() - started, 1))
            print(f"  {number + 1}: {who} killed at step {step} after {found.at[-1]:.0f} s", flush=True)
            if who in ("trainer", "both"):
                place = last_checkpoint(both.folder)
                found.steps.append((step, int(place.name.rpartition("-")[2]) if place else 0))
            _nobody_left(both, found)
            before.check(world, found.wrong)
        _to_the_end(both)
    finally:
        for process in (both.trainer, both.watcher):
            if process is not None:
                end(process)
    before.check(world, found.wrong)
    _check_end(both, found)
    _hold_against_undisturbed(both, base, found)
    return found


def _children(pid: int) -> list[int]:
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(place.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(place.parent.name))
        except OSError:
            continue
    return found


def _inside(world: World) -> list[int]:
    """Processes that work in the world's folder or below."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if Path(os.readlink(place / "cwd")).is_relative_to(world.root):
                found.append(int(place.name))
        except OSError:
            continue
    return found


def _family(processes: list[Popen | None]) -> set[int]:
    pids = [p.pid for p in processes if p is not None and p.poll() is None]
    found: set[int] = set()
    while pids:
        pid = pids.pop()
        if pid not in found:
            found.add(pid)
            pids += _children(pid)
    return found


def _nobody_left(both: _Both, found: Outcome) -> None:
    """What a killed process started has to end by itself."""

    def left() -> set[int]:
        return set(_inside(both.world)) - _family([both.trainer, both.watcher])

    deadline = time.monotonic() + LEFT_S
    while left() and time.monotonic() < deadline:
        time.sleep(0.5)
    if left():
        found.wrong.append(f"{len(left())} processes are left {LEFT_S:.0f} s after a kill")


def _last_step(folder: Path) -> int:
    rows = lines(folder / "log.jsonl")
    return rows[-1]["step"] if rows else 0


def _both_at_work(both: _Both, began: float) -> None:
    def at_work() -> bool:
        rows, published = lines(both.folder / "log.jsonl"), both.world.published()
        return bool(rows) and rows[-1]["time"] > began and published.get("time", 0.0) > began

    until(at_work, "a step and a publication", *(p for p in (both.trainer, both.watcher) if p is not None))


def _to_the_end(both: _Both) -> None:
    """Let the watcher finish its work and the training take some steps more."""
    both.start()
    began, step = time.time(), _last_step(both.folder)

    def done() -> bool:
        published = both.world.published()
        settled = published.get("time", 0.0) > began and not published["stale"]["mutants"]
        return settled and _last_step(both.folder) >= step + 4

    until(done, "the end of the work", *(p for p in (both.trainer, both.watcher) if p is not None))
    (both.folder / "stop").touch()
    assert both.trainer is not None
    until(lambda: both.trainer is None or both.trainer.poll() is not None, "the training's end")


@dataclass(slots=True)
class _Stores:
    """What the stores held when they were last looked at; nothing of it may go or change."""

    cells: dict[Any, Any] = field(default_factory=dict)
    kernels: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    samples: dict[str, str] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, world: World) -> "_Stores":
        found = cls()
        found.check(world, [])
        return found

    def check(self, world: World, wrong: list[str]) -> None:
        """Look again, and say what is not as it was."""
        for place in (world.matrix, world.bank, world.store):
            if place.is_file():
                answer = _rows(place, "PRAGMA integrity_check")
                if answer != [("ok",)]:
                    wrong.append(f"{place.name}: {answer[:3]}")
        cells = world.cells()
        banked = _rows(world.bank, "SELECT hash, source, problem_hash, accepted_at FROM kernels")
        kernels = {row[0]: row[1:] for row in banked}
        samples = dict(_rows(world.store, "SELECT key, body FROM samples"))
        history = lines(world.out / "history.jsonl")
        stores: tuple[tuple[str, dict[Any, Any], dict[Any, Any]], ...] = (
            ("cells", self.cells, cells),
            ("kernels", self.kernels, kernels),
            ("samples", self.samples, samples),
        )
        for name, old, new in stores:
            changed = sum(new.get(key) != value for key, value in old.items())
            if changed:
                wrong.append(f"{changed} {name} were lost or replaced")
        if history[: len(self.history)] != self.history:
            wrong.append("a line of the history was lost")
        totals = [row["evaluations_total"] for row in history]
        if totals != sorted(totals):
            wrong.append("evaluations_total falls")
        self.cells, self.kernels, self.samples, self.history = cells, kernels, samples, history


def _rows(place: Path, statement: str) -> list[tuple[Any, ...]]:
    if not place.is_file():
        return []
    try:
        with closing(sqlite3.connect(f"file:{place}?mode=ro", uri=True, timeout=30.0)) as connection:
            return connection.execute(statement).fetchall()
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return []
        raise


def _check_end(both: _Both, found: Outcome) -> None:
    """All accepted kernels are banked, all samples judged, the history complete, the steps without a gap."""
    world = both.world
    banked = {hashlib.sha256(r[0].encode()).hexdigest() for r in _rows(world.bank, "SELECT source FROM kernels")}
    verdicts = [json.loads(r[0]) for r in _rows(world.store, "SELECT body FROM verdicts")]
    accepted = {v["candidate"] for v in verdicts if v["verdict"] == "correct"}
    if accepted - banked:
        found.wrong.append(f"{len(accepted - banked)} of {len(accepted)} accepted kernels are not in the bank")
    pending = _rows(world.store, "SELECT key FROM pending")
    if pending:
        found.wrong.append(f"{len(pending)} samples were not judged")
    double = [n for (n,) in _rows(world.store, "SELECT count(*) FROM samples GROUP BY key") if n > 1]
    if double:
        found.wrong.append(f"{len(double)} samples are there twice")
    total, cells = lines(world.out / "history.jsonl")[-1]["evaluations_total"], len(world.cells())
    if total != cells:
        found.wrong.append(f"the history counts {total} evaluations, the matrix has {cells} cells")
    steps = [row["step"] for row in lines(both.folder / "log.jsonl") if "reward" in row]
    backwards = [(a, b) for a, b in pairwise(steps) if b != a + 1]
    if len(backwards) > len(found.steps) or any(b > a + 1 for a, b in backwards):
        found.wrong.append(f"the trainer's steps: {backwards}")
    found.kernels, found.samples = len(banked), len(_rows(world.store, "SELECT key FROM samples"))


def _hold_against_undisturbed(both: _Both, base: World, found: Outcome) -> None:
    """The same work without a kill gives the same cells."""
    world, other = both.world, World(both.world.root / "undisturbed", both.per_substrate)
    shutil.copytree(base.root, other.root)
    log = other.root / "watch.log"
    watcher = other.watch_at_once(budget_s=1200.0)
    try:
        began = time.time()
        until(
            lambda: (
                other.published().get("time", 0.0) > began
                and not other.published()["stale"]["mutants"]
                and other.published()["evaluations"]
            ),
            f"the undisturbed matrix (see {log})",
            watcher,
        )
    finally:
        end(watcher)
    there, undisturbed = _by_name(world), _by_name(other)
    found.cells = len(undisturbed)
    found.missing, found.surplus = len(undisturbed.keys() - there.keys()), len(there.keys() - undisturbed.keys())
    found.otherwise = sum(there[k] != undisturbed[k] for k in there.keys() & undisturbed.keys())


def _by_name(world: World) -> dict[tuple[str, ...], str]:
    statement = (
        "SELECT m.uid, e.uid, c.variant, c.class FROM cells c JOIN mutants m ON m.id = c.mutant "
        "JOIN entries e ON e.id = c.entry WHERE m.origin = 'substrate'"
    )
    return {row[:3]: row[3] for row in _rows(world.matrix, statement)}


def show(found: Outcome) -> list[str]:
    """For people."""
    kills = ", ".join(f"{who} {n}" for who, n in found.kills.items())
    whole = "nothing lost, nothing double" if found.whole else "NOT whole"
    return [
        f"{sum(found.kills.values())} kills ({kills}): {whole}; "
        f"{found.cells} cells as without a kill, {found.missing} missing, {found.surplus} too many, "
        f"{found.otherwise} of another class; {found.kernels} kernels banked, {found.samples} samples audited",
        *found.wrong,
    ]


def plain(found: Outcome) -> dict[str, Any]:
    """For a JSON file."""
    return asdict(found) | {"kills": dict(found.kills), "whole": found.whole}
