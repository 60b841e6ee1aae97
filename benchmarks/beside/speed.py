"""What the watcher costs the reward: verdicts a minute with it at work and without, by turns."""

import json
import math
import statistics
import time
from dataclasses import asdict, dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import toy_policy
from kernelward.reward.config import RewardConfig
from kernelward.reward.function import KernelReward
from scipy import stats

from .world import PROBLEMS, World, end, lines, until

GOAL = 0.9
MANY = "400"  # mutants of each substrate: more than it can measure meanwhile
PASS = "60s"  # the default


@dataclass(frozen=True, slots=True)
class Segment:
    """One stretch of time.

    Attributes:
        on: whether the watcher was at work.
        verdicts: candidates judged, none from a cache.
        cells: that the watcher filled meanwhile.
    """

    on: bool
    verdicts: int
    seconds: float
    cells: int

    @property
    def per_minute(self) -> float:
        """Verdicts a minute."""
        return 60.0 * self.verdicts / self.seconds


@dataclass(frozen=True, slots=True)
class Cost:
    """Over all pairs: verdicts a minute with the watcher over those without, geometric mean, 95 % interval (t)."""

    pairs: int
    ratio: float
    low: float
    high: float
    without: float
    cells_a_minute: float

    @classmethod
    def of(cls, segments: list[Segment]) -> "Cost":
        """From segments in pairs."""
        on, off = ([s for s in segments if s.on is at_work] for at_work in (True, False))
        logs = [math.log(a.per_minute / b.per_minute) for a, b in zip(on, off, strict=True)]
        mean, half = statistics.fmean(logs), 0.0
        if len(logs) > 1:
            half = float(stats.t.ppf(0.975, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
        cells = 60.0 * sum(s.cells for s in on) / sum(s.seconds for s in on)
        without = statistics.median(s.per_minute for s in off)
        return cls(len(logs), math.exp(mean), math.exp(mean - half), math.exp(mean + half), without, cells)


def compare(world: World, pairs: int, seconds: float) -> list[Segment]:
    """Segments off, on, on, off, off, on, ...; those of an earlier run of this world count (`segments.jsonl`)."""
    place = world.root / "segments.jsonl"
    found = [Segment(**row) for row in lines(place)]
    found = found[: len(found) // 2 * 2]
    texts, problems = candidates(world)
    config = RewardConfig.load(world.reward_config("speed", rotate_every=1, audit=0.02, store=None))
    reward = KernelReward(config)
    watcher = None
    try:
        step = _warm(reward, texts, problems, 1000 * len(found))
        while len(found) < 2 * pairs:
            pair, second = divmod(len(found), 2)
            on = (pair % 2 == 1) ^ (second == 1)
            if on and watcher is None:
                watcher = world.watch("--per-substrate", MANY, "--budget", PASS)
                until(partial(_settled, world, time.time()), "a pass that nobody waits for", watcher, patience=300.0)
            elif not on and watcher is not None:
                end(watcher)
                watcher = None
            segment, step = _segment(world, reward, texts, problems, step, seconds, on)
            found.append(segment)
            if len(found) % 2 == 0:
                with place.open("a") as file:
                    file.writelines(json.dumps(asdict(s)) + "\n" for s in found[-2:])
                print(f"  pair {pair + 1}: {found[-2].per_minute:.0f} and {found[-1].per_minute:.0f}", flush=True)
    finally:
        if watcher is not None:
            end(watcher)
        reward.close()
    return found


def candidates(world: World) -> tuple[list[str], list[str]]:
    """What the toy policy can write that is right or cheats, with the problems' files."""
    texts, problems = [], []
    heads = [p.text for p in toy_policy.PIECES if p.head]
    for piece in toy_policy.PIECES:
        name = piece.honest or piece.cheat
        if name in PROBLEMS:
            texts += [piece.text + head for head in heads]
            problems += [str(world.problems / f"{name}.py")] * len(heads)
    return texts, problems


def _warm(reward: KernelReward, texts: list[str], problems: list[str], step: int) -> int:
    for _ in range(2):
        step = _judge(reward, texts, problems, step)
    return step


def _judge(reward: KernelReward, texts: list[str], problems: list[str], step: int) -> int:
    reward(texts, problem=problems, trainer_state=SimpleNamespace(global_step=step), log_metric=lambda *_: None)
    return step + 1


def _segment(
    world: World, reward: KernelReward, texts: list[str], problems: list[str], step: int, seconds: float, on: bool
) -> tuple[Segment, int]:
    cells = len(world.cells())
    began, verdicts = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        step = _judge(reward, texts, problems, step)
        verdicts += len(texts)
    took = time.perf_counter() - began
    return Segment(on, verdicts, took, len(world.cells()) - cells), step


def _settled(world: World, began: float) -> bool:
    """Whether a second pass measures new mutants: the first is eager, as after an edit, and its cost is not meant."""
    found = world.published()
    return (
        found.get("time", 0.0) > began
        and found["pass"] > 1
        and not found["changed"]
        and bool(found["stale"]["mutants"])
    )


def show(cost: Cost) -> list[str]:
    """For people."""
    return [
        f"{cost.without:.0f} verdicts a minute without the watcher; with it at work {cost.ratio:.3f} of that "
        f"({cost.low:.3f} to {cost.high:.3f}, n = {cost.pairs} pairs), while it fills {cost.cells_a_minute:.0f} cells "
        "a minute"
    ]


def plain(segments: list[Segment], cost: Cost) -> dict[str, Any]:
    """For a JSON file."""
    return asdict(cost) | {"segments": [asdict(s) for s in segments], "within_goal": cost.ratio > GOAL}
