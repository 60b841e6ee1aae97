"""Coverage over training steps: the JSON Lines that a watcher appends to, one object per pass (`watch_publish`)."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...suites.errors import InputError

Counts = tuple[int, int]
"""(detected, witnessed) mutants."""
NOTHING: Counts = (0, 0)


@dataclass(frozen=True, slots=True)
class Point:
    """What coverage was at the end of one pass.

    Attributes:
        time: seconds since the epoch.
        step: of the training; None where it is not known (it had not begun).
        families: by family, of the mutants of our own substrates.
        bank: of mutants of kernels that the policy wrote.
        stale: share of the mutants that waited to be measured again.
        suites: names the suites in use together; "" where it is not known.
    """

    time: float
    step: int | None
    families: Mapping[str, Counts]
    bank: Counts = NOTHING
    stale: float = 0.0
    suites: str = ""

    @property
    def overall(self) -> Counts:
        """All families together."""
        return sum(d for d, _ in self.families.values()), sum(w for _, w in self.families.values())


@dataclass(frozen=True, slots=True)
class History:
    """The points of a file, in its order.

    Attributes:
        points: of a training where one is known, all others otherwise.
        before: passes before the training, which are left out.
        unread: lines that said nothing (a process that was killed leaves one).
    """

    points: tuple[Point, ...]
    before: int = 0
    unread: int = 0

    @property
    def by_step(self) -> bool:
        """Whether the points stand at training steps, not at times."""
        return bool(self.points) and all(p.step is not None for p in self.points)

    def at(self, point: Point) -> float:
        """Where a point stands on the axis: its step, or its time."""
        return float(point.step) if self.by_step and point.step is not None else point.time


def read_history(path: Path) -> History:
    """Read a history: per line `time`, `step`, `families` {family: {`detected`, `witnessed`}}, `bank` {`overall`},
    `stale` {`share`} and `suites` {problem: {`hash`}}, of which the last three may be missing.

    Raises:
        InputError: the file cannot be read, or no line of it is a point.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"--history {path}: cannot read it: {error.strerror or error}") from error
    found = [_point(line) for line in lines if line.strip()]
    points = tuple(p for p in found if p is not None)
    if found and not points:
        raise InputError(f"--history {path}: no line has `time` and `families`; give a watcher's history.jsonl")
    trained = tuple(p for p in points if p.step is not None)
    kept = trained or points
    return History(kept, len(points) - len(kept), len(found) - len(points))


def _point(line: bytes) -> Point | None:
    try:
        value: Any = json.loads(line)
        step, bank = value.get("step"), (value.get("bank") or {}).get("overall")
        suites = value.get("suites") or {}
        point = Point(
            time=float(value["time"]),
            step=None if step is None else int(step),
            families={str(name): _counts(counts) for name, counts in value["families"].items()},
            bank=NOTHING if bank is None else _counts(bank),
            stale=float((value.get("stale") or {}).get("share", 0.0)),
            suites=" ".join(f"{name}:{suites[name]['hash']}" for name in sorted(suites)),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return None
    return point if math.isfinite(point.time) and math.isfinite(point.stale) else None


def _counts(counts: Mapping[str, Any]) -> Counts:
    detected, witnessed = int(counts["detected"]), int(counts["witnessed"])
    if not 0 <= detected <= witnessed:
        raise ValueError("more detected than witnessed")
    return detected, witnessed
