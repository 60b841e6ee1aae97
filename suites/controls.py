"""Controls and power: what an entry must be able to refuse.

A control is an answer that takes no computing: all zeros, a constant (the mean of the truth), a copy of an input, and,
for small outputs, the answer to another draw. An entry under which one of them passes is powerless against it. Power is
the same question element by element: would a zero here exceed the tolerance?
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from .compare import is_exact, normalised_error, pieces_of, row_scale, rows_of

BANDS = 8  # regions of an output: 8 bands of its rows by 8 bands of its last dimension
CONTROLS = ("zeros", "constant", "copy", "other_draw")


def cheap_answers(truth: Tensor, inputs: Sequence[Any], other: Tensor | None) -> Iterator[tuple[str, Tensor]]:
    """(control, answer) for one output; a control may have several answers (a copy of each input that fits) or none.

    Args:
        truth: the output's truth.
        inputs: the forward's inputs.
        other: the truth of another draw, for small outputs.
    """
    zero = torch.zeros((), dtype=torch.float64, device=truth.device)
    yield "zeros", zero.expand(truth.shape)
    if truth.numel() > 1:
        mean = truth.double().mean()
        yield "constant", (mean.round() if is_exact(truth) else mean).expand(truth.shape)
    for x in tree_leaves(list(inputs)):
        if isinstance(x, Tensor) and x.numel() == truth.numel() and x.is_floating_point() == truth.is_floating_point():
            yield "copy", x.detach().reshape(truth.shape)
    if other is not None and other.shape == truth.shape:
        yield "other_draw", other


def control_errors(
    truth: Tensor, scale: Tensor | None, inputs: Sequence[Any], other: Tensor | None = None
) -> dict[str, float]:
    """Control -> the least normalised error among its answers."""
    least: dict[str, float] = {}
    for name, answer in cheap_answers(truth, inputs, other):
        least[name] = min(least.get(name, float("inf")), normalised_error(answer, truth, scale))
    return least


@dataclass(frozen=True, slots=True)
class Power:
    """Which elements of one output a zero would be noticed in.

    Attributes:
        share: of all elements.
        regions: 8 x 8 shares by relative position, row bands first: of the elements whose truth is not zero; -1 where
            all are zero.
    """

    share: float
    regions: tuple[float, ...]


def power(truth: Tensor, scale: Tensor | None, tolerance: float) -> Power:
    """Measure power: a zero exceeds the tolerance where `|truth| > tolerance * (|truth| + s)`.

    Args:
        truth: float64 or integer, any shape and device.
        scale: `s`, from `row_scale` or pooled; None for exact outputs (every element that is not zero has power).
        tolerance: of this output.
    """
    rows = rows_of(truth)
    height, width = rows.shape
    scales = None if is_exact(truth) else (row_scale(truth) if scale is None else scale).reshape(-1, 1)
    noticed = torch.zeros(BANDS, BANDS, dtype=torch.float64)
    present = torch.zeros(BANDS, BANDS, dtype=torch.float64)
    total = 0
    for r, c in pieces_of(rows):
        t = rows[r, c].double().abs()
        seen = t > (0 if scales is None else tolerance * (t + scales[r]))
        total += int(seen.sum())
        for i, band in _bands(height, r):
            for j, strip in _bands(width, c):
                noticed[i, j] += float(seen[band, strip].sum())
                present[i, j] += float((t[band, strip] != 0).sum())
    shares = torch.where(present > 0, noticed / present.clamp_min(1), -1.0)
    return Power(total / max(1, truth.numel()), tuple(round(v, 4) for v in shares.flatten().tolist()))


def _bands(size: int, piece: slice) -> Iterator[tuple[int, slice]]:
    """(band, its part of the piece, relative to the piece). Bands of a size below 8 overlap, so that none is empty."""
    for band in range(BANDS):
        start = band * size // BANDS
        stop = max(start + 1, (band + 1) * size // BANDS)
        start, stop = max(start, piece.start), min(stop, piece.stop)
        if start < stop:
            yield band, slice(start - piece.start, stop - piece.start)


def least_power(powers: Sequence[Power]) -> Power:
    """The least share over several draws; region by region the least among the draws that are not all zero there."""
    regions = []
    for values in zip(*(p.regions for p in powers), strict=True):
        present = [v for v in values if v >= 0]
        regions.append(min(present) if present else -1.0)
    return Power(min(p.share for p in powers), tuple(regions))
