"""The result of judging one candidate, and how it maps to JSON and exit codes."""

import math
from dataclasses import asdict, dataclass, field
from enum import Enum, StrEnum
from typing import Any


class Outcome(StrEnum):
    """What the judge found. Only the last two give no reward at all (None)."""

    CORRECT = "correct"
    INCORRECT = "incorrect"
    COMPILE_ERROR = "compile_error"
    RUNTIME_ERROR = "runtime_error"
    TIMEOUT = "timeout"
    REJECTED = "rejected"
    INFRA_ERROR = "infra_error"
    UNREFEREEABLE = "unrefereeable"

    @property
    def decided(self) -> bool:
        """False where the fault is ours or the problem's, so that the candidate must not be scored."""
        return self not in (Outcome.INFRA_ERROR, Outcome.UNREFEREEABLE)


@dataclass(frozen=True, slots=True)
class EntryResult:
    """One entry's part in a verdict.

    Attributes:
        entry: the entry's id.
        outcome: `correct`, the failure that this entry showed, or None where the candidate refused the shape.
        err: largest normalised deviation from truth (for allclose protocols: the margin); inf on NaN or wrong shape.
        tolerance: what `err` is held against.
        seed: the seed of the draw; with the entry it replays the inputs exactly.
        seconds: wall-clock seconds of the run in the child.
    """

    entry: str
    outcome: Outcome | None
    reason: str = ""
    err: float | None = None
    tolerance: float | None = None
    seed: int | None = None
    seconds: float = 0.0
    message: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judge's finding on one candidate under one protocol.

    Attributes:
        verdict: the outcome; `reason` narrows it (`value`, `race`, `shape-specialised`, `nondeterministic`, ...).
        entry, err, tolerance, seed: of the entry that decided (for `correct`: the one with the largest err/tolerance).
        engine: what ran the candidate: `torch`, `triton`, `triton-interpreter`, `cpu-emulator`, `nvrtc`, `load-inline`.
        seconds: wall-clock seconds from request to verdict; `phases` splits them.
        speedup: reference time / candidate time, where speed was asked for and measured.
        recipe: of `entry`, where that comes from no suite (an audit); left out of the JSON object otherwise.
    """

    verdict: Outcome
    reason: str = ""
    message: str = ""
    problem: str = ""
    problem_hash: str = ""
    protocol: str = ""
    suite: str = ""
    backend: str = ""
    engine: str = ""
    device: str = ""
    candidate: str = ""
    entry: str | None = None
    err: float | None = None
    tolerance: float | None = None
    seed: int | None = None
    epoch: int = 0
    seconds: float = 0.0
    speedup: float | None = None
    cached: bool = False
    phases: dict[str, float] = field(default_factory=dict)
    entries: tuple[EntryResult, ...] = ()
    notes: tuple[str, ...] = ()
    recipe: dict[str, Any] | None = None

    @property
    def exit_code(self) -> int:
        """0 correct, 1 judged and not correct, 3 no verdict."""
        if not self.verdict.decided:
            return 3
        return 0 if self.verdict is Outcome.CORRECT else 1

    def to_json(self) -> dict[str, Any]:
        """JSON-able mapping; an infinite `err` becomes the string "inf" (JSON has no infinity)."""
        values = plain(asdict(self))
        if self.recipe is None:
            del values["recipe"]
        return values

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Verdict":
        """Inverse of `to_json`."""
        values = dict(data)
        entries = tuple(EntryResult(**_revive(e)) for e in values.pop("entries", ()))
        return cls(**_revive(values) | {"entries": entries, "notes": tuple(values.get("notes", ()))})


def plain(value: Any) -> Any:
    """A value as JSON has it: enums by value, tuples as lists, what is not finite as text."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


def _revive(values: dict[str, Any]) -> dict[str, Any]:
    revived = dict(values)
    for key in ("err", "tolerance", "speedup"):
        if isinstance(revived.get(key), str):
            revived[key] = float(revived[key])
    for key in ("verdict", "outcome"):
        if revived.get(key) is not None and key in revived:
            revived[key] = Outcome(revived[key])
    return revived
