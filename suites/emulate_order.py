"""Orders of accumulation: the same float32 sums, products, scans and matrix products, added up in another order.

A sequential order (one thread, one accumulator) is followed exactly on the CPU, through numpy, for every output where
that is affordable (`BUDGET` additions per operation) and for evenly spaced outputs, first and last included, elsewhere;
the others keep torch's own result. So it costs milliseconds at any size and on any device, and a maximum over a few
thousand outputs still shows what the order costs.
"""

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

BUDGET = 1 << 24  # additions followed one by one per operation
ONE_THREAD = 1 << 20  # terms that one accumulator takes; a longer sum has one per so many terms, then adds those up
SCAN_BLOCK = 256  # threads of a block in a blocked scan
TILE = 32  # depth of a tile in a blocked matrix product
#: A sequential convolution adds its taps, and within each its channels, in at most so many steps, for whole items of
#: the batch: on 147,840 outputs one thread errs four times as far as channels alone, and as a sample of some hundred
#: outputs, show. But of 64 million outputs four million show nearly the largest error of all (normal errors: 8 % less).
_STEPS, _LEAST_STEPS = 1024, 64
#: A network's convolutions share what so many may take: with 20 of them one thread errs by 8.0e-6 in 1,024 steps each,
#: by 7.2e-6 in 256 and by 7.8e-6 in 64 (ResNet18), and a hundred took minutes of every entry.
_SHARED_FROM = 4
#: Outputs times steps, and outputs times taps told apart, that are affordable, by device.
_ADDED = {"cpu": 1 << 26, "cuda": 1 << 32}
_TAPS = {"cpu": 1 << 25, "cuda": 1 << 33}
_PIECE = 1 << 20

Matmul = Callable[[Tensor, Tensor], Tensor]


class Order(Protocol):
    """How a member of the envelope adds up. Tensors are float32; `rows` are [R, n] views, possibly strided."""

    def total(self, x: Tensor, dims: list[int], ufunc: np.ufunc) -> Tensor | None:
        """Sum or product over dims (kept as size 1); None = torch's own order."""

    def matmul(self, a: Tensor, b: Tensor) -> Tensor | None:
        """[B, M, K] @ [B, K, N]; None = torch's own order."""

    def scan(self, x: Tensor, dim: int, ufunc: np.ufunc) -> Tensor | None:
        """Cumulative sum or product; None = torch's own order."""

    def convolve(self, x: Tensor, weight: Tensor, groups: int, transposed: bool, conv: Matmul) -> Tensor | None:
        """A convolution without bias; `conv(x, weight)` computes it for any number of channels of each group."""


def _torch_total(x: Tensor, dims: list[int], ufunc: np.ufunc) -> Tensor:
    if ufunc is np.add:
        return x.sum(dims, keepdim=True)
    for dim in dims:
        x = x.prod(dim, keepdim=True)
    return x


def channel_parts(x: Tensor, weight: Tensor, groups: int, transposed: bool) -> tuple[Tensor, Tensor]:
    """Views with the channels that a group sums over as a dimension of their own: x [N, g, C/g, ...], weight likewise.

    The weight becomes [g, C/g, out/g, ...] if transposed, else [out, C/g, ...]: the summed channels are dimension 1.
    """
    per_group = x.shape[1] // groups
    wide = x.reshape(x.shape[0], groups, per_group, *x.shape[2:])
    return wide, weight.reshape(groups, per_group, *weight.shape[1:]) if transposed else weight


def channels_joined(x: Tensor, weight: Tensor, transposed: bool) -> tuple[Tensor, Tensor]:
    """Inverse of `channel_parts`, also for a selection of the channels."""
    return x.flatten(1, 2), weight.flatten(0, 1) if transposed else weight


class Reordered:
    """From the last term to the first, in two unequal parts: another, equally good order."""

    def total(self, x: Tensor, dims: list[int], ufunc: np.ufunc) -> Tensor | None:
        longest = max(dims, key=lambda d: x.shape[d])
        turned, third = x.flip(dims), x.shape[longest] // 3
        if third == 0:
            return _torch_total(turned, dims, ufunc)
        first = _torch_total(turned.narrow(longest, 0, third), dims, ufunc)
        second = _torch_total(turned.narrow(longest, third, x.shape[longest] - third), dims, ufunc)
        return first + second if ufunc is np.add else first * second

    def matmul(self, a: Tensor, b: Tensor) -> Tensor | None:
        a, b, third = a.flip(-1), b.flip(-2), a.shape[-1] // 3
        if third == 0:
            return a @ b
        return a[..., :third] @ b[..., :third, :] + a[..., third:] @ b[..., third:, :]

    def scan(self, x: Tensor, dim: int, ufunc: np.ufunc) -> Tensor | None:
        return None  # an inclusive scan from the other end is another function; `Blocked` reorders scans

    def convolve(self, x: Tensor, weight: Tensor, groups: int, transposed: bool, conv: Matmul) -> Tensor | None:
        wide, parts = channel_parts(x, weight, groups, transposed)
        if wide.shape[2] < 2:
            return None
        return conv(*channels_joined(wide.flip(2), parts.flip(1), transposed))


class Sequential:
    """One thread, one accumulator, from the first term to the last.

    Args:
        convolutions: how many layers of the model are convolutions.
    """

    def __init__(self, convolutions: int = 1) -> None:
        share = max(1, -(-convolutions // _SHARED_FROM))
        self._steps = max(_LEAST_STEPS, _STEPS // share)
        self._added = {device: most // share for device, most in _ADDED.items()}

    def total(self, x: Tensor, dims: list[int], ufunc: np.ufunc) -> Tensor | None:
        rest = [d for d in range(x.dim()) if d not in dims]
        view = x.permute(rest + dims)
        lead = view.shape[: len(rest)]
        length = math.prod(view.shape[len(rest) :])
        result = _torch_total(x, dims, ufunc)
        if length < 2:
            return result
        flat = result.reshape(-1).clone()
        rows = evenly(flat.numel(), max(1, BUDGET // length))
        picked = view[np.unravel_index(rows, lead)] if rest else view[None]
        flat[torch.from_numpy(rows).to(flat.device)] = _in_order(picked.reshape(len(rows), length), ufunc)
        return flat.reshape(result.shape)

    def matmul(self, a: Tensor, b: Tensor) -> Tensor | None:
        result = a @ b
        batch, height, width = result.shape
        outputs = max(16, BUDGET // max(1, a.shape[-1]))
        some = evenly(batch, 4 if batch * height * width > outputs else batch)
        each = outputs // len(some)
        columns = evenly(width, max(math.isqrt(each), each // height))
        rows = evenly(height, max(1, each // len(columns)))
        at = [torch.from_numpy(i).to(a.device) for i in (some, rows, columns)]
        left = a.index_select(0, at[0]).index_select(1, at[1])
        right = b.index_select(0, at[0]).index_select(2, at[2])
        result[at[0][:, None, None], at[1][:, None], at[2]] = _products_in_order(left, right).to(a.device)
        return result

    def scan(self, x: Tensor, dim: int, ufunc: np.ufunc) -> Tensor | None:
        return _scanned(x, dim, ufunc, BUDGET, lambda rows: ufunc.accumulate(rows, axis=1, dtype=np.float32))

    def convolve(self, x: Tensor, weight: Tensor, groups: int, transposed: bool, conv: Matmul) -> Tensor | None:
        full, device = conv(x, weight), x.device.type
        channels, taps = weight.shape[0] // groups if transposed else weight.shape[1], math.prod(weight.shape[2:])
        if channels * taps < 2:
            return None
        steps = min(self._steps, channels * taps)
        items = evenly(len(x), max(1, self._added[device] // (steps * max(1, full[0].numel()))))
        if len(items) < len(x):
            at = torch.from_numpy(items).to(x.device)
            return full.index_copy_(0, at, self._followed(x[at], weight, groups, transposed, conv, full[at].numel()))
        return self._followed(x, weight, groups, transposed, conv, full.numel())

    def _followed(self, x: Tensor, weight: Tensor, groups: int, transposed: bool, conv: Matmul, outputs: int) -> Tensor:
        wide, parts = channel_parts(x, weight, groups, transposed)
        channels, taps, device = wide.shape[2], math.prod(weight.shape[2:]), x.device.type
        steps = min(self._steps, max(_LEAST_STEPS, self._added[device] // max(1, outputs)))
        if taps * outputs > _TAPS[device]:
            taps = 1
        tap_step = -(-taps // steps)
        channel_step = -(-channels // max(1, steps // taps))
        result: Tensor | None = None
        for tap in range(0, taps, tap_step):
            kernel = parts if taps == 1 else _only(parts, weight.dim() - 2, tap, tap_step)
            for c in range(0, channels, channel_step):
                width = min(channel_step, channels - c)
                term = conv(*channels_joined(wide.narrow(2, c, width), kernel.narrow(1, c, width), transposed))
                result = term if result is None else result + term
        assert result is not None
        return result


class Blocked:
    """Block by block, as tiled kernels do: scans of 256 threads with carried offsets, products in tiles of 32."""

    def total(self, x: Tensor, dims: list[int], ufunc: np.ufunc) -> Tensor | None:
        return None  # lies between torch's own order and the sequential one

    def matmul(self, a: Tensor, b: Tensor) -> Tensor | None:
        depth = a.shape[-1]
        step = TILE * max(1, depth // (TILE * 256))
        result = a[..., :step] @ b[..., :step, :]
        for k in range(step, depth, step):
            result = result + a[..., k : k + step] @ b[..., k : k + step, :]
        return result

    def scan(self, x: Tensor, dim: int, ufunc: np.ufunc) -> Tensor | None:
        return _scanned(x, dim, ufunc, BUDGET // 4, lambda rows: _scan_blocks(rows, ufunc))

    def convolve(self, x: Tensor, weight: Tensor, groups: int, transposed: bool, conv: Matmul) -> Tensor | None:
        return None


def _only(kernel: Tensor, spatial: int, first: int, count: int) -> Tensor:
    """The kernel with zeros for all taps but some: its last `spatial` dimensions, counted as one."""
    flat = kernel.flatten(-spatial)
    kept = torch.zeros_like(flat)
    kept[..., first : first + count] = flat[..., first : first + count]
    return kept.reshape(kernel.shape)


def evenly(size: int, count: int) -> np.ndarray:
    """At most `count` evenly spaced indices below `size`, the first and the last included if count > 1."""
    if count >= size:
        return np.arange(size)
    return np.unique(np.linspace(0, size - 1, count).round().astype(np.int64))


def _scanned(x: Tensor, dim: int, ufunc: np.ufunc, budget: int, follow: Callable[[np.ndarray], np.ndarray]) -> Tensor:
    """torch's cumulative sum or product, with as many rows as the budget allows replaced by `follow(rows [R, n])`."""
    result = (torch.cumsum if ufunc is np.add else torch.cumprod)(x, dim).movedim(dim, -1).contiguous()
    length = result.shape[-1]
    flat = result.reshape(-1, length)
    rows = evenly(flat.shape[0], max(1, budget // max(1, length)))
    source = x.movedim(dim, -1)
    picked = source[np.unravel_index(rows, source.shape[:-1])] if source.dim() > 1 else source[None]
    flat[torch.from_numpy(rows).to(x.device)] = torch.from_numpy(follow(picked.cpu().numpy())).to(x.device)
    return result.movedim(-1, dim)


def _scan_blocks(rows: np.ndarray, ufunc: np.ufunc) -> np.ndarray:
    """[R, n]: a Hillis-Steele scan inside each block, then the blocks' totals carried from left to right."""
    neutral = np.float32(0.0 if ufunc is np.add else 1.0)
    height, length = rows.shape
    padded = np.pad(rows, ((0, 0), (0, -length % SCAN_BLOCK)), constant_values=neutral)
    local = padded.reshape(height, -1, SCAN_BLOCK)
    shift = 1
    while shift < SCAN_BLOCK:  # every thread adds the one `shift` to its left
        local = np.concatenate([local[..., :shift], ufunc(local[..., shift:], local[..., :-shift])], axis=-1)
        shift *= 2
    carried = ufunc.accumulate(local[..., -1], axis=1, dtype=np.float32)
    local[:, 1:] = ufunc(local[:, 1:], carried[:, :-1, None])
    return local.reshape(height, -1)[:, :length]


def _in_order(rows: Tensor, ufunc: np.ufunc) -> Tensor:
    """[R, n] -> [R], from the first column to the last, one accumulator per `ONE_THREAD` columns, float32."""
    height, length = rows.shape
    if length > ONE_THREAD:
        parts = [_in_order(rows[:, c : c + ONE_THREAD], ufunc) for c in range(0, length, ONE_THREAD)]
        return _in_order(torch.stack(parts, dim=1), ufunc)
    step = max(1, _PIECE // height)
    carried: np.ndarray | None = None
    for c in range(0, length, step):
        piece = np.ascontiguousarray(rows[:, c : c + step].T.cpu().numpy())
        carried = _fold(piece if carried is None else np.concatenate([carried[None], piece]), ufunc)
    return torch.from_numpy(np.asarray(carried, dtype=np.float32)).to(rows.device)


def _products_in_order(a: Tensor, b: Tensor) -> Tensor:
    """[B, M, K] @ [B, K, N] with one accumulator per output, each product rounded before it is added; on the CPU."""
    left, right = a.cpu().numpy(), b.cpu().numpy()
    batch, height, depth = left.shape
    carried = np.zeros((batch, height, right.shape[2]), dtype=np.float32)
    step = max(1, _PIECE // max(1, carried.size))
    for k in range(0, depth, step):
        terms = np.einsum("bmk,bkn->kbmn", left[..., k : k + step], right[:, k : k + step])
        stacked = np.concatenate([carried[None], terms]).reshape(len(terms) + 1, -1)
        carried = _fold(stacked, np.add).reshape(carried.shape)
    return torch.from_numpy(carried)


def _fold(terms: np.ndarray, ufunc: np.ufunc) -> np.ndarray:
    """[n, R] -> [R] in order. numpy adds whole rows one after the other; with few columns it would pair terms up."""
    if terms.shape[1] < 8:
        return ufunc.accumulate(np.ascontiguousarray(terms.T), axis=1, dtype=np.float32)[:, -1]
    return ufunc.reduce(terms, axis=0, dtype=np.float32)
