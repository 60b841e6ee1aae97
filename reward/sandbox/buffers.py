"""Buffers that the judge allocates and shares with one child, and how tensors are laid out in them."""

import fcntl
import math
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from .wire import DTYPE_NAMES, DTYPES, TensorRef, UnsupportedValueError

ALIGN = 256
GUARD = 4096  # bytes of pattern before, between and after tensors: a kernel that strays a little is noticed
MOVE = 512  # bytes that tensors lie further on in a call that asks for it
PAGE = {"cpu": mmap.PAGESIZE, "cuda": 2 << 20}  # what memory is mapped in; all that is mapped is guard or tensor


class Buffer(Protocol):
    """Shared memory of `size` bytes; `fd` can be sent over a Unix socket, `tensor` is the judge's view (uint8)."""

    size: int
    fd: int
    tensor: torch.Tensor

    def close(self) -> None:
        """Give up the judge's mapping and descriptor; the memory lives on while a child has it mapped."""


class HostBuffer:
    """A memfd of fixed size. Sealed against shrinking, which would kill a reading judge with SIGBUS.

    Raises:
        OSError: no memory or no descriptor left.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.fd = os.memfd_create("kernelward", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, size)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self._map = mmap.mmap(self.fd, size)
        except BaseException:
            os.close(self.fd)
            raise
        self.tensor = torch.frombuffer(self._map, dtype=torch.uint8)

    def close(self) -> None:
        """Drop the mapping (once no tensor refers to it) and the descriptor."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            del self.tensor
            del self._map


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """What one output must look like: shape in elements and dtype."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Layout:
    """Places of tensors in one buffer, with a guard before, between and after them."""

    refs: tuple[TensorRef, ...]
    size: int

    def moved(self, on: bool) -> "Layout":
        """With room to move, and moved or not: a tensor of the one kind lies on guard and other bytes of the other."""
        refs = tuple(replace(ref, offset=ref.offset + MOVE) for ref in self.refs) if on else self.refs
        return Layout(refs, self.size + MOVE)

    def padded(self, page: int) -> "Layout":
        """The same places in a buffer of whole pages; the last guard reaches to its end."""
        return replace(self, size=-(-self.size // page) * page)

    def guards(self) -> list[tuple[int, int]]:
        """Byte ranges that belong to no tensor."""
        spans = []
        position = 0
        for ref in self.refs:
            spans.append((position, ref.offset))
            position = ref.offset + ref.nbytes
        spans.append((position, self.size))
        return spans


def dense_order(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """The order of dimensions in which the tensor is contiguous, or None if its memory has gaps or overlaps."""
    stride = tensor.stride()
    order = tuple(sorted(range(tensor.dim()), key=lambda d: (-stride[d], d)))
    expected = 1
    for d in reversed(order):
        if tensor.shape[d] == 1:
            continue
        if stride[d] != expected:
            return None
        expected *= tensor.shape[d]
    return order


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))


def _place(items: Sequence[tuple[str, tuple[int, ...], tuple[int, ...]]]) -> Layout:
    refs = []
    position = GUARD
    for dtype, shape, stride in items:
        ref = TensorRef(dtype, shape, stride, position)
        refs.append(ref)
        position = -(-(position + ref.nbytes + GUARD) // ALIGN) * ALIGN
    return Layout(tuple(refs), position)


def layout_tensors(tensors: Sequence[torch.Tensor]) -> Layout:
    """Places for these tensors. Dense strides are kept, others become contiguous.

    Raises:
        UnsupportedValueError: a sparse, nested, quantised or otherwise unusual tensor.
    """
    items = []
    for tensor in tensors:
        if tensor.layout != torch.strided or tensor.is_nested or tensor.dtype not in DTYPE_NAMES:
            raise UnsupportedValueError(f"a tensor of layout {tensor.layout} and dtype {tensor.dtype}")
        shape = tuple(tensor.shape)
        stride = tuple(tensor.stride()) if dense_order(tensor) is not None else _strides(shape)
        items.append((DTYPE_NAMES[tensor.dtype], shape, stride))
    return _place(items)


def layout_outputs(outputs: Sequence[OutputSpec]) -> Layout:
    """Places for contiguous outputs.

    Raises:
        UnsupportedValueError: a dtype that has no form on the wire.
    """
    for output in outputs:
        if output.dtype not in DTYPE_NAMES:
            raise UnsupportedValueError(f"an output of dtype {output.dtype}")
    return _place([(DTYPE_NAMES[o.dtype], tuple(o.shape), _strides(o.shape)) for o in outputs])


def raw_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's elements as flat uint8, in memory order where it is dense, else in row-major order."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    order = dense_order(tensor)
    flat = (tensor.permute(order) if order is not None else tensor.contiguous()).reshape(-1)
    return flat.view(torch.uint8)


def region(buffer: torch.Tensor, ref: TensorRef) -> torch.Tensor:
    """The uint8 view of one tensor's bytes."""
    return buffer[ref.offset : ref.offset + ref.nbytes]


def fill(buffer: torch.Tensor, layout: Layout, tensors: Sequence[torch.Tensor], pattern: int) -> None:
    """Write guards (`pattern`, a byte) and tensors into a buffer."""
    for start, stop in layout.guards():
        buffer[start:stop].fill_(pattern)
    for ref, tensor in zip(layout.refs, tensors, strict=True):
        region(buffer, ref).copy_(raw_bytes(tensor))


def guards_intact(buffer: torch.Tensor, layout: Layout, pattern: int) -> bool:
    """Whether every guard byte still has the pattern."""
    return _all([(buffer[start:stop] == pattern).all() for start, stop in layout.guards()])


def unchanged(buffer: torch.Tensor, refs: Sequence[TensorRef], tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the shared copies still equal the judge's own tensors, byte by byte (so NaN equals itself)."""
    pairs = ((region(buffer, ref), raw_bytes(t).to(buffer.device)) for ref, t in zip(refs, tensors, strict=True))
    if buffer.device.type == "cpu":
        return all(torch.equal(shared, own) for shared, own in pairs)
    return _all([(shared == own).all() for shared, own in pairs])


def _all(found: Sequence[torch.Tensor]) -> bool:
    """Whether all of these hold. A device is waited for once: where processes share it, each wait costs them a turn."""
    return not found or bool(torch.stack(list(found)).all())


def take(buffer: torch.Tensor, ref: TensorRef) -> torch.Tensor:
    """A private copy of one output, contiguous, on the buffer's device. Bools are not normalised here."""
    return region(buffer, ref).clone().view(DTYPES[ref.dtype]).reshape(ref.shape)
