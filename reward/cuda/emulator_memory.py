"""Guarded memory for an emulated call: tensors between guard pages and canary zones, poisoned where nobody wrote.

A read or write past either end of a tensor is seen: on the side where the tensor touches its guard page it faults, on
the other it meets a zone of poison whose changes are found afterwards. Strict runs use both placements in turn.
"""

import ctypes
import mmap
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .binding import Memory
from .operators import FRESH, Options

PAGE = mmap.PAGESIZE
PLAIN_SLACK = 64 * 1024
"""Plain mode: bytes around each tensor that may be touched unseen, as on a GPU whose allocations lie side by side."""
_PROT_NONE = 0

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class Region(mmap.mmap):
    """One guarded allocation. Lives as long as a tensor over it does.

    Attributes:
        base: address of the first byte of data.
        extent: bytes of data.
        host: the candidate asked for CPU memory: kernels must not touch it.
    """

    base: int
    extent: int
    host: bool
    poison: int
    offset: int

    @classmethod
    def create(cls, size: int, poison: int, at_end: bool, slack: int = 0) -> "Region":
        """`poison` fills everything, data and zones; -1 means zeros and no zones to check."""
        body = max(PAGE, (size + 2 * slack + PAGE - 1) // PAGE * PAGE)
        region = cls(-1, body + 2 * PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(region))
        region.extent, region.host, region.poison = size, False, poison
        if slack:
            region.offset = PAGE + (slack + 511) // 512 * 512
        else:
            region.offset = PAGE + (body - size if at_end else 0)
        region.base = start + region.offset
        if poison > 0:
            ctypes.memset(start + PAGE, poison, body)
        for page in (start, start + PAGE + body):
            if _libc.mprotect(page, PAGE, _PROT_NONE):
                raise MemoryError("mprotect failed: too many guarded tensors")
        return region

    def tensor(self, dtype: torch.dtype, sizes: Sequence[int], strides: Sequence[int], offset: int = 0) -> torch.Tensor:
        """A tensor over the data, `offset` bytes in."""
        if not all(sizes):
            return torch.empty(tuple(sizes), dtype=dtype)
        span = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
        flat = torch.frombuffer(self, dtype=dtype, count=span, offset=self.offset + offset)
        return flat.as_strided(tuple(sizes), tuple(strides))

    def damaged(self) -> str | None:
        """`before` or `after` where a canary zone was written, else None."""
        if self.poison < 0:
            return None
        body = len(self) - 2 * PAGE
        zones = (
            ("before", PAGE, self.offset - PAGE),
            ("after", self.offset + self.extent, PAGE + body - self.offset - self.extent),
        )
        for name, start, length in zones:
            if length and self[start : start + length] != bytes([self.poison]) * length:
                return name
        return None


def _extent(tensor: torch.Tensor) -> int:
    if not tensor.numel():
        return 0
    return (1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))) * tensor.element_size()


class GuardedMemory(Memory):
    """Every tensor an extension sees lies in a `Region`.

    Attributes:
        poison: byte of fresh memory, -1 in plain mode.
        at_end: tensors end at a guard page; else they begin after one.
        damage: what canaries showed in the last call.
        register_host: told of the pages of CPU memory (address, bytes) and of their end.
    """

    def __init__(self) -> None:
        self.register_host: Callable[[int, int, bool], None] | None = None
        self.poison = -1
        self.at_end = True
        self.damage: list[str] = []
        self._regions: list[Region] = []
        self._copies: list[tuple[torch.Tensor, int, Region]] = []
        self._by_address: weakref.WeakValueDictionary[int, Region] = weakref.WeakValueDictionary()

    def _region(self, size: int) -> Region:
        region = Region.create(size, self.poison, self.at_end, PLAIN_SLACK if self.poison < 0 else 0)
        self._regions.append(region)
        self._by_address[region.base] = region
        return region

    def _find(self, tensor: torch.Tensor) -> Region | None:
        return self._by_address.get(tensor.untyped_storage().data_ptr())

    def adopt(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Guarded copies; tensors that overlap share one, so writes through one are seen through the other."""
        spans: list[tuple[int, int, int]] = sorted(
            (t.data_ptr(), t.data_ptr() + _extent(t), i) for i, t in enumerate(tensors) if t.numel()
        )
        placed: dict[int, tuple[Region, int]] = {}
        position = 0
        while position < len(spans):
            start, end, _ = spans[position]
            last = position + 1
            while last < len(spans) and spans[last][0] < end:
                end = max(end, spans[last][1])
                last += 1
            region = self._region(end - start)
            ctypes.memmove(region.base, start, end - start)
            self._copies.append((tensors[spans[position][2]], start, region))
            for _, _, index in spans[position:last]:
                placed[index] = (region, tensors[index].data_ptr() - start)
            position = last
        out = []
        for index, tensor in enumerate(tensors):
            if index in placed:
                region, offset = placed[index]
                out.append(region.tensor(tensor.dtype, tensor.shape, tensor.stride(), offset))
            else:
                out.append(torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype))
        return out

    def result(self, name: str, tensor: torch.Tensor, values: Sequence[Any]) -> torch.Tensor:
        """Views stay where they are; a new tensor moves into guarded memory (poisoned where it is fresh)."""
        place = next((v.place for v in values if isinstance(v, Options) and v.place), None)
        if self._find(tensor) is not None and not (name == "to" and place):
            return tensor
        fresh = name in FRESH
        region = self._region(_extent(tensor))
        shown = region.tensor(tensor.dtype, tensor.shape, tensor.stride())
        if not fresh:
            shown.copy_(tensor)
        source = next((v for v in values if isinstance(v, torch.Tensor)), None)
        listed = any(isinstance(v, list) and v and isinstance(v[0], torch.Tensor) for v in values)
        if place == "cpu" or (place is None and source is None and not listed):
            self._make_host(region)  # torch::empty({n}) without options is CPU memory
        return shown

    def _make_host(self, region: Region) -> None:
        region.host = True
        if self.register_host is not None:
            pages, size = region.base - region.offset + PAGE, len(region) - 2 * PAGE
            self.register_host(pages, size, True)
            weakref.finalize(region, self.register_host, pages, size, False)

    def is_device(self, tensor: torch.Tensor) -> bool:
        """Everything counts as GPU memory but what the extension asked for on the CPU."""
        region = self._find(tensor)
        return region is None or not region.host

    def device(self, name: str) -> str | None:
        """Torch itself runs on the CPU."""
        return None

    def finish(self) -> None:
        """Check the canaries and copy what changed back into the caller's tensors."""
        for region in self._regions:
            side = region.damaged()
            if side is not None:
                self.damage.append(f"a kernel wrote {side} a tensor of {region.extent} bytes")
        for _, address, region in self._copies:
            if _libc.memcmp(address, region.base, region.extent):
                ctypes.memmove(address, region.base, region.extent)
        self._regions.clear()
        self._copies.clear()

    def hand_out(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in ordinary memory."""
        return tensor.clone()

    def stream(self) -> int:
        """The null stream."""
        return 0
