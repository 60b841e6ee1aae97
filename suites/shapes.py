"""Ragged shapes for a problem: small ones on which remainder blocks run.

Shapes that are multiples of a block never show an unguarded last block. Small ragged ones do, and cost milliseconds.
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import torch

from .errors import InputError
from .problem import Problem, blame, forward, load_problem
from .sizes import Changes, Key, Size, change, sizes, static_or_none
from .static import Static, tensors_in
from .traits import Traits

ShapePolicy = Literal["declared", "batch-spatial", "all"]

DEFAULT_MAX_BYTES = 512 << 20
_MAX_WORK = 10_000_000_000  # multiply-adds of the first variant: some seconds on one core
_MAX_MORE_WORK = 1_200_000_000  # of a further one
_GOOD_WORK, _GOOD_BYTES = 10_000_000, 8 << 20  # aimed at, so that an emulated kernel ends in a moment

_BATCHES: dict[str, tuple[int, ...]] = {
    "remainder": (33, 17, 7, 5, 3, 2),
    "tiny": (3, 2),
    "over": (65, 9, 5, 3, 2),
    "long": (3, 2),
}
#: By number of free dimensions in one input: values to try, the most wanted first. Neighbours differ, so that swapped
#: dimensions show, and none is a power of two or a multiple of a usual tile.
_REST: dict[str, dict[int, tuple[tuple[int, ...], ...]]] = {
    "remainder": {
        1: ((1021,), (509,), (127,), (67,)),
        2: ((1021, 61, 127), (127, 61, 67), (61, 67, 31), (31, 37, 61), (17, 19, 21), (11, 13, 9), (7, 5, 3)),
        3: ((31, 37, 29), (13, 17, 19), (7, 9, 11), (5, 7, 9)),
    },
    "tiny": {
        1: ((7,), (15,), (31,), (63,)),
        2: ((5, 7, 3), (9, 7, 5), (11, 13, 9), (19, 21, 17), (37, 39, 33)),
        3: ((3, 5, 7), (5, 7, 9), (7, 9, 11), (11, 13, 15)),
    },
    "over": {
        1: ((1025,), (513,), (129,), (65,)),
        2: ((257, 33, 129), (129, 65, 33), (65, 33, 17), (33, 35, 17), (17, 19, 9), (9, 17, 5)),
        3: ((17, 33, 9), (9, 17, 5), (5, 9, 17), (5, 3, 9)),
    },
    "long": {
        1: ((4099,), (2051,), (1027,), (259,)),
        2: ((2051, 19, 67), (259, 67, 19), (131, 35, 67), (67, 35, 19), (67, 5, 7), (35, 5, 7)),
        3: ((35, 33, 19), (19, 17, 11), (35, 5, 3), (19, 5, 3)),
    },
}
#: Channels, groups, features: only under the policy `all`. The first smaller one that still runs; many are multiples of
#: 3 and 5, so that groups divide them.
_MODEL_VALUES = (127, 63, 31, 15, 7, 5, 120, 96, 72, 60, 40, 24, 20, 12, 160, 192, 384, 768, 1536, 3072)
_ALGORITHM = re.compile(r"kernel|stride|padding|dilation|pool", re.IGNORECASE)  # never a size


def ragged_variants(
    problem: Problem,
    traits: Traits,
    policy: ShapePolicy = "batch-spatial",
    max_bytes: int = DEFAULT_MAX_BYTES,
    limit: int = 4,
) -> list[dict[str, Any]]:
    """Changed constants that give a problem small, ragged shapes, the most useful first.

    In order: odd and prime remainders (batch 33, rows of 1021), tiny, just over a power of two (33, 65, 1025), and one
    long enough that a block has to loop (4099); the first two where only the batch can change. Every variant was
    loaded and its reference run once on the CPU.

    Args:
        problem: the problem.
        traits: of the problem at its declared shape; the dimension it works along gets the longest length.
        policy: `declared` changes nothing (no variant), `batch-spatial` changes batch, row and spatial sizes and keeps
            channels, groups, heads and the shape of every parameter, `all` changes those as well.
        max_bytes: largest sum of input, output and parameter bytes in fp32.
        limit: at most so many variants.
    """
    if policy == "declared":
        return []
    return [dict(v) for v in itertools.islice(_variants(problem, traits.along, policy, max_bytes), limit)]


def _variants(problem: Problem, along: int | None, policy: ShapePolicy, max_bytes: int) -> Iterator[Changes]:
    known = sizes(problem)
    free = [s for s in known if s.places and not s.fixed]
    fixed = [s for s in known if s.fixed and not _ALGORITHM.search(s.name)] if policy == "all" else []
    model = _smaller_model(problem, fixed)
    batch_only = not model and all(s.batch for s in free)
    seen: set[Changes] = set()
    for plan in ("remainder", "tiny") if batch_only else _BATCHES:
        max_work = _MAX_MORE_WORK if seen else _MAX_WORK
        good_work = _MAX_MORE_WORK if batch_only else _GOOD_WORK  # a batch of 17 is worth more than a quick one of 2
        fillings = ({**values, **model} for values in _fillings(_ordered(free, along), plan))
        changes = _fill(problem, fillings, max_bytes, good_work, max_work)
        if changes and changes not in seen and _runs(problem, changes):
            seen.add(changes)
            yield changes


def _ordered(free: Sequence[Size], along: int | None) -> list[Size]:
    """The size that the problem works along, or that several inputs share, first: it gets a plan's first value."""
    return sorted(free, key=lambda s: (not any(dim == along for _, dim in s.places), -len({i for i, _ in s.places})))


def _fill(
    problem: Problem, fillings: Iterable[dict[Key, int]], max_bytes: int, good_work: int, max_work: int
) -> Changes | None:
    """The first filling that runs and is quick; failing that, the quickest one that runs and fits."""
    best: tuple[int, Changes] | None = None
    for values in fillings:
        changes = change(problem, values)
        static = static_or_none(problem, changes) if changes else None
        if static is None or not _usable(static, max_bytes):
            continue
        if static.work <= good_work and static.bytes_as(torch.float32) - _state_bytes(static) <= _GOOD_BYTES:
            return changes
        if best is None or static.work < best[0]:
            best = static.work, changes
    return best[1] if best and best[0] <= max_work else None


def _state_bytes(static: Static) -> int:
    return sum(s.bytes_as(torch.float32) for s in static.state_specs)


def _fillings(free: Sequence[Size], plan: str) -> Iterator[dict[Key, int]]:
    batch = next((s for s in free if s.batch), None)
    rest = [s for s in free if s is not batch]
    depth = max(Counter(i for size in rest for i, _ in size.places).values(), default=0)
    lengths = _REST[plan][min(3, depth)] if depth else ((),)
    for row in lengths:
        values: dict[Key, int] = {}
        for i, size in enumerate(rest):
            values |= size.at(row[i % len(row)] + 2 * (i // len(row)))
        if batch is None:
            yield values
            continue
        yield from ({**values, **batch.at(b)} for b in _BATCHES[plan] if b not in values.values())


def _smaller_model(problem: Problem, model: Sequence[Size]) -> dict[Key, int]:
    """Sizes of the model, each with the first smaller value that runs with the ones before it."""
    chosen: dict[Key, int] = {}
    for size in model:
        for value in _MODEL_VALUES:
            trial = {**chosen, **size.at(value)}
            if value < size.value and static_or_none(problem, change(problem, trial)):
                chosen = trial
                break
    return chosen


def _usable(static: Static, max_bytes: int) -> bool:
    empty = any(math.prod(s.shape) == 0 for s in static.outputs)
    fits = static.bytes_as(torch.float32) <= max_bytes
    return static.complete and fits and bool(static.outputs) and not empty


def _runs(problem: Problem, changes: Changes) -> bool:
    """Whether the reference runs at these shapes and returns something."""
    try:
        loaded = load_problem(problem, dict(changes))
        model = loaded.build_model(loaded.init_inputs(0), 0)
        inputs = loaded.own_draw(0)
        with blame(problem, "Model.forward", loaded.constants):
            outputs = list(tensors_in(forward(model, inputs, 0)))
    except InputError:
        return False
    return bool(outputs) and all(t.numel() for t in outputs)
