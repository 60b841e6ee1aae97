"""How a watcher works."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from .watch_priority import NICE

_PATHS = ("out", "substrates", "suites", "bank", "trainer_state")


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """How a watcher works. Relative paths are those of the process that makes them.

    Attributes:
        out: folder of the kill matrix and of what is published.
        problems: folders, ids or files, as for `kernelward calibrate`.
        suites: folder of the suites in use, as in the reward's configuration; `out`/suites by default.
        substrates: folder of substrates in place of the package's.
        bank: file of accepted kernels (`reward.bank`); None = no bank.
        trainer_state: JSON file with `step` or `global_step`; `out`/trainer.json by default.
        device: `cpu`, `cuda`, `cuda:N` or `auto`. On a GPU nothing is begun while a judge uses that one
            (`reward.lease`).
        workers: kernels judged at one time; 2 on a CPU, 8 on a GPU.
        backends: of the substrates.
        per_substrate: at most so many new mutants of each.
        budget_s: seconds a pass measures mutants for; rests come on top (`watch_pass.with_rests`).
        nice: of a pass, its session and all that it starts (`watch_priority`).
        poll_s: between two looks at the files.
        parent: process id; the watcher ends when that is not its parent any more.
    """

    out: Path
    problems: tuple[str, ...] = ()
    suites: Path | None = None
    substrates: Path | None = None
    bank: Path | None = None
    trainer_state: Path | None = None
    device: str = "auto"
    workers: int | None = None
    backends: tuple[str, ...] = ("cuda", "triton")
    per_substrate: int | None = None
    budget_s: float = 60.0
    nice: int = NICE
    poll_s: float = 2.0
    parent: int | None = None

    def to_json(self) -> str:
        """For the command line of a process."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Inverse of `to_json`."""
        values: dict[str, Any] = json.loads(text)
        for name, value in values.items():
            if isinstance(value, list):
                values[name] = tuple(value)
            elif name in _PATHS and value is not None:
                values[name] = Path(value)
        return cls(**values)

    def step(self) -> int | None:
        """The trainer's step; None where its file does not say."""
        place = self.trainer_state or self.out / "trainer.json"
        try:
            found = json.loads(place.read_text(encoding="utf-8"))
            return int(found.get("step", found.get("global_step")))
        except (OSError, ValueError, TypeError, AttributeError):
            return None
