"""Guards for Triton's interpreter: every address a kernel touches must lie in a tensor.

The interpreter reads and writes raw addresses; near ones beyond a tensor give garbage or overwrite a neighbour, far
ones kill the process. Its loads, stores and atomics go through one module object, which is replaced by `Guarded`.
"""

import gc
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from triton.runtime import interpreter as runtime
from triton.runtime.autotuner import Autotuner

_native = runtime._interpreter


class OutOfBoundsError(RuntimeError):
    """A kernel touched memory that is in no tensor."""


class Guarded:
    """Stands in for the interpreter's native module and checks addresses first.

    Attributes:
        strict: an address outside of every tensor ends the kernel; else those lanes read the poison and their writes
            are lost, which is about what a GPU does with an allocation's neighbourhood.
        findings: what strict runs have shown.
    """

    def __init__(self) -> None:
        self.strict = True
        self.findings: list[dict[str, Any]] = []
        self._spans: np.ndarray = np.empty((0, 2), dtype=np.uint64)

    def __getattr__(self, name: str) -> Any:
        return getattr(_native, name)

    def launch(self, tensors: Iterable[torch.Tensor]) -> None:
        """Remember the memory of the tensors that a kernel is called with."""
        self._spans = spans_of(tensors)

    def load(self, ptrs: np.ndarray, mask: np.ndarray, other: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """A masked load."""
        return _native.load(ptrs, self._checked(ptrs, mask, np.dtype(dtype).itemsize, "load"), other, dtype)

    def store(self, ptrs: np.ndarray, value: np.ndarray, mask: np.ndarray) -> Any:
        """A masked store."""
        return _native.store(ptrs, value, self._checked(ptrs, mask, value.dtype.itemsize, "store"))

    def atomic_rmw(self, op: Any, ptrs: np.ndarray, value: np.ndarray, mask: np.ndarray, sem: Any) -> np.ndarray:
        """A masked atomic read-modify-write."""
        mask = self._checked(ptrs, mask, value.dtype.itemsize, "atomic")
        return _native.atomic_rmw(op, ptrs, value, mask, sem)

    def atomic_cas(self, ptrs: np.ndarray, compare: np.ndarray, value: np.ndarray, sem: Any) -> np.ndarray:
        """An atomic compare-and-swap, which has no mask: lanes cannot be left out."""
        inside = self._checked(ptrs, np.ones_like(ptrs, dtype=bool), value.dtype.itemsize, "atomic")
        if not inside.all():
            raise OutOfBoundsError("an atomic_cas outside of every tensor")
        return _native.atomic_cas(ptrs, compare, value, sem)

    def _checked(self, ptrs: np.ndarray, mask: np.ndarray, width: int, what: str) -> np.ndarray:
        """The mask without the lanes that are out of bounds."""
        mask = np.asarray(mask)  # of a block pointer it is a memoryview
        asked = ptrs[mask.astype(bool)] if mask.shape == ptrs.shape else np.broadcast_to(ptrs, mask.shape)[mask]
        if asked.size == 0 or self._inside(asked, width).all():
            return mask
        # A kernel may have been handed pointers in a tensor: look at every tensor there is before judging.
        self._spans = spans_of(t for t in gc.get_objects() if type(t) in (torch.Tensor, torch.nn.Parameter))
        outside = ~self._inside(asked, width)
        if not outside.any():
            return mask
        if self.strict:
            message = (
                f"{what} of {width} bytes at {int(outside.sum())} of {asked.size} addresses outside of every tensor"
            )
            self.findings.append({"code": "out-of-bounds", "message": message})
            raise OutOfBoundsError(message)
        return mask & self._inside(np.broadcast_to(ptrs, mask.shape), width)

    def _inside(self, addresses: np.ndarray, width: int) -> np.ndarray:
        """For each address whether `width` bytes from it lie in one span."""
        if len(self._spans) == 0:
            return np.zeros(addresses.shape, dtype=bool)
        addresses = addresses.astype(np.uint64, copy=False)
        place = np.searchsorted(self._spans[:, 0], addresses, side="right") - 1
        stop = self._spans[np.maximum(place, 0), 1]
        return (place >= 0) & (addresses + np.uint64(width) <= stop)


guard = Guarded()


def spans_of(tensors: Iterable[torch.Tensor]) -> np.ndarray:
    """Sorted, merged [start, stop) of the tensors' storages."""
    spans = set()
    for tensor in tensors:
        if tensor.layout == torch.strided and tensor.device.type == "cpu":
            storage = tensor.untyped_storage()
            if storage.nbytes():
                spans.add((storage.data_ptr(), storage.data_ptr() + storage.nbytes()))
    merged: list[list[int]] = []
    for start, stop in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], stop)
        else:
            merged.append([start, stop])
    return np.array(merged, dtype=np.uint64).reshape(-1, 2)


def _tensors(value: Any) -> list[torch.Tensor]:
    """The tensors among kernel arguments: themselves, in tuples, behind descriptors and re-typing wrappers."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [t for item in value for t in _tensors(item)]
    if isinstance(value, dict):
        return [t for item in value.values() for t in _tensors(item)]
    if hasattr(value, "base"):
        return _tensors(value.base)
    return []


def semantic() -> Any:
    """The interpreter's semantics object; it moved between versions."""
    return runtime.interpreter_semantic


def install() -> None:
    """Route the interpreter through the guard, and let autotuning take its first configuration."""
    runtime._interpreter = guard
    original = runtime.GridExecutor._init_args_hst

    def _init_args_hst(self: Any, args_dev: Any, kwargs: Any) -> Any:
        hosts = original(self, args_dev, kwargs)
        guard.launch(_tensors(hosts))
        return hosts

    runtime.GridExecutor._init_args_hst = _init_args_hst
    # There is nothing to time without a GPU; equal figures make it choose the first configuration.
    Autotuner._bench = lambda self, *args, config, **meta: [0.0, 0.0, 0.0]
