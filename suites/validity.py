"""The validity gate: which entries may judge a candidate, decided before any candidate or mutant runs."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from .entry import Entry

BANDS = 8  # regions of an output: 8 bands of its rows by 8 bands of its last dimension


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
