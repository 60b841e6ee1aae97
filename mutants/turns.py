"""Who measures which problem's mutants when: rounds of turns, so that a problem's draws serve many mutants in a row.

What was drawn for a problem, with its truths, takes some hundred megabytes. Where every problem gets a mutant at a
time, the draws of dozens of them do not fit side by side, and are made anew for each mutant.
"""

import threading
import time
from collections.abc import Sequence, Sized
from typing import Generic, Protocol, TypeVar

from .calibrate_values import Budget, PartOfBudget

LEAST_TURN_S = 10.0


class Queue(Protocol):
    """Something with mutants that wait."""

    @property
    def mutants(self) -> Sized:
        """Those that wait."""


Q = TypeVar("Q", bound=Queue)


class Turns(Generic[Q]):
    """Problems that wait for a lane; each gets an equal part of what is left of the time. Thread-safe.

    Args:
        problems: the queues of each problem.
        lanes: how many take from here.
        budget: the time.
    """

    def __init__(self, problems: Sequence[list[Q]], lanes: int, budget: Budget | PartOfBudget) -> None:
        self._waiting: list[list[Q]] = []
        self._next_round = list(problems)
        self._part_s = 0.0
        self._running = 0
        self._lanes = lanes
        self._budget = budget
        self._ended = False
        self._lock = threading.Lock()

    @property
    def mutants(self) -> int:
        """How many wait."""
        return sum(len(queue.mutants) for problem in (*self._waiting, *self._next_round) for queue in problem)

    def take(self) -> tuple[list[Q], float] | None:
        """A problem's queues and until when (`time.monotonic`) they have the lane; None where no problem waits now."""
        with self._lock:
            if not self._waiting:
                self._waiting, self._next_round = self._next_round, []
                self._part_s = max(LEAST_TURN_S, self._share(len(self._waiting)))
            if not self._waiting or self._ended or self._budget.spent:
                return None
            part_s = max(self._part_s, self._share(len(self._waiting) + self._running))  # some end before their time
            self._running += 1
            return self._waiting.pop(0), time.monotonic() + part_s

    def _share(self, problems: int) -> float:
        return self._budget.left_s * self._lanes / max(self._lanes, problems)

    def go_on(self, until: float) -> bool:
        """Whether a turn that lasts until then goes on."""
        return not self._ended and not self._budget.spent and time.monotonic() < until

    def give_back(self, queues: list[Q]) -> None:
        """What a turn left waits for the next round."""
        with self._lock:
            self._running -= 1
            if queues:
                self._next_round.append(queues)

    def end(self) -> None:
        """No turn goes on."""
        self._ended = True
