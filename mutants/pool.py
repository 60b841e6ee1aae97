"""The pool of entries that a problem's suite is chosen from: generators x shapes, each through the validity gate.

The gate knows no mutant: what may judge is decided before anything is measured with it (`suites.validity`). Rejections
are kept with their reasons.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..suites.draw import entry_bytes
from ..suites.entry import Entry
from ..suites.errors import InputError
from ..suites.generators import GENERATORS
from ..suites.problem import Problem
from ..suites.select import DENSE
from ..suites.shapes import ragged_variants
from ..suites.static import static_problem
from ..suites.tolerance import TolerancePolicy
from ..suites.traits import Traits, inspect_problem
from ..suites.validity import Admission, admit
from .device_shares import NEEDED, is_large, shares

MIB = 1 << 20
LEAST = 30  # entries that a pool has at least, where the problem admits so many
#: (generator, parameters) in the order in which they are tried; which of them a problem admits is its traits' matter,
#: shape by shape: where the declared sums are too long for a family, those of a small shape may not be.
RECIPES: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("normal", {}),
    ("own", {}),
    ("spiky", {}),
    ("negative", {}),
    ("integers", {}),
    ("ramp", {}),
    ("thresholds", {}),
    ("ties", {}),
    ("large", {}),
    ("offset", {}),
    ("alternating", {}),
    ("one_hot", {}),
    ("zero_rows", {}),
    ("constant_rows", {}),
    ("normal", {"sigma": 4.0}),
    ("normal", {"sigma": 0.01}),
)
#: For normalisations: at 100 a variance made of large moments errs by about a tolerance, here by four.
_FAR: tuple[tuple[str, Mapping[str, Any]], ...] = (("offset", {"center": 300.0}),)
_DECLARED = ("normal", "own", "spiky", "negative", "offset", "ramp")
_SMALL = (MIB, 8 * MIB, 64 * MIB, 512 * MIB)
#: Bytes and multiply-adds up to which declared-shape entries are put to mutants.
DECLARED_LIMIT = {"cpu": (64 * MIB, 500_000_000), "cuda": (16 << 30, 4_000_000_000_000)}
#: Bytes of a declared shape above which only two draws of it are asked, for the time that the others would take.
FEW_ABOVE = {"cpu": MIB, "cuda": 1 << 30}


Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Pool:
    """What the gate said about a problem's candidates for entries.

    Attributes:
        problem: the problem.
        device_class: `cpu` or `cuda`.
        admissions: admitted and rejected ones, in the order in which they were tried.
        extra: ids of those that were only tried because the caller named them.
    """

    problem: Problem
    device_class: str
    admissions: tuple[Admission, ...]
    extra: frozenset[str] = frozenset()

    @property
    def admitted(self) -> tuple[Admission, ...]:
        """The entries that may judge, the cheapest first (by static bytes, then by id, so that runs agree)."""
        kept = [a for a in self.admissions if a.admitted and a.measured is not None]
        return tuple(sorted(kept, key=lambda a: (a.measured.bytes if a.measured else 0, a.entry.id)))


def declared_too_large(problem: Problem, device_class: str) -> str:
    """Why the declared shape is not put to mutants on this class of device; "" where it is."""
    size, work = entry_bytes(problem, Entry.make()), static_problem(problem, ()).work
    most_bytes, most_work = DECLARED_LIMIT[device_class]
    if size > most_bytes:
        return f"{size / MIB:.0f} MiB at the declared shape, of at most {most_bytes / MIB:.0f}"
    return f"{work:.1e} multiply-adds at the declared shape, of at most {most_work:.1e}" if work > most_work else ""


def pool_shapes(problem: Problem, traits: Traits) -> list[dict[str, Any]]:
    """Small ragged shapes of a problem, the most useful first; the smallest byte bound that gives any."""
    found = (ragged_variants(problem, traits, max_bytes=size) for size in _SMALL)
    return next((variants for variants in found if variants), [])


def pool_entries(problem: Problem, device_class: str, least: int = LEAST) -> Iterator[Entry]:
    """Candidates for a pool, the most useful first.

    Every recipe at the first two shapes, dense ones at all shapes and the declared one, then the rest, until the
    caller has enough.

    Args:
        least: so many distinct ones at least, if the problem's traits allow them.
    """
    traits = inspect_problem(problem)
    shapes = pool_shapes(problem, traits)
    recipes = (*RECIPES, *_FAR) if traits.kind == "norm" else RECIPES
    seen: set[str] = set()

    def fresh(wanted: Sequence[tuple[str, Mapping[str, Any]]], at: Sequence[Mapping[str, Any]]) -> Iterator[Entry]:
        for shape in at:
            there = inspect_problem(problem, constants=shape) if shape else traits
            for generator, params in wanted:
                if not GENERATORS[generator].applies(there):
                    continue
                entry = Entry.make(generator, params=params, constants=shape)
                if entry.id not in seen:
                    seen.add(entry.id)
                    yield entry

    yield from fresh(recipes, shapes[:2])
    dense = [(g, p) for g, p in recipes if g in DENSE and not p]
    yield from fresh(dense, shapes)
    declared: list[dict[str, Any]] = [] if declared_too_large(problem, device_class) else [{}]
    few = entry_bytes(problem, Entry.make()) > FEW_ABOVE[device_class]
    wanted = _DECLARED[:2] if few else _DECLARED
    yield from fresh([(g, p) for g, p in recipes if g in wanted and not p], declared)
    if len(seen) < least:
        yield from fresh(recipes, shapes[2:])
    if len(seen) < least and not few:
        yield from fresh(recipes, declared)


def build_pool(
    problem: Problem,
    device: str | torch.device = "cpu",
    policy: TolerancePolicy | None = None,
    known: Mapping[str, Admission] | None = None,
    progress: Progress | None = None,
    extra: Sequence[Entry] = (),
) -> Pool:
    """Put a problem's pool through the gate.

    Args:
        problem: the problem.
        device: where tolerances are measured.
        policy: which implementations count as correct.
        known: answers of the gate from an earlier run with the same versions, by entry id: not asked again.
        progress: called with the id of each entry before it is measured.
        extra: further candidates, such as what a suite in use asks; those of official protocols are no part of a pool.

    Raises:
        InputError: the problem's own code is broken.
    """
    target = torch.device(device)
    own = {entry.id: entry for entry in pool_entries(problem, target.type)}
    return asked_pool(problem, target, own, policy, known, progress, extra)


def asked_pool(
    problem: Problem,
    target: torch.device,
    own: Mapping[str, Entry],
    policy: TolerancePolicy | None = None,
    known: Mapping[str, Admission] | None = None,
    progress: Progress | None = None,
    extra: Sequence[Entry] = (),
) -> Pool:
    """`build_pool`, once it is known which entries are candidates: `own`, by id."""
    admissions = []
    for entry in {**own, **{e.id: e for e in extra}}.values():
        answer = (known or {}).get(entry.id)
        if answer is None:
            if progress is not None:
                progress(entry.id)
            answer = _asked(problem, entry, target, policy)
        admissions.append(answer)
    return Pool(problem, target.type, tuple(admissions), frozenset(e.id for e in extra if e.id not in own))


def _asked(problem: Problem, entry: Entry, target: torch.device, policy: TolerancePolicy | None) -> Admission:
    """What the gate says. Several problems' pools are built side by side, so a large entry waits until it fits; where
    it does not for all that, it is asked again with the device to itself, before anything is concluded."""
    if target.type == "cpu":
        return admit(problem, entry, target, policy)
    try:
        size = entry_bytes(problem, entry)
    except InputError:  # the gate says it better
        return admit(problem, entry, target, policy)
    if not is_large(target, size):
        return admit(problem, entry, target, policy)
    answer = _within(problem, entry, target, policy, NEEDED * size)
    return _within(problem, entry, target, policy, sys.maxsize) if answer.short_of_memory else answer


def _within(
    problem: Problem, entry: Entry, target: torch.device, policy: TolerancePolicy | None, size: int
) -> Admission:
    with shares(target).hold(size):
        try:
            return admit(problem, entry, target, policy)
        finally:
            torch.cuda.empty_cache()
