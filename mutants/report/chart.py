"""Charts of coverage over training steps, as SVG that needs no script: they stand on paper too."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..coverage_report import Share
from .history import NOTHING, Counts, History, Point

WIDTH, HEIGHT = 300.0, 120.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 34.0, 8.0, 8.0, 18.0


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis: where, and its text."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """One panel of `WIDTH` x `HEIGHT`; all places are in its coordinates.

    Attributes:
        title: a family, or `all families`.
        line: `points` of the polyline of shares.
        band: `points` of the polygon of 95 % intervals.
        dots: the points alone, each with what it says.
        changes: where the suite became another.
        y, x: ticks.
        summary: the chart in words.
    """

    title: str
    line: str
    band: str
    dots: tuple[tuple[float, float, str], ...]
    changes: tuple[float, ...]
    y: tuple[Tick, ...]
    x: tuple[Tick, ...]
    summary: str


def charts(history: History) -> tuple[Chart, ...]:
    """All families together, kernels that the policy wrote, then one panel per family; none of an empty history."""
    if not history.points:
        return ()
    families = sorted({name for p in history.points for name in p.families})

    def of(name: str) -> Callable[[Point], Counts]:
        return lambda point: point.families.get(name, NOTHING)

    panels: list[tuple[str, Callable[[Point], Counts]]] = [
        ("all families", lambda point: point.overall),
        ("kernels that the policy wrote", lambda point: point.bank),
        *((name, of(name)) for name in families),
    ]
    found = (_chart(title, history, counts) for title, counts in panels)
    return tuple(c for c in found if c is not None)


def _chart(title: str, history: History, counts: Callable[[Point], Counts]) -> Chart | None:
    known = [(p, Share(*counts(p))) for p in history.points if counts(p)[1] > 0]
    if not known:
        return None
    places = [history.at(p) for p in history.points]
    first, last = min(places), max(places)
    lowest = min(share.interval[0] for _, share in known)
    floor = max(0.0, int(lowest * 10) / 10)  # from the ten percent below

    def x(place: float) -> float:
        across = (place - first) / (last - first) if last > first else 0.5
        return round(_LEFT + across * (WIDTH - _LEFT - _RIGHT), 1)

    def y(share: float) -> float:
        return round(_TOP + (1 - share) / (1 - floor or 1) * (HEIGHT - _TOP - _BOTTOM), 1)

    line = [(x(history.at(p)), y(s.share)) for p, s in known]
    upper = [(x(history.at(p)), y(s.interval[1])) for p, s in known]
    lower = [(x(history.at(p)), y(s.interval[0])) for p, s in reversed(known)]
    word = "step" if history.by_step else "second"

    def says(p: Point, s: Share) -> str:
        return f"{word} {_place(history, p)}: {100 * s.share:.1f} % ({s.detected} of {s.of})"

    suites = [(history.at(p), p.suites) for p in history.points]
    changed = [at for (_, old), (at, new) in itertools.pairwise(suites) if old and new and old != new]
    worst_point, worst = min(known, key=lambda item: item[1].share)
    return Chart(
        title=title,
        line=_points(line),
        band=_points([*upper, *lower]),
        dots=tuple((*at, says(*item)) for at, item in zip(line, known, strict=True)),
        changes=tuple(x(at) for at in changed),
        y=tuple(Tick(y(v), f"{100 * v:.0f}") for v in (floor, (floor + 1) / 2, 1.0)),
        x=tuple(Tick(x(at), f"{at - (0 if history.by_step else first):.0f}") for at in dict.fromkeys((first, last))),
        summary=f"last: {says(*known[-1])}; lowest: {says(worst_point, worst)}",
    )


def _place(history: History, point: Point) -> str:
    return f"{history.at(point) - (0 if history.by_step else history.points[0].time):.0f}"


def _points(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{a:g},{b:g}" for a, b in places)
