"""A shared buffer together with the layout of the tensors in it, on a host or a device."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import torch

from . import buffers
from .buffers import Buffer, HostBuffer, Layout, OutputSpec

KEPT = 16 << 20  # bytes of a buffer that is kept for a session's next call


def allocate(device: torch.device, size: int) -> Buffer:
    """A shared buffer where the device computes.

    Raises:
        OSError, RuntimeError: no memory left.
    """
    if device.type == "cuda":
        from .gpu_buffers import DeviceBuffer

        return DeviceBuffer(size, device)
    return HostBuffer(size)


class Slot:
    """Where the calls of one session put one kind of buffer: the next call of the same size finds it mapped.

    On a GPU, to allocate, export and map takes locks of the driver which all processes of the machine share, whichever
    device they use: 1.5 ms for a pair of buffers, 3 ms where ten processes do so, 36 ms while three others make CUDA
    contexts (H200, driver 580). A kept buffer is written and poisoned anew for every call.

    Args:
        kept: bytes of a buffer that outlives its call; 0 = none does.
    """

    def __init__(self, name: str, device: torch.device, kept: int = KEPT) -> None:
        self.name = name
        self._device = device
        self._kept = kept
        self._buffer: Buffer | None = None
        self._mapped = False

    @property
    def size(self) -> int:
        """Bytes that are held now."""
        return 0 if self._buffer is None else self._buffer.size

    def hold(self, size: int) -> Buffer:
        """A buffer of that many bytes, whose contents are anything.

        Raises:
            OSError, RuntimeError: no memory left.
        """
        if self._buffer is None or self._buffer.size != size:
            self.close()
            self._buffer = allocate(self._device, size)
        return self._buffer

    def described(self) -> dict[str, Any]:
        """For the child: what to map, and whether it is to stay mapped."""
        return {"slot": self.name, "size": self.size, "mapped": self._mapped, "keep": self.size <= self._kept}

    def descriptors(self) -> list[int]:
        """What the child needs to map it; none where it has."""
        return [] if self._mapped or self._buffer is None else [self._buffer.fd]

    def release(self, answered: bool = True) -> None:
        """At the end of a call. Where it failed, nobody knows what the child has mapped: the next call says it anew."""
        self._mapped = answered and self.size <= self._kept
        if self.size > self._kept:
            self.close()

    def close(self) -> None:
        """Give the memory back."""
        if self._buffer is not None:
            synchronize(self._device)
            self._buffer.close()
        self._buffer, self._mapped = None, False


class Arena:
    """Tensors laid out in one shared buffer; the judge keeps its own tensors apart.

    Nothing is waited for: `synchronize` before a child is told.

    Args:
        slot: where its buffer comes from; left out, it has one of its own.
        moved: its tensors lie elsewhere in the buffer than those of a call that is not.
    """

    def __init__(
        self,
        device: torch.device,
        layout: Layout,
        tensors: Sequence[torch.Tensor],
        pattern: int,
        slot: Slot | None = None,
        moved: bool = False,
    ) -> None:
        self.slot = slot or Slot("", device, kept=0)
        self.layout = layout.moved(moved).padded(buffers.PAGE[device.type])
        self.pattern = pattern
        self._tensors = tuple(tensors)
        self._device = device
        self.buffer = self.slot.hold(self.layout.size)

    @classmethod
    def of_tensors(
        cls,
        device: torch.device,
        tensors: Sequence[torch.Tensor],
        pattern: int = 0xFF,
        write: bool = True,
        slot: Slot | None = None,
        moved: bool = False,
    ) -> Self:
        """Copies of these tensors (or, with `write` off, poison where they will be)."""
        arena = cls(device, buffers.layout_tensors(tensors), tensors, pattern, slot, moved)
        arena.buffer.tensor.fill_(pattern) if not write else arena.write()
        return arena

    @classmethod
    def of_outputs(
        cls,
        device: torch.device,
        outputs: Sequence[OutputSpec],
        pattern: int = 0xFF,
        slot: Slot | None = None,
        moved: bool = False,
    ) -> Self:
        """Poisoned places for outputs."""
        arena = cls(device, buffers.layout_outputs(outputs), (), pattern, slot, moved)
        arena.buffer.tensor.fill_(pattern)
        return arena

    def write(self) -> None:
        """Copy the tensors in, with guards around them."""
        buffers.fill(self.buffer.tensor, self.layout, self._tensors, self.pattern)

    def references(self) -> list[list[Any]]:
        """Where each tensor lies, for the wire."""
        return [ref.to_list() for ref in self.layout.refs]

    def copies(self) -> tuple[torch.Tensor, ...]:
        """Private copies of every tensor, in order."""
        return tuple(buffers.take(self.buffer.tensor, ref) for ref in self.layout.refs)

    def unchanged(self) -> bool:
        """Whether every tensor's bytes are still what was written."""
        return buffers.unchanged(self.buffer.tensor, self.layout.refs, self._tensors)

    def guards_intact(self) -> bool:
        """Whether nothing was written beside the tensors."""
        return buffers.guards_intact(self.buffer.tensor, self.layout, self.pattern)

    def synchronize(self) -> None:
        """Wait until the device has done what was asked of it."""
        synchronize(self._device)

    def close(self) -> None:
        """Give the memory back, or keep it for the next call."""
        self.slot.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.slot.release(answered=kind is None)


def synchronize(device: torch.device) -> None:
    """Wait until a device has done what this process asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
