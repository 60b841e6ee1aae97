"""The entries of an audit: inputs that no suite is judged by, so that a policy never learned to please them.

Their parameters differ from those that suites are built and calibrated from, so they are in none of them. One that a
false accept brought into a suite is left out from then on.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ..suites.draw import entry_bytes
from ..suites.entry import Entry
from ..suites.generators import GENERATORS
from ..suites.hashing import derive_seed
from ..suites.problem import Problem
from ..suites.shapes import ragged_variants
from ..suites.static import static_problem
from ..suites.traits import inspect_problem

ENTRIES = 4  # of one problem's audit
MOST_TRIED = 10  # put through the gate for them

_DENSE = ("normal", {"sigma": 1.5})
_RECIPES: tuple[tuple[str, Mapping[str, Any]], ...] = (
    _DENSE,
    ("negative", {"shift": 0.25}),
    ("spiky", {"magnitude": 40.0}),
    ("large", {"magnitude": 300.0}),
    ("offset", {"center": 30.0}),
    ("ramp", {"low": -2.0, "high": 2.0}),
    ("ties", {"levels": 6}),
    ("thresholds", {"jitter": 0.2}),
    ("zero_rows", {"period": 5}),
    ("alternating", {"floor": 0.3}),
    ("one_hot", {"value": 2.0}),
    ("integers", {"bound": 5}),
    ("log_uniform", {"low": -1.0, "high": 1.0}),
)
_MIB = 1 << 20
_SMALL = (_MIB, 8 * _MIB, 64 * _MIB, 512 * _MIB)  # bytes of changed shapes: the smallest that give any
#: Bytes and multiply-adds up to which the declared shape takes part.
_DECLARED = {"cpu": (16 * _MIB, 500_000_000), "cuda": (1 << 30, 400_000_000_000)}


def audit_candidates(
    problem: Problem, run_key: bytes, device_class: str, excluded: Collection[str] = ()
) -> Iterator[Entry]:
    """Entries to put through the gate, at most `MOST_TRIED`, the same on all ranks of a run and other ones in another.

    A dense one first, then one at the declared shape (a candidate may refuse the others), then one family after
    another in an order that only the run key tells.

    Args:
        excluded: ids of entries that candidates are judged by.

    Raises:
        InputError: the problem's own code is broken.
    """
    traits = inspect_problem(problem)
    recipes = [(name, params) for name, params in _RECIPES if GENERATORS[name].applies(traits)]
    found = (ragged_variants(problem, traits, max_bytes=size) for size in _SMALL)
    shapes: list[dict[str, Any]] = next((variants for variants in found if variants), [])
    declared: list[dict[str, Any]] = [{}] if not shapes or _declared_is_small(problem, device_class) else []
    entries = [Entry.make(n, params=p, constants=shape) for n, p in recipes for shape in (*shapes, *declared)]
    if not recipes:  # no input whose values are free to change: other draws of its own
        entries = [Entry.make("own", constants=shape, draw=1) for shape in (*shapes, *declared)]
    rest = sorted(
        (entry for entry in entries if entry.id not in excluded),
        key=lambda entry: derive_seed(run_key, "audit", problem.hash, entry.id),
    )
    first = [
        *[e for e in rest if e.generator == _DENSE[0] and not e.declared_shape][:1],
        *[e for e in rest if e.declared_shape][:1],
    ]
    tried = [*first, *_one_of_each(rest, {e.generator for e in first})]
    more = (entry for entry in rest if entry not in tried)
    yield from [*tried, *more][:MOST_TRIED]


def _one_of_each(entries: list[Entry], seen: set[str]) -> Iterator[Entry]:
    for entry in entries:
        if entry.generator not in seen:
            seen.add(entry.generator)
            yield entry


def _declared_is_small(problem: Problem, device_class: str) -> bool:
    most_bytes, most_work = _DECLARED[device_class]
    return entry_bytes(problem, Entry.make()) <= most_bytes and static_problem(problem, ()).work <= most_work
