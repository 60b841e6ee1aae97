"""The one exception that judging a candidate raises."""

from functools import partial
from typing import Any, Literal

Kind = Literal["compile_error", "runtime_error", "timeout", "rejected", "incorrect", "unrefereeable", "infra_error"]
Phase = Literal["spawn", "load", "build", "run", "time"]


class ChildFailure(Exception):
    """Why a candidate (or the sandbox around it) did not get through a phase.

    Attributes:
        kind: the verdict that follows, a value of `Outcome`. `infra_error` is a fault of ours, never the candidate's.
        reason: narrows it: `syntax`, `no-modelnew`, `exception`, `refused`, `segfault`, `killed`, `exited`,
            `memory-limit`, `shape`, `dtype`, ...
        message: for people; the candidate's own text is bounded.
        phase: where it happened.
        exception: name of the Python exception's type where there was one.
        output: the end of what the candidate printed, if it was collected.
        alive: whether the session can still be used (a Python exception leaves the child running; memory that it
            overwrote makes it useless).
    """

    def __init__(
        self,
        kind: Kind,
        reason: str,
        message: str = "",
        phase: Phase = "run",
        *,
        exception: str | None = None,
        output: str = "",
        alive: bool = False,
    ) -> None:
        super().__init__(f"{kind} ({reason}) in {phase}: {message}" if message else f"{kind} ({reason}) in {phase}")
        self.kind: Kind = kind
        self.reason = reason
        self.message = message
        self.phase: Phase = phase
        self.exception = exception
        self.output = output
        self.alive = alive

    def __reduce__(self) -> tuple[Any, ...]:
        rebuilt = partial(ChildFailure, exception=self.exception, output=self.output, alive=self.alive)
        return rebuilt, (self.kind, self.reason, self.message, self.phase)
