"""What is put to a kernel and what it shows: the values of one row of the kill matrix."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from ..reward.compare_reply import FINDINGS
from ..reward.sandbox.session import RunReply
from ..reward.verdict import Outcome
from ..suites.compare import allclose_margin, normalised_error
from ..suites.entry import Entry
from ..suites.oracle import Truth
from ..suites.validity import Measured

CellClass = Literal["pass", "value", "crash", "hang", "race", "refused"]
Variant = Literal["plain", "strict"]

SEEDS = 3  # a kill has to hold in so many of so many draws
OFFICIAL_TOLERANCE = 1e-2
_SEVERITY = {"pass": 0, "refused": 1, "value": 2, "race": 3, "hang": 4, "crash": 5}


@dataclass(frozen=True, slots=True)
class Question:
    """One entry as it is put to a kernel.

    Attributes:
        entry: the recipe.
        measured: the gate's measurements; None for the entries of official protocols.
        variant: `plain`: one run as a GPU would do it; `strict`: adversarial schedules, poison, guards.
        races: whether a strict question runs the race check in any case. What races depends on the shape and hardly on
            the values, so one entry of each shape asks for it, and the others where a race was seen.
    """

    entry: Entry
    measured: Measured | None = None
    variant: Variant = "strict"
    races: bool = False


@dataclass(frozen=True, slots=True)
class CellResult:
    """What one entry showed about one kernel.

    Attributes:
        entry: id.
        variant: as the question's.
        seeds: over how many draws.
        cls: what happened. `value`: an error above our tolerance (or, without one, a margin above 1e-2); `refused`: it
            raised at a changed shape before any output.
        errs: normalised error against truth per output, the least over the draws; inf for another shape or a crash;
            none where the entry has no tolerance of ours.
        margin: `max |reference - y| / (1 + |y|)` against the fp32 reference, the least over the draws.
        seconds: spent in forward calls.
        detail: for people: a crash's message, a race's two lines.
    """

    entry: str
    variant: Variant
    seeds: int
    cls: CellClass
    errs: tuple[float, ...]
    margin: float
    seconds: float
    detail: str = ""

    @property
    def killed(self) -> bool:
        """Whether it shows the kernel wrong."""
        return self.cls not in ("pass", "refused")


@dataclass(frozen=True, slots=True)
class Draw:
    """One of a cell's draws, and what is right for it."""

    inputs: list[object]
    init_inputs: list[object]
    state: dict[str, Tensor]
    seed: int
    model_seed: int
    truth: Truth | None  # None where no tolerance of ours is held against it
    official: tuple[Tensor, ...]

    @property
    def nbytes(self) -> int:
        held = [t for t in (*self.inputs, *self.state.values(), *self.official) if isinstance(t, Tensor)]
        return sum(t.numel() * t.element_size() for t in held) + (self.truth.nbytes if self.truth else 0)


def judged(question: Question, draw: Draw, reply: RunReply) -> CellResult:
    """One forward call as a cell."""
    truth = draw.truth
    errs: tuple[float, ...] = ()
    margin = max(allclose_margin(r, y) for r, y in zip(draw.official, reply.outputs, strict=True))
    if truth is None or question.measured is None:
        wrong = margin > OFFICIAL_TOLERANCE
    else:
        errs = tuple(
            normalised_error(y, t, s, truth.selection(i))
            for i, (y, t, s) in enumerate(zip(reply.outputs, truth.outputs, truth.scales, strict=True))
        )
        wrong = any(e > t for e, t in zip(errs, question.measured.tolerance, strict=True))
    cls: CellClass = "value" if wrong else "pass"
    detail = ""
    if question.variant == "strict":
        codes = {f["code"]: f["message"] for f in reply.findings}
        decisive = next((code for code in FINDINGS if code in codes), None)
        if decisive is not None:
            cls, detail = _class_of_finding(decisive), f"{decisive}: {codes[decisive]}"
        if reply.inputs_changed:
            errs, margin, cls, detail = (math.inf,) * len(errs), math.inf, "value", "an input was changed"
    return CellResult(question.entry.id, question.variant, 1, cls, errs, margin, reply.seconds, detail)


def _class_of_finding(code: str) -> CellClass:
    if code == "deadlock":
        return "hang"
    return "race" if FINDINGS[code] is Outcome.INCORRECT else "crash"


def merged(cells: Sequence[CellResult]) -> CellResult:
    """One cell of several draws: the one most favourable to the kernel, because a kill has to hold in all of them."""
    mildest = min(cells, key=lambda c: (_SEVERITY[c.cls], max(c.errs, default=0.0)))
    return replace(
        mildest,
        seeds=len(cells),
        errs=tuple(min(errs) for errs in zip(*(c.errs for c in cells), strict=True)),
        margin=min(c.margin for c in cells),
        seconds=sum(c.seconds for c in cells),
    )
