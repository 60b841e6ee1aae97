"""Torch on a CPU that answers as if it had a GPU: candidates ask for "cuda" and get the CPU."""

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


def _is_cuda(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))


class _CudaIsCpu(TorchFunctionMode):
    """Every call of torch sees "cpu" where it was given "cuda"."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(_is_cuda(a) for a in args):
            args = tuple("cpu" if _is_cuda(a) else a for a in args)
        if _is_cuda(kwargs.get("device")):
            kwargs = {**kwargs, "device": "cpu"}
        return func(*args, **kwargs)


class _Stream:
    """A stream with nothing to do."""

    cuda_stream = 0

    def synchronize(self) -> None:
        """Everything has run."""

    def wait_stream(self, other: Any) -> None:
        """Everything has run."""

    def record_event(self, event: Any = None) -> Any:
        """Everything has run."""
        return event

    def __enter__(self) -> "_Stream":
        return self

    def __exit__(self, *_: object) -> None:
        return None


class _Event:
    """An event on such a stream."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, *_: Any) -> None:
        """Nothing to wait for."""

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def elapsed_time(self, other: Any) -> float:
        """Milliseconds; timings mean nothing here."""
        return 0.001


class _Properties:
    name = "NVIDIA H100 (kernelward CPU emulator)"
    major, minor = 9, 0
    multi_processor_count = 132
    total_memory = 80 << 30
    max_threads_per_multi_processor = 2048
    warp_size = 32


@contextmanager
def _nothing(*_: Any, **__: Any) -> Any:
    yield


_active: list[_CudaIsCpu] = []


def pretend_cuda() -> None:
    """Install the pretence in this process, for good. Only a candidate's own process may do this."""
    if _active:
        return
    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "synchronize": lambda *_: None,
        "empty_cache": lambda: None,
        "set_device": lambda *_: None,
        "get_device_name": lambda *_: _Properties.name,
        "get_device_capability": lambda *_: (9, 0),
        "get_device_properties": lambda *_: _Properties(),
        "current_stream": lambda *_: _Stream(),
        "default_stream": lambda *_: _Stream(),
        "stream": _nothing,
        "device": _nothing,
        "manual_seed": lambda *_: None,
        "manual_seed_all": lambda *_: None,
        "is_bf16_supported": lambda *_, **__: True,
        "init": lambda: None,
        "is_initialized": lambda: True,
        "memory_allocated": lambda *_: 0,
        "max_memory_allocated": lambda *_: 0,
        "reset_peak_memory_stats": lambda *_: None,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    torch.cuda.Stream = lambda *_, **__: _Stream()  # type: ignore[misc, assignment]
    torch.cuda.Event = _Event  # type: ignore[misc, assignment]

    def stay(self: Any, *_: Any, **__: Any) -> Any:
        return self

    torch.Tensor.cuda = stay  # type: ignore[method-assign]
    torch.Tensor.is_cuda = property(lambda self: True)  # type: ignore[assignment]
    torch.nn.Module.cuda = stay  # type: ignore[method-assign, method-assign]
    mode = _CudaIsCpu()
    mode.__enter__()
    _active.append(mode)
