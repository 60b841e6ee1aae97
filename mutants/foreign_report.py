"""What a foreign checker's answers come to, beside what protocols make of the same mutants."""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..suites.protocol import load_protocol
from .coverage import OFFICIAL_PROTOCOLS, select_suite
from .coverage_cells import Fates, ProblemCells, Truth, cell_fates, protocol_fates, together, witnesses
from .coverage_report import OURS, SUITE_K, By, Share
from .coverage_table import Rows, percent
from .foreign import Answers, Plan
from .foreign_checker import Said

FORMAT = 1
_LISTED = 20


@dataclass(frozen=True, slots=True)
class Line:
    """One checker over the mutants that the foreign one has been asked about.

    Attributes:
        share: over all of them.
        held_out: over those that chose no suite (suites only).
        groups: by family, problem, operator or backend.
    """

    name: str
    share: Share
    groups: Mapping[str, Share]
    held_out: Share | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """What was found.

    Attributes:
        witnessed: mutants that count, all of them.
        lost: witnessed ones that cannot be made any more.
        set_aside: asked for nothing, because the checker did not pass their substrate.
        lines: the foreign checker first.
        rejected: correct kernels that it rejects, of those it gave a verdict on.
        zeros: kernels that answer zero and that it fails, of those it gave a verdict on.
        false_rejections, zeros_passed, no_verdict: (name, what was said).
        missed: ids of mutants that it passes -> whether our suites of `SUITE_K` entries detect them.
        seconds: per answer, the median; NaN of nothing.
    """

    checker: str
    by: By
    device_class: str
    witnessed: int
    lost: int
    set_aside: int
    lines: tuple[Line, ...]
    rejected: Share
    zeros: Share
    false_rejections: tuple[tuple[str, str], ...]
    zeros_passed: tuple[str, ...]
    no_verdict: tuple[tuple[str, str], ...]
    missed: Mapping[str, bool]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values, documented at `foreign_command.run_measure`."""
        return {
            "format": FORMAT,
            "checker": self.checker,
            "by": self.by,
            "device_class": self.device_class,
            "witnessed": self.witnessed,
            "lost": self.lost,
            "set_aside": self.set_aside,
            "protocols": [
                {
                    "name": line.name,
                    "ours": line.share.to_dict(),
                    "held_out": None if line.held_out is None else line.held_out.to_dict(),
                    "groups": {label: share.to_dict() for label, share in line.groups.items()},
                }
                for line in self.lines
            ],
            "rejected": self.rejected.to_dict(),
            "zeros": self.zeros.to_dict(),
            "false_rejections": [{"substrate": name, "detail": detail} for name, detail in self.false_rejections],
            "zeros_passed": list(self.zeros_passed),
            "no_verdict": [{"candidate": name, "detail": detail} for name, detail in self.no_verdict],
            "missed": dict(self.missed),
            "seconds": None if math.isnan(self.seconds) else round(self.seconds, 3),
        }


def witnessed_ids(problems: Sequence[ProblemCells]) -> dict[str, set[str]]:
    """By hash of the problem, ids of the mutants witnessed at our tolerances."""
    return {
        cells.hash: {m.uid for m, fate in zip(cells.mutants, witnesses(cells, Truth()), strict=True) if fate == 1}
        for cells in problems
    }


def count(problems: Sequence[ProblemCells], plan: Plan, answers: Answers, by: By, device_class: str) -> Measured:
    """Count answers; mutants that were not asked yet are in no denominator."""
    said = {q.key: answers.said[q.key] for q in plan.questions if q.key in answers.said}
    clean, zeros = (
        [(q.name, said[q.key]) for q in plan.questions if q.kind == kind and q.key in said]
        for kind in ("clean", "zeros")
    )
    passed = {id for (kind, id), one in said.items() if kind == "clean" and one.passes is True}
    mutants = [q for q in plan.questions if q.kind == "mutant" and ("clean", q.substrate[:16]) in said]
    fates = {q.id: _fate(said[q.key].passes) for q in mutants if q.substrate[:16] in passed and q.key in said}
    masks = [np.array([m.uid in fates for m in cells.mutants], np.bool_) for cells in problems]

    def joined(ask: Callable[[ProblemCells], NDArray[Any]]) -> NDArray[Any]:
        return np.concatenate([ask(cells)[mask] for cells, mask in zip(problems, masks, strict=True)])

    labels = joined(lambda cells: np.array(cells.labels(by), dtype=object))
    ids = joined(lambda cells: np.array([m.uid for m in cells.mutants], dtype=object))
    foreign = np.array([fates[id] for id in ids], np.int8)
    ours = joined(_suite_fates)
    lines = [_line(answers.checker, foreign, labels)]
    lines += [_line(name, joined(_protocol(name)), labels) for name in OFFICIAL_PROTOCOLS]
    lines.append(_line(f"{OURS}@{SUITE_K}", ours, labels, joined(lambda cells: cells.held)))
    seconds = [one.seconds for one in said.values()]
    return Measured(
        checker=answers.checker,
        by=by,
        device_class=device_class,
        witnessed=plan.mutants,
        lost=plan.lost,
        set_aside=sum(q.substrate[:16] not in passed for q in mutants),
        lines=tuple(lines),
        rejected=_failed(clean),
        zeros=_failed(zeros),
        false_rejections=tuple((name, one.detail) for name, one in clean if one.passes is False),
        zeros_passed=tuple(name for name, one in zeros if one.passes is True),
        no_verdict=tuple((q.name, said[q.key].detail) for q in plan.questions if _silent(said.get(q.key))),
        missed={id: bool(o == 1) for id, f, o in zip(ids, foreign, ours, strict=True) if f == 0},
        seconds=statistics.median(seconds) if seconds else math.nan,
    )


def _fate(passes: bool | None) -> int:
    return -1 if passes is None else int(not passes)


def _silent(said: Said | None) -> bool:
    return said is not None and said.passes is None


def _suite_fates(cells: ProblemCells) -> Fates:
    """What a suite of `SUITE_K` entries, chosen on one half of the mutants, says of all."""
    _, columns = select_suite(cells, SUITE_K)
    return together(cell_fates(cells, Truth())[:, columns])


def _protocol(name: str) -> Callable[[ProblemCells], Fates]:
    spec = load_protocol(name)
    return lambda cells: protocol_fates(cells, spec)


def _share(fates: NDArray[np.int8]) -> Share:
    unknown = int((fates < 0).sum())
    return Share(int((fates == 1).sum()), len(fates) - unknown, unknown)


def _failed(answers: Sequence[tuple[str, Said]]) -> Share:
    verdicts = [said.passes for _, said in answers if said.passes is not None]
    return Share(verdicts.count(False), len(verdicts), len(answers) - len(verdicts))


def _line(name: str, fates: NDArray[np.int8], labels: NDArray[Any], held: NDArray[np.bool_] | None = None) -> Line:
    groups = {str(label): _share(fates[labels == label]) for label in sorted(set(labels))}
    return Line(name, _share(fates), groups, None if held is None else _share(fates[held]))


def tables(found: Measured) -> Iterator[Rows]:
    """The report's tables, in order."""
    yield Rows(
        "Detected of the witnessed mutants that were put to the checker",
        ("checker", "n", "detected", "held-out half", "unknown"),
        tuple(
            (
                line.name,
                str(line.share.of),
                percent(line.share, True),
                percent(line.held_out, True),
                str(line.share.unknown),
            )
            for line in found.lines
        ),
    )
    yield Rows(
        f"By {found.by}",
        (found.by, "n", *("the checker" if i == 0 else line.name for i, line in enumerate(found.lines))),
        tuple(
            (label, str(share.of), percent(share, True), *(percent(line.groups[label]) for line in found.lines[1:]))
            for label, share in found.lines[0].groups.items()
        ),
    )
    yield Rows(
        "Controls",
        ("what", "n", "rejected", "no verdict"),
        tuple(
            (what, str(share.of), f"{share.detected}: {percent(share, True)}", str(share.unknown))
            for what, share in (
                ("correct kernels (false rejections)", found.rejected),
                ("kernels that answer zero", found.zeros),
            )
        ),
    )


def summary(found: Measured) -> Iterator[str]:
    """The lines around the tables."""
    asked = found.lines[0].share
    rest = found.witnessed - asked.of - asked.unknown - found.set_aside
    yield (
        f"{found.checker}: {asked.of} of {found.witnessed} mutants witnessed on {found.device_class} have a verdict, "
        f"{asked.unknown} none; {found.set_aside} set aside (their correct kernel is not passed), {rest} wait"
    )
    if found.lost:
        yield f"{found.lost} witnessed mutants cannot be made any more: their kernels or operators have changed"
    only_ours = sum(found.missed.values())
    if found.missed:
        yield f"it passes {len(found.missed)} mutants, of which {OURS}@{SUITE_K} detects {only_ours}"
    if not math.isnan(found.seconds):
        yield f"seconds per answer: {found.seconds:.2f} (median)"
    for title, listed in (
        ("correct kernels that it rejects", [f"{name}: {_last_line(why)}" for name, why in found.false_rejections]),
        ("kernels that answer zero and that it passes", list(found.zeros_passed)),
        ("no verdict", [f"{name}: {_last_line(why)}" for name, why in found.no_verdict]),
    ):
        if listed:
            yield f"{title} ({len(listed)}):"
            yield from (f"  {text}" for text in listed[:_LISTED])
            if len(listed) > _LISTED:
                yield f"  ... and {len(listed) - _LISTED} more (--json lists all)"


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "-"
