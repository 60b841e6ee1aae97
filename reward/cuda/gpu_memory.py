"""Guarded memory for strict calls on a GPU: tensors end where nothing is mapped, and what nobody wrote is poison.

A kernel that reads or writes beyond a tensor's end faults, as on the CPU emulator (`emulator_memory.py`). One that
writes before its beginning, or into the less than 16 bytes between its end and the next place where a tensor may
begin, changes poison, which is found afterwards. Torch's own allocations lie side by side in large blocks: neither
shows there.
"""

import functools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..sandbox.gpu_buffers import DeviceBytes, LocalBuffer
from .binding import Memory
from .gpu_module import capturing
from .operators import FRESH

#: What addresses of tensors are a multiple of: the widest load of one thread, up to Hopper and since Blackwell. A right
#: kernel may load so much at once up to the last whole piece of a tensor, and the rest singly.
ALIGN, ALIGN_BLACKWELL = 16, 32
#: Bytes that one call may have in guarded memory; tensors that exceed them stay where torch put them.
MOST = 2 << 30
#: Bytes of mapped memory that wait for the next call.
KEPT = 256 << 20
#: NaN and a large finite number by turns.
POISON = 0x7B7B7B7BFFFFFFFF

_synchronize = torch.cuda.synchronize  # as it was before the candidate


@dataclass(frozen=True, slots=True)
class Home:
    """Memory of the caller's that a region stands for in a call: a tensor on it, and the address of its first byte."""

    tensor: torch.Tensor
    address: int


class Region:
    """One guarded allocation; lives as long as a tensor over it does.

    Attributes:
        base: address of the first byte of data.
        extent: bytes of data.
        home: where its contents come from and go back to; None for memory that the extension asked for.
    """

    def __init__(self, buffer: LocalBuffer, extent: int, home: Home | None = None) -> None:
        self._buffer = buffer
        align = alignment(buffer.device)
        self._start = (buffer.size - extent) // align * align
        self.base = buffer.pointer + self._start
        self.extent = extent
        self.home = home
        self.__cuda_array_interface__ = DeviceBytes(self.base, extent).__cuda_array_interface__
        buffer.bytes(0, buffer.size).view(torch.int64).fill_(POISON)

    def bytes(self) -> torch.Tensor:
        """The data as uint8. Its storage is the data alone, and keeps the region."""
        return torch.as_tensor(self, device=self._buffer.device)

    def tensor(self, like: torch.Tensor, offset: int = 0) -> torch.Tensor:
        """A tensor of the same dtype, sizes and strides over the data, `offset` bytes in."""
        flat = self.bytes()[offset : offset + extent_of(like)].view(like.dtype)
        return flat.as_strided(tuple(like.shape), like.stride())

    def changed(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Whether poison before and behind the data was written. Nobody has waited for the device yet."""
        whole = self._buffer.bytes(0, self._buffer.size)
        last = whole[-ALIGN_BLACKWELL:].view(torch.int64)
        kept = torch.full_like(last, POISON).view(torch.uint8)
        behind = self._buffer.size - self._start - self.extent
        after = whole[-behind:] != kept[-behind:] if behind else kept[:0] != 0
        return (whole[: self._start].view(torch.int64) != POISON).any(), after.any()


class GuardedDeviceMemory(Memory):
    """Every tensor of a GPU that an extension sees lies in a `Region`, while `on`.

    Attributes:
        on: set before a call; off, tensors stay where torch put them.
        damage: what poison showed since it was last cleared.
    """

    def __init__(self) -> None:
        self.on = False
        self.damage: list[str] = []
        self._idle: list[LocalBuffer] = []
        self._regions: list[Region] = []
        self._by_address: weakref.WeakValueDictionary[int, Region] = weakref.WeakValueDictionary()

    def adopt(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Guarded copies; tensors that overlap share one, so writes through one are seen through the other."""
        if not self.on or capturing():
            return tensors
        spans = sorted(
            (t.data_ptr(), t.data_ptr() + extent_of(t), i)
            for i, t in enumerate(tensors)
            if t.is_cuda and t.numel() and self._find(t) is None
        )
        shown = list(tensors)
        position = 0
        while position < len(spans):
            start, end, first = spans[position]
            last = position + 1
            while last < len(spans) and spans[last][0] < end:
                end = max(end, spans[last][1])
                last += 1
            region = self._region(end - start, tensors[first].device, Home(tensors[first], start))
            if region is not None:
                region.bytes().copy_(_raw(start, end - start, tensors[first].device))
                for address, _, index in spans[position:last]:
                    shown[index] = region.tensor(tensors[index], address - start)
            position = last
        if self._regions:
            _synchronize()  # the extension may use other streams than this one
        return shown

    def result(self, name: str, tensor: torch.Tensor, values: Sequence[Any]) -> torch.Tensor:
        """Views stay where they are; a new tensor moves into guarded memory (poisoned where it is fresh)."""
        if not self.on or not tensor.is_cuda or not tensor.numel() or self._find(tensor) is not None or capturing():
            return tensor
        storage = tensor.untyped_storage().data_ptr()
        if any(isinstance(v, torch.Tensor) and v.untyped_storage().data_ptr() == storage for v in values):
            return tensor
        region = self._region(extent_of(tensor), tensor.device)
        if region is None:
            return tensor
        shown = region.tensor(tensor)
        if name not in FRESH:
            shown.copy_(tensor)
        _synchronize()
        return shown

    def finish(self) -> None:
        """Wait for what the call launched, check the poison, and copy what it wrote back into the caller's tensors.

        Raises:
            RuntimeError: a kernel faulted.
        """
        regions, self._regions = self._regions, []
        if not regions:
            return
        _synchronize()
        found = torch.stack([flag for region in regions for flag in region.changed()]).tolist()
        for region, before, after in zip(regions, found[::2], found[1::2], strict=True):
            if before or after:
                side = "before" if before else "after"
                self.damage.append(f"a kernel wrote {side} a tensor of {region.extent} bytes")
            if region.home is not None:
                _raw(region.home.address, region.extent, region.home.tensor.device).copy_(region.bytes())

    def hand_out(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in ordinary memory; what lies in the caller's own memory is given as a part of that."""
        region = self._find(tensor) if tensor.is_cuda else None
        if region is None:
            return tensor
        home = region.home
        if home is not None and home.tensor.dtype == tensor.dtype:
            within = home.address + tensor.data_ptr() - region.base
            offset = (within - home.tensor.untyped_storage().data_ptr()) // tensor.element_size()
            return home.tensor.detach().as_strided(tuple(tensor.shape), tensor.stride(), offset)
        return tensor.clone()

    def _find(self, tensor: torch.Tensor) -> Region | None:
        return self._by_address.get(tensor.untyped_storage().data_ptr())

    def _region(self, extent: int, device: torch.device, home: Home | None = None) -> Region | None:
        """New guarded memory; None where there is none left for it."""
        if sum(region.extent for region in self._regions) + extent > MOST:
            return None
        try:
            buffer = self._take(extent, device)
        except (OSError, MemoryError):  # the call goes on as a plain one would
            return None
        region = Region(buffer, extent, home)
        weakref.finalize(region, self._give, buffer).atexit = False
        self._regions.append(region)
        self._by_address[region.base] = region
        return region

    def _take(self, extent: int, device: torch.device) -> LocalBuffer:
        fitting = [b for b in self._idle if b.device == device and extent <= b.size <= 2 * extent + (2 << 20)]
        if not fitting:
            return LocalBuffer(extent, device)
        best = min(fitting, key=lambda b: b.size)
        self._idle.remove(best)
        return best

    def _give(self, buffer: LocalBuffer) -> None:
        self._idle.append(buffer)
        while sum(b.size for b in self._idle) > KEPT:
            _synchronize()
            self._idle.pop(0).close()


@functools.cache
def alignment(device: torch.device) -> int:
    """What addresses of guarded tensors are a multiple of, in bytes."""
    return ALIGN if torch.cuda.get_device_capability(device) < (10, 0) else ALIGN_BLACKWELL


def extent_of(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to the end of its last one."""
    if not tensor.numel():
        return 0
    return (1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))) * tensor.element_size()


def _raw(address: int, size: int, device: torch.device) -> torch.Tensor:
    return torch.as_tensor(DeviceBytes(address, size), device=device)
