"""A shared buffer together with the layout of the tensors in it, on a host or a device."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import torch

from . import buffers
from .buffers import Buffer, HostBuffer, Layout, OutputSpec


def allocate(device: torch.device, size: int) -> Buffer:
    """A shared buffer where the device computes.

    Raises:
        OSError, RuntimeError: no memory left.
    """
    if device.type == "cuda":
        from .gpu_buffers import DeviceBuffer

        return DeviceBuffer(size, device)
    return HostBuffer(size)


class Arena:
    """Tensors laid out in one shared buffer; the judge keeps its own tensors apart."""

    def __init__(self, device: torch.device, layout: Layout, tensors: Sequence[torch.Tensor], pattern: int) -> None:
        self.layout = layout
        self.pattern = pattern
        self._tensors = tuple(tensors)
        self._device = device
        self.buffer = allocate(device, layout.size)

    @classmethod
    def of_tensors(
        cls, device: torch.device, tensors: Sequence[torch.Tensor], pattern: int = 0xFF, write: bool = True
    ) -> Self:
        """Copies of these tensors (or, with `write` off, poison where they will be)."""
        arena = cls(device, buffers.layout_tensors(tensors), tensors, pattern)
        arena.buffer.tensor.fill_(pattern) if not write else arena.write()
        arena.synchronize()
        return arena

    @classmethod
    def of_outputs(cls, device: torch.device, outputs: Sequence[OutputSpec], pattern: int = 0xFF) -> Self:
        """Poisoned places for outputs."""
        arena = cls(device, buffers.layout_outputs(outputs), (), pattern)
        arena.buffer.tensor.fill_(pattern)
        arena.synchronize()
        return arena

    def write(self) -> None:
        """Copy the tensors in, with guards around them."""
        buffers.fill(self.buffer.tensor, self.layout, self._tensors, self.pattern)
        self.synchronize()

    def references(self) -> list[list[Any]]:
        """Where each tensor lies, for the wire."""
        return [ref.to_list() for ref in self.layout.refs]

    def copies(self) -> tuple[torch.Tensor, ...]:
        """Private copies of every tensor, in order."""
        return tuple(buffers.take(self.buffer.tensor, ref) for ref in self.layout.refs)

    def unchanged(self) -> bool:
        """Whether every tensor's bytes are still what was written."""
        return all(
            buffers.unchanged(self.buffer.tensor, ref, tensor)
            for ref, tensor in zip(self.layout.refs, self._tensors, strict=True)
        )

    def guards_intact(self) -> bool:
        """Whether nothing was written beside the tensors."""
        return buffers.guards_intact(self.buffer.tensor, self.layout, self.pattern)

    def synchronize(self) -> None:
        """Wait until the device has done what was asked of it."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def close(self) -> None:
        """Give the memory back."""
        self.synchronize()
        self.buffer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
