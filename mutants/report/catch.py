"""Which inputs would catch what a checker misses, and which entries are worth their cost. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Catch:
    """An input that catches missed mutants.

    Attributes:
        name: of the input.
        alone: missed mutants that it catches.
        together: those that it and the ones before it in the ranking catch.
    """

    name: str
    alone: int
    together: int


def best_catches(caught: Mapping[str, NDArray[np.bool_]], most: int = 3) -> tuple[Catch, ...]:
    """The inputs that catch the most, each beside those before it (greedy; ties by name).

    Args:
        caught: input -> [missed mutants], whether it catches them; all of one length.
        most: at most so many; fewer where the rest add nothing.
    """
    found: list[Catch] = []
    length = len(next(iter(caught.values()))) if caught else 0
    done = np.zeros(length, np.bool_)
    while len(found) < most:
        gains = {name: int((hits & ~done).sum()) for name, hits in caught.items()}
        name = min(gains, key=lambda n: (-gains[n], n), default="")
        if not gains.get(name):
            break
        done |= caught[name]
        found.append(Catch(name, int(caught[name].sum()), int(done.sum())))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Worth:
    """What one entry adds to the others of its problem.

    Attributes:
        kills: mutants that it shows.
        alone: of those, the ones that no other entry shows: above 0 it is indispensable.
        within: position of an entry that shows all of these and perhaps more, so that this one is redundant beside it;
            -1 where there is none.
    """

    kills: int
    alone: int
    within: int

    @property
    def word(self) -> str:
        """`indispensable`, `redundant`, `shares` or `shows nothing`."""
        if not self.kills:
            return "shows nothing"
        return "indispensable" if self.alone else "redundant" if self.within >= 0 else "shares"


def worths(kills: NDArray[np.bool_], cost: Sequence[int]) -> tuple[Worth, ...]:
    """The worth of every entry.

    Args:
        kills: [mutants, entries].
        cost: of each entry; of two that show the same mutants the dearer one is redundant (then the later).
    """
    if not kills.shape[1]:
        return ()
    k = kills.astype(np.float32)  # products of floats are fast, and exact up to 2^24 mutants
    outside = k.T @ (1 - k)  # [i, j]: mutants that i shows and j does not
    totals = kills.sum(axis=0)
    only = kills.sum(axis=1) == 1
    found = []
    for i, total in enumerate(totals):
        covering = [int(j) for j in np.flatnonzero(outside[i] == 0)]
        over = [j for j in covering if j != i and (totals[j] > total or (cost[j], j) < (cost[i], i))]
        within = min(over, key=lambda j: (-totals[j], cost[j], j), default=-1) if total else -1
        found.append(Worth(int(total), int(kills[only, i].sum()), within))
    return tuple(found)
