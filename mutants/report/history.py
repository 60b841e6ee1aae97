"""Coverage over training steps: the JSON Lines that the watcher publishes."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...suites.errors import InputError


@dataclass(frozen=True, slots=True)
class Point:
    """What coverage was at one time.

    Attributes:
        time: seconds since the epoch.
        step: of the training; None where it is not known.
        families: family -> (detected, witnessed).
        stale: share of the cells that wait to be measured again; None where it is not known.
        suite: hash of the suites in use, or "".
    """

    time: float
    step: int | None
    families: Mapping[str, tuple[int, int]]
    stale: float | None = None
    suite: str = ""

    @property
    def overall(self) -> tuple[int, int]:
        """(detected, witnessed) over all families."""
        return sum(d for d, _ in self.families.values()), sum(w for _, w in self.families.values())


@dataclass(frozen=True, slots=True)
class History:
    """All points in the order of the file, and how many lines said nothing (a watcher that was killed leaves one)."""

    points: tuple[Point, ...]
    unread: int = 0

    @property
    def by_step(self) -> bool:
        """Whether every point knows its training step."""
        return bool(self.points) and all(p.step is not None for p in self.points)

    def at(self, point: Point) -> float:
        """Where a point stands on the axis: its step, or its time."""
        return float(point.step) if self.by_step and point.step is not None else point.time


def read_history(path: Path) -> History:
    """Read a history: one object per line with `time`, `step`, `coverage` {family: {`detected`, `witnessed`}}, `stale`
    and `suite`.

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
        raise InputError(
            f"--history {path}: no line has `time` and `coverage`; give the file that the watcher publishes"
        )
    return History(points, len(found) - len(points))


def _point(line: bytes) -> Point | None:
    try:
        value: Any = json.loads(line)
        step, stale = value.get("step"), value.get("stale")
        families = {
            str(name): (int(counts["detected"]), int(counts["witnessed"])) for name, counts in value["coverage"].items()
        }
        point = Point(
            float(value["time"]),
            None if step is None else int(step),
            families,
            None if stale is None else float(stale),
            str(value.get("suite") or ""),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return None
    return point if math.isfinite(point.time) else None
