"""What the phases of a calibration share: how it is run, what it did, and how much time is left."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from .calibrate_plan import Questions, Target
from .evaluate import Evaluator
from .matrix import Matrix
from .mutant import Substrate
from .pool import Pool

_FREE_POLL_S = 0.2

Report = Callable[[str, int, int], None]
"""Called with a phase, how much of it is done, and how much there is."""


@dataclass(frozen=True, slots=True)
class CalibrateOptions:
    """How a calibration is run.

    Attributes:
        targets: problems and their substrates.
        out: folder of the matrix and the suites.
        device: `cpu` or `cuda`.
        workers: kernels that are judged at one time.
        budget_s: seconds; the phases before the mutants are finished in any case (and do not count with `renew`).
        backends: of the substrates that are used.
        per_substrate: at most so many mutants of each.
        families: of the mutants that are made; () = all.
        renew: what is not made from these substrates by these operators any more leaves the counts, and whatever is
            counted is kept up to date.
    """

    targets: tuple[Target, ...]
    out: Path
    device: str = "cpu"
    workers: int = 2
    budget_s: float = 1500.0
    backends: tuple[str, ...] = ("cuda", "triton")
    per_substrate: int | None = None
    families: tuple[str, ...] = ()
    renew: bool = False

    @property
    def matrix_path(self) -> Path:
        """Where the kill matrix is."""
        return self.out / "matrix.sqlite"

    @property
    def device_class(self) -> str:
        """`cpu` or `cuda`."""
        return "cuda" if self.device.startswith("cuda") else "cpu"

    def used(self, target: Target) -> list[Substrate]:
        """The substrates of a target whose backend is used."""
        return [s for s in target.substrates if s.backend in self.backends]


@dataclass(slots=True)
class Tally:
    """What one run did.

    Attributes:
        evaluations: cells that were filled.
        mutants: mutants that were screened or measured.
        current: mutants that are to be counted, those that wait included.
        waiting: mutants that the budget left for another run.
        faults: infrastructure faults, which left a mutant for the next run.
        quarantined: substrate -> why no mutant is made of it.
        dropped: (problem, entry) -> why an admitted entry judges nothing.
        uncompilable: operator -> how many mutants it made so far, where it made several and none of them compiles.
        seconds: by phase.
        out_of_time: the budget ended before the mutants did.
    """

    evaluations: int = 0
    mutants: int = 0
    current: int = 0
    waiting: int = 0
    faults: list[str] = field(default_factory=list)
    quarantined: dict[str, str] = field(default_factory=dict)
    dropped: dict[tuple[str, str], str] = field(default_factory=dict)
    uncompilable: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    out_of_time: bool = False


class Budget:
    """The time of a calibration.

    Args:
        seconds: until it is spent, from now.
        free: whether the device may be used now; asked before each kernel, which waits until it may.
    """

    def __init__(self, seconds: float, free: Callable[[], bool] | None = None) -> None:
        self._seconds = seconds
        self._free = free
        self._deadline = time.monotonic() + seconds

    def begin(self) -> None:
        """Count from now on; not after `stop`."""
        if self._deadline:
            self._deadline = time.monotonic() + self._seconds

    def stop(self) -> None:
        """It is spent. From any thread."""
        self._deadline = 0.0

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return max(0.0, self._deadline - time.monotonic())

    @property
    def spent(self) -> bool:
        """Whether nothing is left."""
        return time.monotonic() > self._deadline

    def wait_free(self) -> None:
        """Wait until the device is free, for what is finished in any case; not after `stop`."""
        while self._free is not None and self._deadline and not self._free():
            time.sleep(_FREE_POLL_S)

    def may_run(self) -> bool:
        """Wait until the device is free; False where the budget ends before."""
        while not self.spent:
            if self._free is None or self._free():
                return True
            time.sleep(_FREE_POLL_S)
        return False


class PartOfBudget:
    """The first part of what is left of a budget.

    Args:
        budget: of which.
        share: how much of what is left now.
    """

    def __init__(self, budget: Budget, share: float) -> None:
        self._budget = budget
        self._kept = (1.0 - share) * budget.left_s

    @property
    def left_s(self) -> float:
        """Seconds of the part that are left."""
        return max(0.0, self._budget.left_s - self._kept)

    @property
    def spent(self) -> bool:
        """Whether nothing of it is left."""
        return self.left_s <= 0.0


@dataclass(frozen=True, slots=True)
class Run:
    """One calibration, as its phases see it; they may use it from several threads."""

    options: CalibrateOptions
    matrix: Matrix
    report: Report
    budget: Budget
    tally: Tally = field(default_factory=Tally)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fault(self, text: str) -> None:
        """Note a fault of the infrastructure."""
        with self._lock:
            self.tally.faults.append(text)

    def evaluated(self, cells: int) -> None:
        """Count cells that were filled."""
        with self._lock:
            self.tally.evaluations += cells


@dataclass(slots=True)
class Work:
    """A problem while it is calibrated.

    Attributes:
        problem_id: row id.
        pool: the entries that judge, after the clean run.
        substrates, guests: by row id, those of which mutants are made.
    """

    target: Target
    problem_id: int
    pool: Pool
    questions: Questions
    substrates: dict[int, Substrate] = field(default_factory=dict)
    guests: dict[int, Substrate] = field(default_factory=dict)


class Host(Protocol):
    """Says of a kernel that a policy wrote whether mutants of it are measured (`banked.BankHost`)."""

    def receive(
        self, evaluator: Evaluator, matrix: Matrix, problem: int, pool: Pool, mark: str, guest: Substrate
    ) -> int | None:
        """The row id of its substrate; None where no mutant is made of it."""
        ...
