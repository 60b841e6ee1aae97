"""How soon an edit shows in the trainer's log, and which cells are evaluated for it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from kernelward.suites.entry import Entry
from kernelward.suites.problem import find_problem
from kernelward.suites.suite import SuiteEntry, load_suite
from kernelward.suites.tolerance import TolerancePolicy
from kernelward.suites.validity import admit

from .world import World, end, lines, running, until

GOAL_S = 60.0
_CLOCK_S = 0.3  # between a metric's time and the log line's


@dataclass(frozen=True, slots=True)
class Followed:
    """What became of one edit.

    Attributes:
        kind: what was edited.
        published_s: seconds from the edit to the first publication that knows of it.
        logged_s: seconds from the edit to the trainer's first log line with that.
        settled_s: seconds from the edit to the trainer's first log line with all of it measured.
        stale: mutants that the edit made stale.
        evaluated: cells that were evaluated for it.
        outside: those of them that the edit did not make stale.
        rewritten: cells of before that were evaluated again.
        overall: coverage before and after, and the mutants witnessed.
    """

    kind: str
    published_s: float
    logged_s: float
    settled_s: float
    stale: int
    evaluated: int
    outside: int
    rewritten: int
    overall: tuple[str, str]

    @property
    def exact(self) -> bool:
        """Only stale cells, and each of them once."""
        return not self.outside and not self.rewritten


def follow(world: World, at_once: bool) -> list[Followed]:
    """Train, watch, and edit a suite, an operator and a substrate while both go on.

    Args:
        at_once: the watcher without its low priority.
    """
    suite_edit = _suite_edit(world)
    with training(world, at_once) as log:
        return [
            _followed(world, log, "suites", suite_edit),
            _followed(world, log, "operators", lambda: _operator_edit(world)),
            _followed(world, log, "substrates", lambda: _substrate_edit(world)),
        ]


@contextmanager
def training(world: World, at_once: bool) -> Iterator[Path]:
    """A training with a watcher beside it, both at work; the trainer's log."""
    folder = world.root / "training"
    config = world.reward_config("reward")
    watch = world.watch_at_once if at_once else world.watch
    with running(world.train(config, folder)) as trainer, running(watch()) as watcher:
        log = folder / "log.jsonl"
        since = time.time()
        until(lambda: _first(log, since, since, settled=True), "a training with coverage", trainer, watcher)
        yield log
        (folder / "stop").touch()
        until(lambda: trainer.poll() is not None, "the training's end")
        end(watcher)
        if trainer.returncode:
            raise RuntimeError(f"the training ended with {trainer.returncode}: see {folder / 'trainer.out'}")


def _followed(world: World, log: Path, kind: str, edit: Callable[[], object]) -> Followed:
    before, ready, overall = world.cells(), world.ready(), _overall(world)
    passes = len(lines(world.out / "history.jsonl"))
    began = time.time()
    edit()
    found = until(lambda: _knows(world.published(), kind, began), f"a publication that knows of the {kind}")
    published = found["time"]
    line = until(lambda: _first(log, began, published), f"a log line that knows of the {kind}")
    settled = until(lambda: _first(log, began, published, settled=True), f"a log line with the {kind} measured")
    until(lambda: _done(world, passes, kind), "the end of the pass")
    after = world.cells()
    new = {key: value for key, value in after.items() if key not in before}
    added = set(world.entry_ids()) - {key[1] for key in before}
    counted = world.ready()
    stale = {key[0] for key in new}
    fresh = {mutant for mutant in counted if mutant not in ready}
    outside = [key for key in new if not (key[1] in added if kind == "suites" else key[0] in fresh)]
    evaluated = sum(row["evaluations"] for row in lines(world.out / "history.jsonl")[passes:])
    return Followed(
        kind=kind,
        published_s=round(published - began, 1),
        logged_s=round(line["time"] - began, 1),
        settled_s=round(settled["time"] - began, 1),
        stale=len(stale),
        evaluated=evaluated,
        outside=len(outside) + abs(evaluated - len(new)),
        rewritten=sum(after.get(key) != value for key, value in before.items()),
        overall=(overall, _overall(world)),
    )


def _knows(published: dict[str, Any], kind: str, began: float) -> dict[str, Any] | None:
    knows = published.get("time", 0.0) > began and kind in published.get("changed", ())
    return published if knows else None


def _first(log: Path, began: float, published: float, settled: bool = False) -> dict[str, Any] | None:
    """The trainer's first log line with a publication of that time or a later one."""
    for row in lines(log):
        age = row.get("kernelward/coverage_age_s")
        if row["time"] < began or age is None or "reward" not in row:
            continue
        if row["time"] - age >= published - _CLOCK_S and not (settled and row.get("kernelward/stale_share")):
            return row
    return None


def _done(world: World, passes: int, kind: str) -> bool:
    rows = lines(world.out / "history.jsonl")[passes:]
    return any(kind in row["changed"] for row in rows) and not rows[-1]["stale"]["mutants"]


def _overall(world: World) -> str:
    found = world.published().get("overall") or {}
    return f"{found.get('detected')} of {found.get('witnessed')}"


def _suite_edit(world: World) -> Callable[[], object]:
    """A further entry, which is in no pool, for the suite of ReLU."""
    problem = find_problem(str(world.problems / "relu.py"))
    place = next(p for p in sorted(world.suites.rglob("*.yaml")) if load_suite(p).problem_hash == problem.hash)
    suite = load_suite(place)
    shape = next(item.entry.constants for item in suite.entries if item.entry.constants)
    entry = Entry.make("normal", params={"sigma": 1.7}, constants=dict(shape))
    answer = admit(problem, entry, torch.device("cpu"), TolerancePolicy.parse(suite.policy))
    if not answer.admitted or answer.measured is None:
        raise RuntimeError(f"{entry.id} is not admitted: {answer.reason}")
    better = replace(suite, entries=(*suite.entries, SuiteEntry(entry, (answer.measured,))), coverage=None)
    return lambda: place.write_text(better.to_yaml())


def _operator_edit(world: World) -> None:
    """The operator `minus2plus` makes products from now on."""
    _replace(world.package / "mutants" / "operators" / "cuda" / "arithmetic.py", '_swap("-", "+")', '_swap("-", "*")')


def _substrate_edit(world: World) -> None:
    """ReLU's kernel runs with half as many threads a block from now on."""
    place = world.substrates / "cuda" / "relu__vec4.py"
    _replace(place, "(wanted + 255) / 256, 256>>>", "(wanted + 127) / 128, 128>>>")


def _replace(place: Path, old: str, new: str) -> None:
    text = place.read_text()
    if text.count(old) != 1:
        raise RuntimeError(f"{place}: {old!r} is there {text.count(old)} times")
    place.write_text(text.replace(old, new))


def show(found: list[Followed]) -> list[str]:
    """One line an edit."""
    return [
        f"{f.kind}: published after {f.published_s:.1f} s, in the trainer's log after {f.logged_s:.1f} s, all measured "
        f"there after {f.settled_s:.1f} s; {f.stale} stale mutants, {f.evaluated} cells evaluated, {f.outside} of them "
        f"not stale, {f.rewritten} of before evaluated again; detected {f.overall[0]} -> {f.overall[1]}"
        for f in found
    ]


def plain(found: list[Followed]) -> list[dict[str, Any]]:
    """For a JSON file."""
    return [asdict(f) | {"exact": f.exact, "in_time": f.logged_s <= GOAL_S} for f in found]
