"""Batch slices: evaluate a reference piece by piece along the first dimension, only where that is shown to be the same.

Whether a forward treats the items of a batch one by one cannot be read off a shape (a square matrix product and a batch
normalisation look alike), so a plan is accepted only after slices of one item gave the outputs of the whole.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .compare import is_exact, normalised_error, row_scale

Run = Callable[[list[Any]], list[Tensor]]

_AGREE = {torch.float16: 3e-2, torch.bfloat16: 1e-1}
_AGREE_SINGLE = 1e-3  # rounding differs with the shape of a product; another meaning differs by far more


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """Which inputs are cut along dimension 0.

    Attributes:
        sliced: per input, whether it is cut; the others are passed whole.
        batch: size of dimension 0 of the cut inputs and of every output.
    """

    sliced: tuple[bool, ...]
    batch: int

    def cut(self, inputs: Sequence[Any], start: int, stop: int) -> list[Any]:
        """The inputs of items start..stop (views)."""
        return [x[start:stop] if s else x for x, s in zip(inputs, self.sliced, strict=True)]

    def steps(self, pieces: int) -> Iterator[tuple[int, int]]:
        """(start, stop) of about `pieces` equal pieces, at least one item each."""
        step = max(1, -(-self.batch // max(1, pieces)))
        for start in range(0, self.batch, step):
            yield start, min(start + step, self.batch)


def find_plan(run: Run, inputs: Sequence[Any], whole: Sequence[Tensor]) -> SlicePlan | None:
    """A plan whose slices give the same outputs as the whole, or None.

    Args:
        run: evaluates the reference on inputs (must not change them).
        inputs: the whole inputs.
        whole: the outputs of `run(inputs)`.
    """
    sizes = {t.shape[0] if t.dim() else 0 for t in whole}
    if len(sizes) != 1 or (batch := sizes.pop()) < 2:
        return None
    fits = [isinstance(x, Tensor) and x.dim() > 0 and x.shape[0] == batch for x in inputs]
    choices = [tuple(fits)] + [tuple(i == j for j in range(len(fits))) for i, fit in enumerate(fits) if fit]
    for sliced in dict.fromkeys(choices):
        plan = SlicePlan(sliced, batch)
        if any(sliced) and _agrees(plan, run, inputs, whole):
            return plan
    return None


def _agrees(plan: SlicePlan, run: Run, inputs: Sequence[Any], whole: Sequence[Tensor]) -> bool:
    for start in sorted({0, plan.batch // 2, plan.batch - 1}):
        try:
            piece = run(plan.cut(inputs, start, start + 1))
        except MemoryError:
            raise
        except Exception:  # a forward that cannot take one item alone says so in its own way
            return False
        if len(piece) != len(whole):
            return False
        for part, full in zip(piece, whole, strict=True):
            expected = full[start : start + 1]
            scale = None if is_exact(full) else row_scale(expected)
            if normalised_error(part, expected, scale) > _AGREE.get(full.dtype, _AGREE_SINGLE):
                return False
    return True
