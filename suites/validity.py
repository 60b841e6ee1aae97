"""The validity gate: which entries may judge a candidate, decided before any candidate or mutant runs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from .compare import is_exact, normalised_error
from .controls import BANDS, CONTROLS, Power, least_power, power
from .draw import Drawn, draw_entry, entry_dtype
from .entry import Entry
from .envelope import REFERENCE, Samples, is_small
from .errors import InputError
from .fan_in import fan_in
from .hashing import derive_seed
from .oracle import TRUE_FP32, OracleError, Truth, compute_truth, reference_outputs, tensors_of
from .problem import Problem, is_out_of_memory
from .promises import PROMISES, broken_promise
from .tolerance import OUTPUT_FACTOR, TolerancePolicy, tolerance, unit_roundoff
from .traits import inspect_problem

SEEDS = 8
POWER_DRAWS = 2  # draws that power and fan-in are measured on
REGION_POWER = 0.5  # a region is covered by an entry in which this share of its elements has power

OUT_OF_MEMORY = "out-of-memory"
REASONS = {
    "reference-raises": "the reference raises at this entry's shape, dtype or values",
    "float64-raises": "the reference cannot be evaluated in float64",
    "draw-raises": "the inputs cannot be drawn",
    "bad-output": "the reference returns something else than tensors",
    OUT_OF_MEMORY: "it does not fit on this device",
    "draw-not-reproducible": "the same seed gave other inputs",
    "broken-promise": "the inputs are not what their family's description says",
    "random": "the reference gives another answer under another random state (dropout)",
    "empty-output": "an output has no elements",
    "not-finite": "the truth holds NaN or Inf",
    "all-zero": "the truth is all zeros",
    "disagreement": "the reference at the entry's dtype is further from its float64 run than the cap",
    "above-cap": "the tolerance that correct implementations need is above the cap",
    "powerless": "a trivial answer would pass",
}
"""Machine-readable reasons of a rejection; `powerless` is followed by a colon and the control that passes."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What the gate measured about an entry on one device class; lists have one item per output.

    Attributes:
        device_class: `cpu` or `cuda`.
        policy: name of the tolerance policy.
        seeds: over how many draws.
        fan_in: input and parameter elements that one output element depends on, at least 1.
        envelope: largest normalised error among the envelope's members.
        tolerance: what a candidate is held against.
        power: share of output elements where a zero would exceed the tolerance, the least over the seeds.
        regions: per output, 8 x 8 shares by relative position (row bands, then bands of the last dimension): of the
            elements whose truth is not zero, how many have power; -1 where all truths are zero.
        controls: name of a control -> per output, whether it fails as it must (None: not applicable).
        members: member of the envelope -> its largest error per output; a member that changed nothing is left out.
        skipped: members that could not run, with the reason.
        scale_pool: per output, row scales pooled over the seeds (outputs of fewer than 64 elements), else None.
        bytes: inputs, outputs and parameters of one draw.
    """

    device_class: str
    policy: str
    seeds: int
    fan_in: tuple[int, ...]
    envelope: tuple[float, ...]
    tolerance: tuple[float, ...]
    power: tuple[float, ...]
    regions: tuple[tuple[float, ...], ...]
    controls: Mapping[str, tuple[bool | None, ...]]
    members: Mapping[str, tuple[float, ...]]
    scale_pool: tuple[tuple[float, ...] | None, ...]
    bytes: int
    skipped: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for YAML."""
        return {k: _plain(v) for k, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of `to_dict`.

        Raises:
            TypeError: a field is missing or unknown, or of the wrong kind.
        """
        known = {f.name for f in fields(cls)}
        if set(data) - known:
            raise TypeError(f"unknown field {sorted(set(data) - known)[0]!r}")
        return cls(**{k: _frozen(v) for k, v in data.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _frozen(v) for k, v in value.items()}
    return tuple(_frozen(v) for v in value) if isinstance(value, (list, tuple)) else value


@dataclass(frozen=True, slots=True)
class Admission:
    """The gate's answer for one entry.

    Attributes:
        entry: the recipe.
        admitted: whether it may judge.
        reason: machine-readable code of a rejection ("" if admitted).
        detail: the same for people: what was measured.
        measured: what was measured (also for entries rejected late, where it explains the rejection).
    """

    entry: Entry
    admitted: bool
    reason: str = ""
    detail: str = ""
    measured: Measured | None = None

    @property
    def short_of_memory(self) -> bool:
        """Whether memory was short for the entry, or for a member of the envelope that its tolerance should follow."""
        skipped = {} if self.measured is None else self.measured.skipped
        return self.reason == OUT_OF_MEMORY or any(text.startswith(OUT_OF_MEMORY) for text in skipped.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON and YAML."""
        return {
            "entry": self.entry.to_dict(),
            "admitted": self.admitted,
            "reason": self.reason,
            "detail": self.detail,
            "measured": None if self.measured is None else self.measured.to_dict(),
        }


class _Rejection(Exception):
    def __init__(self, reason: str, detail: str, measured: Measured | None = None) -> None:
        super().__init__(detail)
        self.reason, self.detail, self.measured = reason, detail, measured


def admit(
    problem: Problem,
    entry: Entry,
    device: str | torch.device = "cpu",
    policy: TolerancePolicy | None = None,
    seeds: int = SEEDS,
) -> Admission:
    """The gate: measure an entry on a device, and decide whether it may judge.

    Args:
        problem, entry: what is drawn.
        device: where; what was measured holds for its class (`cpu`, `cuda`).
        policy: which implementations count as correct.
        seeds: over how many draws, at least 2.
    """
    policy = policy or TolerancePolicy()
    try:
        measured = _measure(problem, entry, torch.device(device), policy, max(2, seeds))
    except _Rejection as error:
        return Admission(entry, False, error.reason, error.detail, error.measured)
    except OracleError as error:
        return Admission(entry, False, error.reason, str(error))
    except Exception as error:  # wherever in the comparisons it was
        if not is_out_of_memory(error):
            raise
        return Admission(entry, False, OUT_OF_MEMORY, str(error))
    return Admission(entry, True, measured=measured)


def admission_seed(problem: Problem, entry: Entry, draw: int) -> int:
    """The seed of one of the gate's draws (public and fixed, so that a suite can be measured again)."""
    return derive_seed(b"kernelward admission", problem.hash, entry.id, draw)


def _draw(problem: Problem, entry: Entry, draw: int, device: torch.device) -> Drawn:
    try:
        # nothing but the reference is built here: its parameters may come from where they are drawn fastest
        return draw_entry(problem, entry, admission_seed(problem, entry, draw), device, parameters_on=device)
    except InputError as error:
        raise _Rejection("draw-raises", str(error)) from error
    except Exception as error:
        if is_out_of_memory(error):
            raise _Rejection(OUT_OF_MEMORY, str(error)) from error
        raise


def _measure(problem: Problem, entry: Entry, device: torch.device, policy: TolerancePolicy, seeds: int) -> Measured:
    dtype = entry_dtype(entry)
    cap = policy.cap(dtype)
    _check_draw(problem, entry, device)
    samples = Samples()
    counts: list[tuple[int, ...]] = []
    for draw in range(seeds):
        drawn = _draw(problem, entry, draw, device)
        truth = compute_truth(drawn, TRUE_FP32, ties=policy.ties)
        _check_truth(truth)
        _check_reference(truth, cap)
        if draw < POWER_DRAWS:
            assert truth.reference is not None
            counts.append(fan_in(drawn, truth.reference))
        samples.add(drawn, truth, policy.members(dtype))
        _check_so_far(truth, samples, counts, cap)
        size, dtypes = _bytes(drawn, truth), truth.output_dtypes
        exact = [is_exact(t) and truth.selection(i) is None for i, t in enumerate(truth.outputs)]
        del drawn, truth  # before the next draw is made
    pool = samples.finish()
    n = tuple(max(c) for c in zip(*counts, strict=True))
    envelope = samples.envelope()
    tolerances = tuple(
        (0.0 if e == 0 else math.inf) if x else tolerance(k, e, t)
        for x, k, e, t in zip(exact, n, envelope, dtypes, strict=True)
    )
    powers = _powers(problem, entry, device, policy, tolerances, pool, min(POWER_DRAWS, seeds))
    measured = Measured(
        device_class=device.type,
        policy=policy.name,
        seeds=seeds,
        fan_in=n,
        envelope=envelope,
        tolerance=tolerances,
        power=tuple(round(p.share, 6) for p in powers),
        regions=tuple(p.regions for p in powers),
        controls={
            name: tuple(None if e is None else e > t for e, t in zip(errors, tolerances, strict=True))
            for name, errors in samples.controls.items()
        },
        members={name: tuple(row) for name, row in samples.members.items()},
        scale_pool=pool,
        bytes=size,
        skipped=samples.skipped,
    )
    _check_measured(measured, samples, cap)
    return measured


def _check_draw(problem: Problem, entry: Entry, device: torch.device) -> None:
    """The same seed gives the same inputs, and the reference's answer depends on nothing else."""
    first, second = (_draw(problem, entry, 0, device) for _ in range(2))
    leaves = zip(tree_leaves(first.inputs), tree_leaves(second.inputs), strict=True)
    if not all(_same(a, b) for a, b in leaves):
        raise _Rejection("draw-not-reproducible", "get_inputs gave other values for the same seed")
    del second
    if entry.generator in PROMISES:
        _check_promise(problem, entry, first, device)
    _check_random(first)


def _same(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor):
        return bool(a == b)
    return a.shape == b.shape and torch.equal(_raw(a), _raw(b))


def _raw(x: Tensor) -> Tensor:
    return x.detach().contiguous().reshape(-1).view(torch.uint8)


def _check_truth(truth: Truth) -> None:
    if any(t.numel() == 0 for t in truth.outputs):
        raise _Rejection("empty-output", f"output shapes {truth.shapes}")
    for i, t in enumerate(truth.outputs):
        if t.is_floating_point() and not bool(torch.isfinite(t).all()):
            raise _Rejection("not-finite", f"output {i} of the float64 run holds NaN or Inf")
    if all(not bool(t.any()) for t in truth.outputs):
        raise _Rejection("all-zero", "the float64 run gives nothing but zeros")


def _check_reference(truth: Truth, cap: float) -> None:
    """Say so at the first draw that shows it: in a deep network the rest of the gate takes minutes."""
    for i, (target, own) in enumerate(zip(truth.outputs, truth.reference_errors, strict=True)):
        if own > cap and not is_small(target):
            raise _Rejection("disagreement", f"output {i}: the reference errs by {own:.2g}, cap {cap:g}")


def _check_so_far(truth: Truth, samples: Samples, counts: Sequence[tuple[int, ...]], cap: float) -> None:
    """The same for the tolerance, which further draws can only raise."""
    for i, target in enumerate(truth.outputs):
        if not is_small(target) and not is_exact(target):
            n, envelope = max(c[i] for c in counts), samples.envelope()[i]
            _check_tolerance(i, tolerance(n, envelope, truth.output_dtypes[i]), n, samples, cap)


def _check_tolerance(
    output: int, allowed: float, fan_in: int, samples: Samples, cap: float, measured: Measured | None = None
) -> None:
    if allowed > cap:
        worst = samples.worst_member(output)
        why = f"largest member {worst} at {samples.members[worst][output]:.2g}, fan-in {fan_in}"
        raise _Rejection("above-cap", f"output {output}: tolerance {allowed:.2g} above {cap:g} ({why})", measured)


def _check_promise(problem: Problem, entry: Entry, drawn: Drawn, device: torch.device) -> None:
    """The inputs are what their family says of itself."""
    plain = replace(entry, generator="own", params=(), scale=1.0)
    traits = inspect_problem(problem, constants=dict(entry.constants))
    wrong = broken_promise(entry, drawn.inputs, lambda: _draw(problem, plain, 0, device).inputs, traits)
    if wrong:
        raise _Rejection("broken-promise", wrong)


def _check_random(drawn: Drawn) -> None:
    """Reject a reference whose answer depends on the random state of its forward, by more than it varies by itself."""
    first, again, other = (reference_outputs(drawn, seed=seed) for seed in (1, 1, 2))
    for i, (y, same, moved) in enumerate(zip(first, again, other, strict=True)):
        if y.shape != moved.shape:
            raise _Rejection("random", f"the shape of output {i} depends on the random state")
        wide = y if is_exact(y) else y.double()
        unit = OUTPUT_FACTOR * unit_roundoff(y.dtype)
        noise, shift = normalised_error(same, wide), normalised_error(moved, wide)  # atomics vary by themselves
        if shift > max(unit, 4 * noise):
            raise _Rejection("random", f"another random state moves output {i} by {shift:.2g}")


def _bytes(drawn: Drawn, truth: Truth) -> int:
    held = tensors_of(drawn.build_model(), drawn.inputs)
    outputs = sum(t.numel() * d.itemsize for t, d in zip(truth.outputs, truth.output_dtypes, strict=True))
    return outputs + sum(t.numel() * t.element_size() for t in held)


def _powers(
    problem: Problem,
    entry: Entry,
    device: torch.device,
    policy: TolerancePolicy,
    tolerances: tuple[float, ...],
    pool: Sequence[Sequence[float] | None],
    draws: int,
) -> list[Power]:
    found: list[list[Power]] = []
    for draw in range(draws):
        truth = compute_truth(_draw(problem, entry, draw, device), scale_pool=pool, ties=policy.ties)
        found.append([power(t, s, e) for t, s, e in zip(truth.outputs, truth.scales, tolerances, strict=True)])
    return [least_power(of_output) for of_output in zip(*found, strict=True)]


def _check_measured(measured: Measured, samples: Samples, cap: float) -> None:
    for i, allowed in enumerate(measured.tolerance):
        own = measured.members[REFERENCE][i]
        if own > cap or (allowed == math.inf and own > 0):
            raise _Rejection("disagreement", f"output {i}: the reference errs by {own:.2g}, cap {cap:g}", measured)
        _check_tolerance(i, allowed, measured.fan_in[i], samples, cap, measured)
    for control in CONTROLS:
        fails = measured.controls.get(control, (None,))
        if all(f is False for f in fails):  # an output that the control has no answer for stops it
            raise _Rejection(f"powerless:{control}", f"the answer {control!r} is within tolerance", measured)


@dataclass(frozen=True, slots=True)
class Region:
    """A part of an output: `row` and `column` are bands out of 8, by relative position."""

    output: int
    row: int
    column: int
    power: float


def uncovered_regions(measured: Sequence[Measured], least: float = REGION_POWER) -> list[Region]:
    """Regions of the output in which no entry of a suite has power.

    A few huge values must not blind the rest, so every region needs one entry in which at least `least` of its elements
    that are not zero would be noticed missing. A region that is zero in every entry (the empty half of a triangular
    product) needs none: anything but zero is noticed there.

    Args:
        measured: the measurements of a suite's entries for one device class.
        least: share of a region's elements that need power.
    """
    if not measured:
        return []
    found = []
    for output in range(len(measured[0].regions)):
        for at in range(BANDS * BANDS):
            best = max(m.regions[output][at] for m in measured)
            if 0 <= best < least:
                found.append(Region(output, at // BANDS, at % BANDS, best))
    return found


def unguarded_outputs(measured: Sequence[Measured]) -> list[tuple[int, str]]:
    """(output, control) pairs where a trivial answer for that one output would pass every entry of a suite.

    Matters for problems with several outputs: an entry is admitted if a control fails as a whole.
    """
    if not measured:
        return []
    found = []
    for output in range(len(measured[0].tolerance)):
        for control in CONTROLS:
            answers = [m.controls[control][output] for m in measured if control in m.controls]
            if answers and all(a is False for a in answers):
                found.append((output, control))
    return found
