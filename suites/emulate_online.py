"""The envelope's `online` member: means and variances kept up to date term by term, in many lanes that are then merged.

Welford's recurrence (B. P. Welford, Note on a method for calculating corrected sums of squares and products,
Technometrics 4, 1962) inside each lane, and the pairwise merge of Chan, Golub and LeVeque (Algorithms for computing the
sample variance, The American Statistician 37, 1983) across lanes: how a warp computes them in one pass. A running mean
rounds as often as a running sum, but at the size of the mean so far and not of the total, so where terms cancel across
lanes it errs several times more than any order of summation, without being less correct.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .emulate_order import BUDGET, evenly
from .emulate_rules import Rule, dimensions, variance_rules

aten = torch.ops.aten

LANES = 32  # of a warp
STEPS = 256  # terms that a lane takes at most; longer reductions have more lanes, as blocks and grids of threads do


def running_moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and sum of squared deviations of each row, in float32.

    Lane l takes the columns l, l + lanes, l + 2 lanes, ...; then the upper half of the lanes is merged into the lower
    one until one is left. Lanes that took nothing change nothing, so a row shorter than a warp has fewer.

    Args:
        rows: [R, n], float32, n >= 1.

    Returns:
        Two tensors [R].
    """
    height, length = rows.shape
    lanes = min(LANES, 1 << (length - 1).bit_length())
    while lanes * STEPS < length:
        lanes *= 2
    mean, squares = rows.new_zeros(height, lanes), rows.new_zeros(height, lanes)
    # Tensors, not numbers: on a GPU torch divides by a number by multiplying with its reciprocal.
    counts = torch.arange(1, -(-length // lanes) + 1, dtype=torch.float32, device=rows.device)
    for step in range(len(counts)):
        terms = rows[:, step * lanes : (step + 1) * lanes]
        running, spread = mean[:, : terms.shape[1]], squares[:, : terms.shape[1]]
        delta = terms - running
        running += delta / counts[step]
        spread += delta.mul_(terms - running)
    taken = (length - torch.arange(lanes, device=rows.device) + lanes - 1).div(lanes, rounding_mode="floor").float()
    while lanes > 1:
        lanes //= 2
        count, other = taken[:lanes], taken[lanes:]
        total = count + other
        share = total.clamp_min(1.0)
        delta = mean[:, lanes:] - mean[:, :lanes]
        squares = squares[:, :lanes] + (squares[:, lanes:] + delta * delta * count * other / share)
        mean = mean[:, :lanes] + delta * other / share
        taken = total
    return mean[:, 0], squares[:, 0]


def online_rules() -> dict[Any, Rule]:
    """Rules for means, variances and standard deviations.

    As many outputs of an operation as a quarter of `BUDGET` terms allows are computed this way, evenly spaced, the
    first and the last included; the others keep torch's own result. A reduction of more than `BUDGET` terms is left to
    torch altogether: its fan-in alone allows more than lanes of 256 terms err.
    """

    def moments(x: Tensor, dims: Any) -> tuple[Tensor, Tensor, Tensor, int] | None:
        """Which outputs (flat indices), their means and sums of squares, and how many terms each has."""
        if x.dim() == 0 or x.numel() == 0:
            return None
        along = dimensions(x, dims)
        rest = [d for d in range(x.dim()) if d not in along]
        length = math.prod(x.shape[d] for d in along)
        if length > BUDGET:
            return None
        view = x.permute(rest + along)
        picked = evenly(x.numel() // length, max(1, BUDGET // 4 // length))  # a term costs four of a plain sum
        rows = view[np.unravel_index(picked, view.shape[: len(rest)])] if rest else view[None]
        mean, squares = running_moments(rows.reshape(len(picked), length))
        return torch.from_numpy(picked).to(x.device), mean, squares, length

    def mean(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
        found = moments(x, dim) if dtype in (None, torch.float32) else None
        if found is None:
            return NotImplemented
        at, values, _, _ = found
        return _with(x.mean(dimensions(x, dim), keepdim=keepdim), at, values)

    def variance(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
        found = moments(x, dim)
        if found is None:
            return NotImplemented
        at, values, squares, length = found
        variances, means = torch.var_mean(x, dimensions(x, dim), correction=correction, keepdim=keepdim)
        freedom = max(0, length - (1 if correction is None else correction))
        return _with(variances, at, squares / freedom), _with(means, at, values)

    return {
        aten.mean.default: mean,
        aten.mean.dim: mean,
        **variance_rules(variance),
    }


def _with(result: Tensor, at: Tensor, values: Tensor) -> Tensor:
    """The result with the elements at flat indices replaced."""
    return result.flatten().index_copy(0, at, values).reshape(result.shape)
