"""What a count of coverage found: shares with intervals, one line per protocol, and all of it as plain values."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from scipy.stats import binomtest

from ..suites.errors import InputError
from .coverage_cells import Engine

FORMAT = 1
SUITE_K = 3  # what `kernelward` without a number stands for
OURS = "kernelward"
_SMALL = 40  # below that many the interval is the exact one

By = Literal["family", "problem", "operator", "backend"]


def grouping(name: str) -> By:
    """What the groups of a report are, by name.

    Raises:
        InputError: there is no such grouping.
    """
    for known in get_args(By):
        if known == name:
            return cast(By, known)
    raise InputError(f"--by {name!r}: use one of {', '.join(get_args(By))}")


@dataclass(frozen=True, slots=True)
class Share:
    """A counted share with its 95 % interval (Wilson; Clopper-Pearson below 40).

    Attributes:
        detected, of: mutants; unknown ones are in neither.
        unknown: witnessed mutants that missing cells leave open.
    """

    detected: int
    of: int
    unknown: int = 0

    @property
    def share(self) -> float:
        """detected / of; NaN of nothing."""
        return self.detected / self.of if self.of else math.nan

    @property
    def at_least(self) -> float:
        """The share if every unknown mutant were missed; 0 of nothing."""
        return self.detected / max(self.of + self.unknown, 1)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval; (0, 1) of nothing."""
        if not self.of:
            return 0.0, 1.0
        found = binomtest(self.detected, self.of).proportion_ci(method="exact" if self.of < _SMALL else "wilson")
        return float(found.low), float(found.high)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; the share of nothing is null."""
        low, high = self.interval
        share = None if not self.of else round(self.share, 6)
        counts = {"detected": self.detected, "of": self.of, "unknown": self.unknown}
        return {
            **counts,
            "share": share,
            "low": round(low, 6),
            "high": round(high, 6),
            "at_least": round(self.at_least, 6),
        }


@dataclass(frozen=True, slots=True)
class ProtocolCoverage:
    """One protocol's line.

    Attributes:
        name: a protocol, or `kernelward@k`: a suite of k entries, chosen on the selected half of the mutants.
        ours, official: over the mutants witnessed at our tolerances, and at the official 1e-2.
        balanced: over `ours`, with every family weighing the same; NaN of nothing.
        bootstrap: 95 % interval of `ours` over resampled problems; None for fewer than two problems.
        groups: `ours` by family, problem, operator or backend.
        selected, held_out: halves of `ours` (suites only).
        whole: suites that are chosen on all mutants, as `calibrate` ships them, and scored on the same (suites only).
        refusal: `ours`, if the candidate refused every changed shape (suites only).
        at_official: the same selection made and judged at 1e-2, over `official` (suites only).
        held_out_at_official: its held-out half.
    """

    name: str
    ours: Share
    official: Share
    balanced: float
    bootstrap: tuple[float, float] | None
    groups: Mapping[str, Share]
    selected: Share | None = None
    held_out: Share | None = None
    whole: Share | None = None
    refusal: Share | None = None
    at_official: Share | None = None
    held_out_at_official: Share | None = None


@dataclass(frozen=True, slots=True)
class Effect:
    """One cell of inputs x tolerance x engine, over the mutants witnessed at our tolerances."""

    inputs: Literal["official", "ours"]
    tolerance: Literal["official", "ours"]
    engine: Engine
    share: Share


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that `kernelward coverage` prints.

    Attributes:
        states, substrates: rows of the matrix by state and by status.
        witnessed: per denominator (`ours`, `official`): yes, no, and undecided while cells are missing.
        classes: mutants witnessed at ours by how they show.
        cells: cells that there are, of all (mutant, admitted entry) pairs.
        suites: problem -> k -> ids of the chosen entries.
        inexact: suites that the bounded search did not prove optimal.
    """

    matrix: str
    device_class: str
    by: By
    problems: int
    states: Mapping[str, int]
    substrates: Mapping[str, int]
    witnessed: Mapping[str, Mapping[str, int]]
    classes: Mapping[str, int]
    cells: tuple[int, int]
    protocols: tuple[ProtocolCoverage, ...]
    effects: tuple[Effect, ...]
    suites: Mapping[str, Mapping[int, tuple[str, ...]]]
    inexact: int

    def get(self, name: str) -> ProtocolCoverage:
        """A protocol's line; `kernelward` is the suite of SUITE_K entries."""
        wanted = f"{OURS}@{SUITE_K}" if name == OURS else name
        return next(line for line in self.protocols if line.name == wanted)

    def to_dict(self) -> dict[str, Any]:
        """The object that `--json` prints, documented at `run_coverage`."""
        return {
            "format": FORMAT,
            "matrix": self.matrix,
            "device_class": self.device_class,
            "by": self.by,
            "problems": self.problems,
            "states": dict(self.states),
            "substrates": dict(self.substrates),
            "witnessed": {name: dict(counts) for name, counts in self.witnessed.items()},
            "classes": dict(self.classes),
            "cells": {"present": self.cells[0], "of": self.cells[1]},
            "protocols": [_line_dict(line) for line in self.protocols],
            "effects": [
                {"inputs": e.inputs, "tolerance": e.tolerance, "engine": e.engine, **e.share.to_dict()}
                for e in self.effects
            ],
            "suites": {name: {str(k): list(ids) for k, ids in chosen.items()} for name, chosen in self.suites.items()},
            "inexact": self.inexact,
        }


def _line_dict(line: ProtocolCoverage) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "name": line.name,
        "ours": line.ours.to_dict(),
        "official": line.official.to_dict(),
        "balanced": None if math.isnan(line.balanced) else round(line.balanced, 6),
        "bootstrap": None if line.bootstrap is None else [round(x, 6) for x in line.bootstrap],
        "groups": {label: share.to_dict() for label, share in line.groups.items()},
    }
    for name in ("selected", "held_out", "whole", "refusal", "at_official", "held_out_at_official"):
        share = getattr(line, name)
        plain[name] = None if share is None else share.to_dict()
    return plain
