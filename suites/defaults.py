"""A default suite for a problem that has none: chosen by the kind of operator, admitted by the gate, not calibrated.

The order of selection is dense first: a dense signed draw at a small ragged shape (remainder blocks, milliseconds), the
same at the declared shape (some faults show only there), then inputs aimed at what goes wrong in such operators.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from .draw import entry_bytes
from .entry import Entry
from .generators import GENERATORS
from .oracle import free_memory
from .problem import Problem
from .shapes import ragged_variants
from .suite import Suite, SuiteEntry
from .suite_cache import Built, cache_key, cached
from .tolerance import TolerancePolicy
from .traits import Kind, Traits, inspect_problem
from .validity import Admission, Measured, admit, uncovered_regions, unguarded_outputs
from .version import version

Progress = Callable[[str], None]
Recipe = tuple[str, Mapping[str, Any]]  # a generator and its parameters

_MIB = 1 << 20
_SMALL = (_MIB, 8 * _MIB, 64 * _MIB, 512 * _MIB)  # bytes of ragged entries: the smallest that give any variant
_CPU_DECLARED = (64 * _MIB, 4_000_000_000)  # bytes and multiply-adds of a declared-shape entry that a CPU still judges
_CPU_RESERVE = (16 * _MIB, 500_000_000)  # of a twin that is only there for refusals
GPU_SHARE = 16  # a declared-shape entry may take one part in so many of a GPU's memory; truth and copies need the rest
_ALONE = 0.9  # of a GPU's memory is free
_TARGETED = 3
_LEAST_ENTRIES = 2
_MAX_ENTRIES = 6
_MOST_MEASURED = 24  # entries put through the gate before the search for what is lacking is given up
_MAX_LARGE, _MOST_MEASURED_LARGE = 3, 10  # the same where every entry is large

_DENSE: tuple[Recipe, ...] = (("normal", {}), ("own", {}))
#: Per kind of operator, the families that show what goes wrong there; each family's docstring says what that is.
_TARGETS: Mapping[Kind, tuple[Recipe, ...]] = {
    "elementwise": (("thresholds", {}), ("large", {}), ("negative", {})),
    "reduction": (("spiky", {}), ("negative", {}), ("integers", {})),
    "softmax": (("offset", {}), ("spiky", {}), ("zero_rows", {})),
    "norm": (("spiky", {}), ("zero_rows", {}), ("integers", {})),  # offset would refuse honest one-pass variances
    "matmul": (("integers", {}), ("spiky", {}), ("ramp", {})),
    "conv": (("one_hot", {}), ("ramp", {}), ("spiky", {})),
    "conv_transpose": (("one_hot", {}), ("ramp", {}), ("spiky", {})),
    "pool": (("negative", {}), ("ramp", {}), ("ties", {})),
    "loss": (("spiky", {}), ("thresholds", {}), ("ramp", {})),
    "attention": (("normal", {"sigma": 4.0}), ("spiky", {}), ("ramp", {})),
    "argreduce": (("ties", {}), ("negative", {}), ("ramp", {})),
    "scan": (("ramp", {}), ("integers", {}), ("alternating", {})),
    "network": (("spiky", {}), ("negative", {}), ("ramp", {})),
    "other": (("spiky", {}), ("negative", {}), ("integers", {})),
}
_LAST: tuple[Recipe, ...] = (("spiky", {}), ("negative", {}), ("integers", {}), ("ramp", {}), ("thresholds", {}))


def build_default_suite(
    problem: Problem,
    device: str | torch.device = "cpu",
    policy: TolerancePolicy | None = None,
    progress: Progress | None = None,
) -> Built:
    """Select entries for a problem and measure them on a device.

    Args:
        progress: called with the id of each entry before it is measured.

    Returns:
        The suite, or None where no entry is admitted; and what the gate rejected.

    Raises:
        InputError: the problem's own code is broken.
    """
    builder = _Builder(problem, torch.device(device), policy or TolerancePolicy(), progress or (lambda _: None))
    return builder.build()


def cached_default_suite(
    problem: Problem,
    device: str | torch.device = "cpu",
    policy: TolerancePolicy | None = None,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
) -> Built:
    """`build_default_suite`, remembered on disk for this source, device class, policy and these versions."""
    policy, target = policy or TolerancePolicy(), torch.device(device)
    key = cache_key(problem, target.type, policy.name)
    alone = has_it_all(target)

    def keep(built: Built) -> bool:  # what did not fit beside others may fit another time
        return alone or not short_of_memory(built)

    return cached(key, lambda: build_default_suite(problem, device, policy, progress), cache_dir, keep)


def short_of_memory(built: Built) -> bool:
    """Whether memory was short for an entry, or for a member of the envelope that a tolerance should follow."""
    suite, rejected = built
    entries = () if suite is None else (*suite.entries, *suite.reserves)
    admitted = [Admission(item.entry, True, measured=m) for item in entries for m in item.measured]
    return any(answer.short_of_memory for answer in (*rejected, *admitted))


def has_it_all(device: torch.device) -> bool:
    """Whether hardly anybody else uses a GPU, so that what does not fit now does not fit on it; never so elsewhere."""
    if device.type != "cuda":
        return False
    return free_memory(device) > _ALONE * torch.cuda.get_device_properties(device).total_memory


class _Builder:
    """One build: remembers what the gate said, so that no entry is measured twice."""

    def __init__(self, problem: Problem, device: torch.device, policy: TolerancePolicy, progress: Progress) -> None:
        self.problem = problem
        self.device = device
        self.policy = policy
        self.progress = progress
        self.traits = inspect_problem(problem)
        found = (ragged_variants(problem, self.traits, max_bytes=size) for size in _SMALL)
        self.shapes: list[dict[str, Any]] = next((variants for variants in found if variants), [])
        self.answers: dict[str, Admission] = {}

    def build(self) -> Built:
        """Fill the slots, then try the spares while something is lacking; what stays lacking is in the provenance."""
        chosen: dict[str, Admission] = {}
        limit, most = (_MAX_LARGE, _MOST_MEASURED_LARGE) if self._large_shapes() else (_MAX_ENTRIES, _MOST_MEASURED)
        for slot in _slots(self.traits, self.shapes):
            if len(chosen) < limit:
                self._fill(slot, chosen)
        for entry in _spares(self.traits, self.shapes):
            enough = len(chosen) >= _LEAST_ENTRIES
            if (enough and not _unseen(chosen)) or len(self.answers) >= most:
                break
            if entry.id not in chosen and self._ask(entry, _CPU_DECLARED).admitted:
                more = {**chosen, entry.id: self.answers[entry.id]}
                if not enough or _unseen(more) < _unseen(chosen):
                    chosen = more
        rejected = tuple(a for a in self.answers.values() if not a.admitted)
        return (self._suite(chosen) if chosen else None), rejected

    def _large_shapes(self) -> bool:
        """Whether even the smallest entry costs a CPU seconds: the model's own sizes are large."""
        smallest = Entry.make("own", constants=self.shapes[0] if self.shapes else {})
        return self.device.type == "cpu" and entry_bytes(self.problem, smallest) > _CPU_RESERVE[0]

    def _fill(self, slot: Sequence[Entry], chosen: dict[str, Admission]) -> None:
        """Add the first of a slot's alternatives that is admitted."""
        for entry in slot:
            if self._ask(entry, _CPU_DECLARED).admitted:
                chosen.setdefault(entry.id, self.answers[entry.id])
                return

    def _ask(self, entry: Entry, budget: tuple[int, int]) -> Admission:
        if entry.id not in self.answers:
            why = self._too_large(entry, budget)
            if why:
                self.answers[entry.id] = Admission(entry, False, "too-large", why)
            else:
                self.progress(entry.id)
                self.answers[entry.id] = admit(self.problem, entry, self.device, self.policy)
        return self.answers[entry.id]

    def _too_large(self, entry: Entry, budget: tuple[int, int]) -> str:
        if not entry.declared_shape:
            return ""
        size = entry_bytes(self.problem, entry)
        if self.device.type == "cuda":
            room = torch.cuda.get_device_properties(self.device).total_memory // GPU_SHARE
            return (
                f"{size / _MIB:.0f} MiB of {room / _MIB:.0f} that a declared-shape entry may take"
                if size > room
                else ""
            )
        if size > budget[0]:
            return f"{size / _MIB:.0f} MiB at the declared shape; a CPU judges up to {budget[0] / _MIB:.0f}"
        if self.traits.work > budget[1]:
            return f"{self.traits.work:.1e} operations at the declared shape; a CPU judges up to {budget[1]:.1e}"
        return ""

    def _suite(self, chosen: Mapping[str, Admission]) -> Suite:
        reserves: dict[str, SuiteEntry] = {}
        entries = []
        for admission in chosen.values():
            twin = self._twin(admission.entry, chosen)
            if twin is not None and twin.entry.id not in chosen:
                reserves.setdefault(twin.entry.id, _item(twin))
            entries.append(_item(admission, None if twin is None else twin.entry.id))
        measured = _measured(chosen)
        gaps = {
            "uncovered_regions": len(uncovered_regions(measured)),
            "unguarded_outputs": len(unguarded_outputs(measured)),
        }
        return Suite(
            problem_id=self.problem.id,
            problem_hash=self.problem.hash,
            entries=tuple(entries),
            policy=self.policy.name,
            provenance={
                "made_by": f"kernelward {version()}, default for {self.traits.kind}",
                "torch": str(torch.__version__),
                "device": torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu",
                **{name: count for name, count in gaps.items() if count},
            },
            reserves=tuple(reserves.values()),
        )

    def _twin(self, entry: Entry, chosen: Mapping[str, Admission]) -> Admission | None:
        if entry.declared_shape:
            return None
        twin = replace(entry, constants=())
        answer = chosen.get(twin.id) or self._ask(twin, _CPU_RESERVE)
        return answer if answer.admitted else None


def _measured(chosen: Mapping[str, Admission]) -> list[Measured]:
    return [a.measured for a in chosen.values() if a.measured is not None]


def _unseen(chosen: Mapping[str, Admission]) -> int:
    """Parts of outputs that no entry sees, and outputs that a trivial answer passes in every entry."""
    measured = _measured(chosen)
    return len(uncovered_regions(measured)) + len(unguarded_outputs(measured))


def _item(admission: Admission, twin: str | None = None) -> SuiteEntry:
    assert admission.measured is not None
    return SuiteEntry(admission.entry, (admission.measured,), twin)


def _slots(traits: Traits, shapes: Sequence[Mapping[str, Any]]) -> Iterator[list[Entry]]:
    """Alternatives per slot, in order of selection."""
    dense = _usable(_DENSE, traits)
    small = shapes[0] if shapes else {}
    if shapes:
        yield [Entry.make(name, params=p, constants=shape) for name, p in dense for shape in shapes[:2]]
    yield [Entry.make(name, params=p) for name, p in dense]
    for name, params in _usable(_TARGETS[traits.kind], traits)[:_TARGETED]:
        yield [Entry.make(name, params=params, constants=small)]
    for shape in shapes[2:3]:
        yield [Entry.make(name, params=p, constants=shape) for name, p in reversed(dense)]


def _spares(traits: Traits, shapes: Sequence[Mapping[str, Any]]) -> Iterator[Entry]:
    """Further entries for a suite that still lacks something."""
    recipes = [*_usable(_DENSE, traits), *_usable(_TARGETS[traits.kind], traits), *_usable(_LAST, traits)]
    for shape in (*shapes, {}):
        for name, params in recipes:
            yield Entry.make(name, params=params, constants=shape)


def _usable(recipes: Sequence[Recipe], traits: Traits) -> list[Recipe]:
    return [(name, params) for name, params in recipes if GENERATORS[name].applies(traits)]
