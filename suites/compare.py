"""The only numerical comparison of the project: candidate against truth, in float64, chunk by chunk.

`err = max |y - truth| / (|truth| + s)` with `s = max(RMS of truth along its last dimension, RMS of the whole / 30)`,
where the last dimension is the last one longer than one ([B, 1] is one row of B, not B rows of one).
A per-row scale alone punishes honest kernels where a whole row has underflowed (mish at -50), a whole-tensor scale
alone is blind to small rows; the floor of one thirtieth was chosen on public kernels that are known to be correct.

Every function takes tensors of any size and device: the work is done on the device of the truth, in pieces of a bounded
number of elements, so the extra memory is a few pieces and never a copy of the tensor.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from .errors import InputError

if TYPE_CHECKING:
    from .oracle import Truth

Ties = Literal["first", "value"]
Reason = Literal["", "value", "nan", "shape", "dtype", "count"]

ROW_FLOOR = 30.0  # a row's scale is at least the whole tensor's RMS over this
SMALL_OUTPUT = 64  # outputs with fewer elements pool scale and envelope over several seeds
_CHUNK = {"cpu": 1 << 16, "cuda": 1 << 24}  # on the CPU a piece stays in the cache


@dataclass(frozen=True, slots=True)
class Selection:
    """Where an index output points: lets indices be compared by the value that they select.

    Attributes:
        values: the float64 tensor that was searched (flattened where the search had no dimension).
        dim: the searched dimension of `values`; the index output has the same number of dimensions (size 1 or k here)
            or one fewer.
    """

    values: Tensor
    dim: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """The worst output of one comparison.

    Attributes:
        ok: every output is within its tolerance.
        err: normalised error of the worst output (the one with the largest err / tolerance); inf for a mismatch in
            count, shape, dtype or finiteness.
        tolerance: what `err` was held against.
        margin: the largest `max |reference - y| / (1 + |y|)` over the outputs, against the reference where the truth
            carries one, else against the truth itself; NaN counts as inf. Any atol = rtol is re-evaluated from it.
        output: which output is the worst.
        index: where in that output the worst element is; () if the shapes differ.
        reason: "" if ok; `value`, `nan` (NaN or Inf where truth is finite, or the reverse), `shape`, `dtype`, `count`.
    """

    ok: bool
    err: float
    tolerance: float
    margin: float
    output: int
    index: tuple[int, ...]
    reason: Reason


def flatten_outputs(obj: Any) -> list[Tensor]:
    """The tensors of a forward's result, in order: a tensor, tuple, list, mapping or dataclass, nested at will.

    Raises:
        InputError: something in it is not a dense real tensor, or there is no tensor at all.
    """
    found = list(_walk_outputs(obj))
    if not found:
        raise InputError("forward returned no tensor")
    return found


def _walk_outputs(obj: Any) -> Iterator[Tensor]:
    if isinstance(obj, Tensor):
        if obj.layout != torch.strided or obj.is_complex() or obj.is_quantized:
            raise InputError(
                f"forward returned a {obj.layout} {obj.dtype} tensor; only dense real ones can be compared"
            )
        yield obj
    elif isinstance(obj, Mapping):
        for value in obj.values():
            yield from _walk_outputs(value)
    elif isinstance(obj, (tuple, list)):
        for value in obj:
            yield from _walk_outputs(value)
    elif dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        for field in dataclasses.fields(obj):
            yield from _walk_outputs(getattr(obj, field.name))
    else:
        raise InputError(f"forward returned a {type(obj).__name__}; only tensors can be compared")


def is_exact(tensor: Tensor) -> bool:
    """Whether a truth is compared exactly (integers and bools)."""
    return not tensor.is_floating_point()


def _row_dim(shape: Sequence[int]) -> int | None:
    """The last dimension longer than one: in [B, 1] a row is all of B, or its scale would be each element's own."""
    return next((d for d in reversed(range(len(shape))) if shape[d] > 1), None)


def rows_of(tensor: Tensor) -> Tensor:
    """View (or copy, if strided) as [rows, columns], where columns is the last dimension longer than one."""
    dim = _row_dim(tensor.shape)
    columns = 1 if dim is None else tensor.shape[dim]
    return tensor.reshape(tensor.numel() // columns, columns)


def pieces_of(rows: Tensor) -> Iterator[tuple[slice, slice]]:
    """Row and column slices that cover [R, C] in pieces of a bounded number of elements."""
    height, width = rows.shape
    limit = _CHUNK["cuda" if rows.is_cuda else "cpu"]
    if height == 0 or width == 0:
        return
    if width > limit:
        for r in range(height):
            for c in range(0, width, limit):
                yield slice(r, r + 1), slice(c, min(c + limit, width))
    else:
        step = max(1, limit // width)
        for r in range(0, height, step):
            yield slice(r, min(r + step, height)), slice(0, width)


def row_scale(truth: Tensor) -> Tensor:
    """`max(RMS along a row, RMS of the whole / 30)`, float64, broadcastable to the truth.

    A row runs along the last dimension that is longer than one; that dimension has size 1 in the result. Elements that
    are not finite count as zero. Squares are taken in float64, so no float32 value is too large.
    """
    rows = rows_of(truth)
    squares = torch.zeros(rows.shape[0], dtype=torch.float64, device=truth.device)
    for r, c in pieces_of(rows):
        squares[r] += rows[r, c].double().square().sum(dim=1)
    if not bool(torch.isfinite(squares).all()):
        squares.zero_()
        for r, c in pieces_of(rows):
            piece = rows[r, c].double()
            squares[r] += torch.where(torch.isfinite(piece), piece, 0.0).square().sum(dim=1)
    width = max(1, rows.shape[1])
    whole = (squares.sum() / max(1, rows.numel())).sqrt() / ROW_FLOOR
    scale = torch.maximum((squares / width).sqrt(), whole)
    return scale.reshape(_scale_shape(truth.shape))


def _scale_shape(shape: Sequence[int]) -> list[int]:
    dim = _row_dim(shape)
    return [1 if d == dim else n for d, n in enumerate(shape)]


def pooled_scale(truths: Sequence[Tensor]) -> Tensor:
    """`row_scale` over several draws of one small output: the draws of each row are laid side by side."""
    rows = torch.cat([rows_of(t.double()) for t in truths], dim=1)
    return row_scale(rows).reshape(_scale_shape(truths[0].shape))


@dataclass(slots=True)
class _Worst:
    err: float = 0.0
    flat: int = 0
    nan: bool = False

    def offer(self, err: float, at: int, r: slice, c: slice, width: int, nan: bool = False) -> None:
        """Keep the largest error of a piece, at flat index `at` of it; `nan`: its finiteness disagrees there."""
        if err > self.err:
            columns = c.stop - c.start
            self.err, self.flat, self.nan = err, (r.start + at // columns) * width + c.start + at % columns, nan


def _float_worst(y: Tensor, truth: Tensor, scale: Tensor | None) -> _Worst:
    t_rows, y_rows = rows_of(truth), rows_of(y)
    s_rows = (row_scale(truth) if scale is None else scale.to(truth.device)).reshape(-1, 1)
    worst = _Worst()
    for r, c in pieces_of(t_rows):
        t, v = t_rows[r, c].double(), y_rows[r, c].to(truth.device).double()
        errors = (v - t).abs_().div_(t.abs() + s_rows[r])
        largest, where = errors.reshape(-1).max(dim=0)
        if bool(torch.isfinite(largest)):  # so no element is NaN or Inf anywhere
            worst.offer(float(largest), int(where), r, c, t_rows.shape[1])
            continue
        same = (v == t) | (v.isnan() & t.isnan())  # infinities of one sign and NaN for NaN agree
        mismatch = ~same & ~(torch.isfinite(v) & torch.isfinite(t))
        errors = torch.where(
            same, 0.0, torch.where(mismatch, math.inf, errors.nan_to_num(nan=math.inf, posinf=math.inf))
        )
        largest, where = errors.reshape(-1).max(dim=0)
        worst.offer(float(largest), int(where), r, c, t_rows.shape[1], bool(mismatch.reshape(-1)[where]))
    return worst


def _exact_worst(y: Tensor, truth: Tensor) -> _Worst:
    t_rows, y_rows = rows_of(truth), rows_of(y)
    worst = _Worst()
    for r, c in pieces_of(t_rows):
        different = (y_rows[r, c].to(truth.device) != t_rows[r, c]).reshape(-1)
        if bool(different.any()):
            worst.offer(math.inf, int(different.int().argmax()), r, c, t_rows.shape[1])
            break
    return worst


def _selection_worst(y: Tensor, truth: Tensor, selection: Selection) -> _Worst:
    """Indices by what they select: error of the selected value; out of range or chosen twice is infinite."""
    values, dim = selection.values, selection.dim
    picked, wanted = y.to(values.device).long(), truth.to(values.device).long()
    if picked.dim() < values.dim():
        picked, wanted = picked.unsqueeze(dim), wanted.unsqueeze(dim)
    size = values.shape[dim]
    outside = (picked < 0) | (picked >= size)
    got = values.gather(dim, picked.clamp(0, size - 1))
    want = values.gather(dim, wanted)
    got = torch.where(outside, math.nan, got)
    order = picked.sort(dim=dim)
    twice = torch.zeros_like(outside)
    if picked.shape[dim] > 1:
        repeated = order.values.diff(dim=dim) == 0
        twice.scatter_(dim, order.indices.narrow(dim, 1, picked.shape[dim] - 1), repeated)
    got = torch.where(twice, math.nan, got)
    rows = row_scale(values.movedim(dim, -1)).movedim(-1, dim)
    errors = (got - want).abs() / (want.abs() + rows)
    errors = torch.where((got == want) | (got.isnan() & want.isnan() & ~outside & ~twice), 0.0, errors)
    errors = errors.nan_to_num(nan=math.inf, posinf=math.inf).reshape(-1)
    worst = _Worst()
    if errors.numel():
        largest, where = errors.max(dim=0)
        worst.offer(float(largest), int(where), slice(0, 1), slice(0, errors.numel()), errors.numel())
    return worst


def _worst(y: Tensor, truth: Tensor, scale: Tensor | None, selection: Selection | None) -> _Worst:
    if selection is not None:
        return _selection_worst(y, truth, selection)
    return _exact_worst(y, truth) if is_exact(truth) else _float_worst(y, truth, scale)


def normalised_error(
    y: Tensor, truth: Tensor, scale: Tensor | None = None, selection: Selection | None = None
) -> float:
    """`max |y - truth| / (|truth| + s)`; exact outputs give 0 or inf; different shapes give inf.

    NaN or Inf where truth is finite is inf, and so is a finite value where truth is not; equal infinities and NaN for
    NaN agree. Elements that are equal contribute 0 even where `|truth| + s` is 0.

    Args:
        y: any dtype; converted to float64 piece by piece.
        truth: float64 (or integer, bool), the same shape.
        scale: from `row_scale` or `pooled_scale`; computed from `truth` if left out.
        selection: compare index outputs by the value they select.
    """
    if y.shape != truth.shape:
        return math.inf
    return _worst(y, truth, scale, selection).err


def allclose_margin(reference: Tensor, y: Tensor) -> float:
    """`max |reference - y| / (1 + |y|)`: `torch.allclose(reference, y, atol=a, rtol=a)` holds where this is <= a.

    Computed in float64. NaN anywhere, infinities that differ, and different shapes give inf.
    """
    if reference.shape != y.shape:
        return math.inf
    worst = 0.0
    r_rows, y_rows = rows_of(reference), rows_of(y)
    for r, c in pieces_of(r_rows):
        a, b = r_rows[r, c].double(), y_rows[r, c].to(reference.device).double()
        margin = (a - b).abs_().div_(b.abs().add_(1))
        largest = float(margin.max())
        if not math.isfinite(largest):  # equal infinities are close, NaN never is
            largest = float(torch.where(a == b, 0.0, margin).nan_to_num(nan=math.inf, posinf=math.inf).max())
        worst = max(worst, largest)
    return worst


def allclose_pass(reference: Tensor, y: Tensor, atol: float, rtol: float) -> bool:
    """`torch.allclose(reference, y, atol, rtol)` in the tensors' own dtype, piece by piece.

    False where torch would raise (different dtypes) and where shapes differ: the official checkers reject both.
    """
    if reference.shape != y.shape or reference.dtype != y.dtype:
        return False
    r_rows, y_rows = rows_of(reference), rows_of(y)
    return all(
        torch.allclose(r_rows[r, c], y_rows[r, c].to(reference.device), atol=atol, rtol=rtol)
        for r, c in pieces_of(r_rows)
    )


def compare_outputs(outputs: Sequence[Tensor], truth: "Truth", tolerances: Sequence[float]) -> Comparison:
    """Hold a candidate's outputs against truth, output by output, and report the worst.

    Args:
        outputs: the candidate's tensors, as `flatten_outputs` gives them.
        truth: from `oracle.compute_truth`.
        tolerances: one per output; exact outputs ignore theirs (they are off by 0 or inf).
    """
    if len(outputs) != len(truth.outputs):
        return Comparison(False, math.inf, 0.0, math.inf, 0, (), "count")
    for i, (y, dtype) in enumerate(zip(outputs, truth.output_dtypes, strict=True)):
        if y.shape != truth.outputs[i].shape:
            return Comparison(False, math.inf, tolerances[i], math.inf, i, (), "shape")
        if y.dtype != dtype:
            return Comparison(False, math.inf, tolerances[i], math.inf, i, (), "dtype")
    margin, worst_ratio, found = 0.0, -1.0, Comparison(True, 0.0, 0.0, 0.0, 0, (), "")
    for i, y in enumerate(outputs):
        target = truth.outputs[i]
        margin = max(margin, allclose_margin(target if truth.reference is None else truth.reference[i], y))
        worst = _worst(y, target, truth.scales[i], truth.selection(i))
        tolerance = tolerances[i]
        ok = worst.err <= tolerance
        ratio = worst.err / tolerance if tolerance > 0 else (0.0 if worst.err == 0 else math.inf)
        if ratio > worst_ratio:
            worst_ratio = ratio
            reason: Reason = "" if ok else "nan" if worst.nan else "value"
            found = Comparison(ok, worst.err, tolerance, 0.0, i, _unravel(worst.flat, target), reason)
    return dataclasses.replace(found, margin=margin)


def _unravel(flat: int, target: Tensor) -> tuple[int, ...]:
    index: list[int] = []
    for size in reversed(target.shape):
        index.append(flat % size)
        flat //= size
    return tuple(reversed(index))
