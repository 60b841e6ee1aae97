"""Which k entries to ask: maximum coverage over the mutants that each entry kills. Pure functions on arrays.

The first entry is always a dense random one (under sparse or spiky inputs a wrong index reads another zero), and of two
or more entries one stays at the declared shape, which counts as one of the k. The covered weight is the largest there
is, proved by integer programming. Of several such suites one is taken that no exchange of one entry improves: first by
the weight of the mutants that two of its entries kill (one like them, not seen yet, then has two chances), then by how
many shapes and kinds of input there are among its entries (what a few mutants say about a problem is all that they
say: two draws of one tiny shape leave blind what no mutant happened to need), then by cost, then by index. The same
kills always give the same suite.
"""

import math
from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array, eye_array, hstack

from .hashing import stable_hash

MAX_K = 6
DENSE = ("normal", "own")
"""Generators whose inputs are dense and random: an index that is wrong reads another value nearly everywhere."""
_NODES = 1_000  # of branch and bound, instead of a time limit: the answer must not depend on the machine's speed
_TIE = 1e-3  # what cost may weigh in the exact search, in units of the smallest weight


@dataclass(frozen=True, slots=True)
class Selection:
    """A choice of entries.

    Attributes:
        indices: the chosen entries, the dense one first, then by what each adds.
        covered: share of the weight that they kill together; NaN where there is no weight.
        exact: proved optimal; False = by the greedy fallback.
    """

    indices: tuple[int, ...]
    covered: float
    exact: bool


def held_out(operator: str, site: str) -> bool:
    """Whether a mutant belongs to the half that selection never sees.

    A hash of operator and site key, so that near-duplicates are in the same half, whatever order they came in.
    """
    return int(stable_hash([operator, site])[:8], 16) % 2 == 1


def site_key(problem_hash: str, detail: str) -> str:
    """The key of a mutant's site: what is changed, in the words of the mutant, within one problem.

    Neither the substrate nor the line is part of it: the same edit to the same text in two kernels of a problem is a
    near-duplicate.
    """
    return f"{problem_hash}:{' '.join(detail.split())}"


def balanced(labels: Sequence[Hashable]) -> NDArray[np.float64]:
    """Weights under which every label (a family) counts the same; they sum to the number of items."""
    counts = Counter(labels)
    return np.array([len(labels) / (len(counts) * counts[label]) for label in labels], np.float64)


def covered(kills: NDArray[np.bool_], indices: Sequence[int], weights: NDArray[np.float64] | None = None) -> float:
    """Share of the weight that some of these entries kill; NaN where there is no weight."""
    weight = np.ones(kills.shape[0]) if weights is None else weights
    total = float(weight.sum())
    return float(weight[kills[:, list(indices)].any(axis=1)].sum()) / total if total > 0 else math.nan


def choose(
    kills: NDArray[np.bool_],
    k: int,
    *,
    weights: NDArray[np.float64] | None = None,
    cost: Sequence[float] | None = None,
    dense: Collection[int] = (),
    declared: Collection[int] = (),
    kinds: Sequence[tuple[Hashable, ...]] | None = None,
    nodes: int = _NODES,
) -> Selection:
    """The k entries that kill the most.

    Args:
        kills: [mutants, entries], whether an entry kills a mutant.
        k: how many entries; all of them where there are fewer.
        weights: [mutants], not negative; None = 1 each.
        cost: [entries], breaks ties; None = all the same.
        dense: entries that may stand first; empty = any.
        declared: entries at the declared shape, one of which must be among two or more; empty = no such rule.
        kinds: [entries], what an entry is made of, such as (shape, generator): among equals a suite with more different
            shapes and generators wins. None = they do not matter.
        nodes: bound on the exact search; beyond it the answer is the greedy one.

    Raises:
        ValueError: k is not positive, or shapes do not fit.
    """
    mutants, entries = kills.shape
    weight = np.ones(mutants) if weights is None else np.asarray(weights, np.float64)
    price = np.zeros(entries) if cost is None else np.asarray(cost, np.float64)
    fits = weight.shape == (mutants,) and price.shape == (entries,) and (kinds is None or len(kinds) == entries)
    if k < 1 or not fits or (weight < 0).any():
        raise ValueError(f"k = {k}, kills {kills.shape}, weights {weight.shape}, cost {price.shape}")
    if not entries:
        return Selection((), covered(kills, (), weight), True)
    task = _Task.of(
        kills,
        weight,
        price,
        min(k, entries),
        sorted(dense),
        sorted(declared) if k > 1 else [],
        kinds or [()] * entries,
    )
    chosen = _exchanged(task, _greedy(task))
    exact = task.value(chosen)[0] >= float(task.weight.sum())  # nothing is left to gain
    if not exact and (solved := _solve(task, nodes)) is not None:
        exact, chosen = True, _exchanged(task, solved)
    order = _ordered(task, chosen)
    return Selection(tuple(order), covered(kills, order, weight), exact)


@dataclass(frozen=True, slots=True, eq=False)
class _Task:
    """A selection with mutants of the same row merged; `kills` is [rows, entries]."""

    kills: NDArray[np.bool_]
    weight: NDArray[np.float64]
    price: NDArray[np.float64]
    k: int
    dense: list[int]
    declared: list[int]
    kinds: Sequence[tuple[Hashable, ...]]

    @classmethod
    def of(
        cls,
        kills: NDArray[np.bool_],
        weight: NDArray[np.float64],
        price: NDArray[np.float64],
        k: int,
        dense: list[int],
        declared: list[int],
        kinds: Sequence[tuple[Hashable, ...]],
    ) -> "_Task":
        useful = kills.any(axis=1) & (weight > 0)
        rows, where = np.unique(kills[useful], axis=0, return_inverse=True)
        merged = np.bincount(where.reshape(-1), weight[useful], len(rows)).astype(np.float64)
        return cls(rows.astype(np.bool_), merged, price, k, dense, declared, kinds)

    def value(self, chosen: Sequence[int]) -> tuple[float, float, int, float, int]:
        """What is maximised, in order: covered weight, weight covered twice, variety, less cost, lower indices."""
        times = self.kills[:, list(chosen)].sum(axis=1)
        once, twice = float(self.weight[times >= 1].sum()), float(self.weight[times >= 2].sum())
        variety = sum(len(set(values)) for values in zip(*(self.kinds[e] for e in chosen), strict=True))
        return once, twice, variety, -float(self.price[list(chosen)].sum()), -sum(chosen)

    def allows(self, chosen: Sequence[int]) -> bool:
        """Whether a dense and a declared entry are among them, where there must be."""
        return all(not group or not set(group).isdisjoint(chosen) for group in (self.dense, self.declared))


def _greedy(task: _Task) -> list[int]:
    chosen: list[int] = []
    while len(chosen) < task.k:
        allowed = [e for e in range(task.kills.shape[1]) if e not in chosen]
        if not chosen and task.dense:
            allowed = task.dense
        elif len(chosen) == task.k - 1 and task.declared and not set(chosen) & set(task.declared):
            allowed = task.declared
        chosen.append(max(allowed, key=lambda e: task.value([*chosen, e])))
    return chosen


def _ordered(task: _Task, chosen: Sequence[int]) -> list[int]:
    """The chosen ones, a dense one first, then by what each adds to those before it."""
    order: list[int] = []
    while len(order) < len(chosen):
        rest = [e for e in chosen if e not in order]
        if not order and task.dense:
            rest = [e for e in rest if e in task.dense]
        order.append(max(rest, key=lambda e: task.value([*order, e])))
    return order


def _exchanged(task: _Task, chosen: Sequence[int]) -> list[int]:
    """The choice after every exchange of one entry for another that improves it."""
    best = list(chosen)
    worth = task.value(best)
    while True:
        others = [e for e in range(task.kills.shape[1]) if e not in best]
        swaps = ([*best[:i], e, *best[i + 1 :]] for i in range(len(best)) for e in others)
        better = max((s for s in swaps if task.allows(s)), key=task.value, default=best)
        if task.value(better) <= worth:
            return best
        best, worth = better, task.value(better)


def _solve(task: _Task, nodes: int) -> list[int] | None:
    """A choice of largest covered weight by integer programming; None where the bound stopped it.

    Variables: x (entries, binary) and y (rows: killed, continuous, at most the number of chosen entries that kill it).
    Cost and index enter the objective below the smallest weight, so that its ties are not the solver's whim.
    """
    rows, entries = task.kills.shape
    rank = np.argsort(np.argsort(task.price, kind="stable"), kind="stable") / entries
    picks = np.concatenate([np.ones(entries), np.zeros(rows)])
    reach = hstack([-csr_array(task.kills.astype(np.float64)), eye_array(rows)], format="csr")
    constraints = [LinearConstraint(picks[None, :], task.k, task.k), LinearConstraint(reach, -np.inf, 0)]
    for group in (task.dense, task.declared):
        if group:
            member = np.isin(np.arange(entries + rows), group).astype(np.float64)
            constraints.append(LinearConstraint(member[None, :], 1, np.inf))
    unit = float(task.weight.min())
    answer = milp(
        np.concatenate([rank * _TIE / task.k, -task.weight / unit]),
        integrality=picks,
        bounds=Bounds(0, 1),
        constraints=constraints,
        options={"node_limit": nodes, "mip_rel_gap": 0.0},
    )
    if answer.status != 0:
        return None
    return [int(e) for e in np.flatnonzero(answer.x[:entries] > 0.5)]
