"""Which constants of a problem are sizes, and how to make the problem small.

A size is found by trying, not by its name: a constant is a batch, row or spatial size if changing it changes the shape
of an input and no shape of a parameter or buffer. All of it happens on the meta device, which costs milliseconds and no
memory.
"""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .errors import InputError
from .problem import Problem, load_problem
from .static import Static, static_problem

Changes = tuple[tuple[str, Any], ...]
Key = tuple[str, int | None]
_Shapes = Sequence[tuple[int, ...] | None]

_MODEL_NAMES = re.compile(
    r"channel|group|head|embed|feature|hidden|kernel|stride|padding|dilation|d_model|n_embd", re.IGNORECASE
)
_SMALL_BYTES, _SMALL_WORK = 8 << 20, 300_000_000  # aimed at when values are to be looked at
_BEARABLE_BYTES, _BEARABLE_WORK = 256 << 20, 20_000_000_000  # accepted where that cannot be reached


@dataclass(frozen=True, slots=True)
class Size:
    """One changeable size of a problem.

    Attributes:
        name: the module constant.
        index: position within it where the constant is a tuple, else None.
        value: declared value.
        places: (input, dimension counted from the end) it shows up in; empty for a size of the model alone.
        partners: other constants of the same value that must change with it, or the problem does not run.
        batch: it is the first of several dimensions of the first tensor input, and of the outputs.
        model: changing it changes the shape of a parameter or buffer, or no small change of it runs.
        named: its name says channels, groups, heads or the like, and its input has more than two dimensions.
    """

    name: str
    index: int | None
    value: int
    places: tuple[tuple[int, int], ...]
    partners: tuple[Key, ...]
    batch: bool
    model: bool
    named: bool

    @property
    def key(self) -> Key:
        """The constant and the position in it."""
        return self.name, self.index

    def at(self, value: int) -> dict[Key, int]:
        """What to change to give it another value."""
        return dict.fromkeys((self.key, *self.partners), value)

    @property
    def fixed(self) -> bool:
        """Whether the policy `batch-spatial` leaves it alone."""
        return self.model or self.named


def change(problem: Problem, values: Mapping[Key, int]) -> Changes:
    """Constants with some of their integers replaced, without those that stay as declared."""
    changed: dict[str, Any] = {}
    for (name, index), value in values.items():
        if index is None:
            changed[name] = value
        else:
            parts = list(changed.get(name, problem.constants[name]))
            parts[index] = value
            changed[name] = tuple(parts)
    same = {k for k, v in changed.items() if _frozen(problem.constants[k]) == v}
    return tuple(sorted((k, v) for k, v in changed.items() if k not in same))


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def static_or_none(problem: Problem, changes: Changes) -> Static | None:
    """`static_problem`, or None where the problem does not run with these constants on the meta device."""
    try:
        return static_problem(problem, changes)
    except InputError:
        return None


@functools.lru_cache(maxsize=512)
def sizes(problem: Problem) -> tuple[Size, ...]:
    """The constants of a problem that set the shape of an input or of the model's state, in the order of the file.

    Empty where the problem cannot be run on the meta device.
    """
    base = static_or_none(problem, ())
    if base is None:
        return ()
    integers = list(_integers(problem))
    found: list[Size] = []
    taken: set[Key] = set()
    for key, value in integers:
        if key in taken:
            continue
        size = _probe(problem, base, key, value, [k for k, v in integers if v == value and k != key])
        if size is not None:
            found.append(size)
            taken |= size.at(0).keys()
    return tuple(found)


def _integers(problem: Problem) -> Iterator[tuple[Key, int]]:
    for name, value in problem.independent_constants.items():
        parts = list(enumerate(value)) if isinstance(value, (tuple, list)) else [(None, value)]
        for index, part in parts:
            if isinstance(part, int) and not isinstance(part, bool) and part > 0:
                yield (name, index), part


def _probe(problem: Problem, base: Static, key: Key, value: int, equals: list[Key]) -> Size | None:
    shapes = _shapes(base)
    partners: tuple[Key, ...] = ()
    changed = _first_that_runs(problem, [key], value)
    if changed is None and equals:
        changed = _first_that_runs(problem, [key, *equals], value)
        partners = tuple(equals) if changed is not None else ()
    if changed is None:
        places = _places(shapes, _drawn_shapes(problem, change(problem, {key: 2 * value})))
    else:
        places = _places(shapes, _shapes(changed))
    model = changed is None or dict(changed.state) != dict(base.state)
    if not places and (changed is None or not model):
        return None
    first = next((i for i, shape in enumerate(shapes) if shape), 0)
    ndim = len(shapes[first] or ())
    batch = ndim > 1 and (first, -ndim) in places and (first, -1) not in places and _leads(base, changed)
    deep = any(len(shapes[i] or ()) > 2 for i, _ in places)
    named = deep and bool(_MODEL_NAMES.search(key[0]))
    return Size(*key, value, places, partners, batch, model, named)


def _leads(base: Static, changed: Static | None) -> bool:
    """Whether the outputs are scalars, or their first dimension follows the change (a product's inner one does not)."""
    if changed is None or not (base.complete and changed.complete):
        return True
    pairs = list(zip(base.outputs, changed.outputs, strict=False))
    return all(not old.shape or (new.shape and old.shape[0] != new.shape[0]) for old, new in pairs)


def _first_that_runs(problem: Problem, keys: list[Key], value: int) -> Static | None:
    for other in (value + 1, 2 * value, value // 2):
        static = static_or_none(problem, change(problem, dict.fromkeys(keys, other))) if other else None
        if static is not None:
            return static
    return None


def _shapes(static: Static) -> _Shapes:
    return [spec.shape if spec else None for spec in static.inputs]


def _drawn_shapes(problem: Problem, changes: Changes) -> _Shapes:
    try:
        drawn = load_problem(problem, dict(changes)).own_draw(0, "meta")
    except InputError:
        return []
    return [tuple(v.shape) if isinstance(v, torch.Tensor) else None for v in drawn]


def _places(before: _Shapes, after: _Shapes) -> tuple[tuple[int, int], ...]:
    """(input, dimension from the end) of the dimensions that differ."""
    return tuple(
        (i, d - len(old))
        for i, (old, new) in enumerate(zip(before, after, strict=False))
        if old is not None and new is not None and len(old) == len(new)
        for d in range(len(old))
        if old[d] != new[d]
    )


def _vanishes(static: Static) -> bool:
    """Whether an output has no elements. Some versions of torch let a convolution whose kernel is larger than its input
    pass on the meta device, with such an output; a real run raises."""
    return any(0 in spec.shape for spec in static.outputs)


@functools.lru_cache(maxsize=512)
def shrunken(problem: Problem) -> Changes | None:
    """Constants that make a problem small enough to look at its values on the CPU: () if it is so as declared.

    Batch and spatial sizes are made smaller first, sizes of the model only where that is not enough; a step after which
    the problem no longer runs is not made. None where the problem cannot be made small, or does not run at all on the
    meta device.
    """
    static = static_or_none(problem, ())
    if static is None:
        return None
    values: dict[Key, int] = {}
    everything = sizes(problem)
    for group in ([s for s in everything if not s.model], everything):
        stuck: set[Key] = set()
        while not _within(static, _SMALL_BYTES, _SMALL_WORK):
            size = max((s for s in group if s.key not in stuck), key=lambda s: values.get(s.key, s.value), default=None)
            if size is None:
                break
            now = values.get(size.key, size.value)
            for smaller in (now // 8, now // 2):
                trial = {**values, **size.at(smaller)}
                measured = static_or_none(problem, change(problem, trial)) if smaller > 1 else None
                if measured is not None and not _vanishes(measured):
                    static, values = measured, trial
                    break
            else:
                stuck.add(size.key)
    return change(problem, values) if _within(static, _BEARABLE_BYTES, _BEARABLE_WORK) else None


def _within(static: Static, max_bytes: int, max_work: int) -> bool:
    return static.complete and static.bytes_as(torch.float32) <= max_bytes and static.work <= max_work
