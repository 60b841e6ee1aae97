"""Calling a compiled extension: values across the C border, torch operators called back, tensors by handle.

Shared by the CPU emulator and the GPU path. The C side is `include/kernelward/abi.h` and `host.cpp`.
"""

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from . import operators

MAX_DIMS = 12
_NONE, _TENSOR, _INT, _DOUBLE, _BOOL, _INTS, _STRING, _DTYPE, _LIST, _OPTIONS, _FORMAT, _SLICE, _DEVICE = range(13)
_ELLIPSIS, _DOUBLES = 13, 14
_CUDA, _REQUIRES_GRAD = 1, 2

DTYPES = {
    0: torch.uint8,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    9: torch.complex64,
    10: torch.complex128,
    11: torch.bool,
    15: torch.bfloat16,
}
_CODES = {dtype: code for code, dtype in DTYPES.items()}
_FORMATS = (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)
_ERRORS: dict[int, type[Exception]] = {1: RuntimeError, 2: TypeError, 3: ValueError, 4: IndexError, 5: AttributeError}


class Value(ctypes.Structure):
    """`kw::Value`."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("flags", ctypes.c_int32),
        ("handle", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("integer", ctypes.c_int64),
        ("real", ctypes.c_double),
        ("data", ctypes.c_void_p),
        ("text", ctypes.c_char_p),
        ("sizes", ctypes.c_int64 * MAX_DIMS),
        ("strides", ctypes.c_int64 * MAX_DIMS),
    )


_CALL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(Value), ctypes.c_int64, ctypes.POINTER(Value))
_RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_int64)
_STREAM = ctypes.CFUNCTYPE(ctypes.c_void_p)


class _Host(ctypes.Structure):
    _fields_ = (("call", _CALL), ("release", _RELEASE), ("stream", _STREAM))


class Memory:
    """Where an extension's tensors live. This one leaves them where torch put them; the emulator guards them."""

    def adopt(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """What the extension sees in place of the tensors of one call."""
        return tensors

    def result(self, name: str, tensor: torch.Tensor, values: Sequence[Any]) -> torch.Tensor:
        """What the extension sees in place of the result of operator `name`."""
        return tensor

    def is_device(self, tensor: torch.Tensor) -> bool:
        """Whether the extension is told that the tensor is on the GPU."""
        return tensor.is_cuda

    def device(self, name: str) -> str | None:
        """The device that torch is asked for when the extension asks for "cuda" or "cpu"; None for torch's default."""
        return name

    def finish(self) -> None:
        """The call is over: carry writes back to the caller's tensors."""

    def hand_out(self, tensor: torch.Tensor) -> torch.Tensor:
        """What the caller gets for a tensor that the extension returned."""
        return tensor

    def stream(self) -> int:
        """The raw current stream."""
        return torch.cuda.current_stream().cuda_stream if torch.cuda.is_available() else 0


class Extension:
    """A loaded extension: its exported functions are attributes, like those of the module torch would build.

    Attributes:
        path: the shared library.
    """

    def __init__(self, path: Path, memory: Memory | None = None) -> None:
        self.path = path
        self._memory = memory or Memory()
        self._tensors: dict[int, torch.Tensor] = {}
        self._next = 1
        self._keep: list[Any] = []
        self._library = ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL)
        library = self._library
        library.kw_error.restype = library.kw_names.restype = ctypes.c_char_p
        library.kw_invoke.argtypes = (
            ctypes.c_char_p,
            ctypes.POINTER(Value),
            ctypes.c_int64,
            ctypes.POINTER(ctypes.c_char_p),
            ctypes.c_int64,
            ctypes.POINTER(Value),
        )
        self._host = _Host(_CALL(self._operator), _RELEASE(self._release), _STREAM(self._memory.stream))
        library.kw_bind(ctypes.byref(self._host))
        names = library.kw_names().decode().split()
        self._functions: dict[str, Callable[..., Any]] = {name: self._function(name) for name in names}

    @property
    def library(self) -> ctypes.CDLL:
        """The loaded library, for the backend's own entry points."""
        return self._library

    @property
    def names(self) -> tuple[str, ...]:
        """The exported functions."""
        return tuple(self._functions)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        functions = self.__dict__.get("_functions", {})
        if name in functions:
            return functions[name]
        raise AttributeError(f"extension has no function {name!r}; it exports {', '.join(functions) or 'nothing'}")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._functions]

    def _function(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return self.invoke(name, args, kwargs)

        call.__name__ = call.__qualname__ = name
        return call

    def invoke(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call an exported function.

        Raises:
            TypeError: the arguments do not fit its signature.
            RuntimeError, ValueError, IndexError: what the function threw.
        """
        values = [*args, *kwargs.values()]
        originals: list[torch.Tensor] = []
        _collect(values, originals)
        seen = self._memory.adopt(originals)
        known = {id(original): shown for original, shown in zip(originals, seen, strict=True)}
        back = {id(shown): original for original, shown in zip(originals, seen, strict=True)}
        array = (Value * max(1, len(values)))()
        for value, slot in zip(values, array, strict=False):
            self._put(value, slot, known)
        keywords = (ctypes.c_char_p * max(1, len(kwargs)))(*[key.encode() for key in kwargs])
        out = Value()
        try:
            status = self._library.kw_invoke(name.encode(), array, len(args), keywords, len(kwargs), ctypes.byref(out))
            self._keep.clear()
            if status:
                message = self._library.kw_error().decode("utf-8", "replace")
                raise _ERRORS.get(status, RuntimeError)(message)
            result = self._take(out, back)
        finally:
            self._library.kw_clear()
            self._memory.finish()
        return self._hand_out(result, {id(original) for original in originals})

    def _hand_out(self, value: Any, mine: set[int]) -> Any:
        if isinstance(value, torch.Tensor):
            return value if id(value) in mine else self._memory.hand_out(value)
        if isinstance(value, (list, tuple)):
            return type(value)(self._hand_out(item, mine) for item in value)
        return value

    # -- Python to C

    def _put(self, value: Any, slot: Value, known: dict[int, torch.Tensor] | None = None) -> None:
        if value is None:
            slot.kind = _NONE
        elif isinstance(value, torch.Tensor):
            self._put_tensor(known.get(id(value), value) if known else value, slot)
        elif isinstance(value, bool):
            slot.kind, slot.integer = _BOOL, int(value)
        elif isinstance(value, int):
            slot.kind, slot.integer = _INT, value
        elif isinstance(value, float):
            slot.kind, slot.real = _DOUBLE, value
        elif isinstance(value, str):
            data = value.encode()
            self._keep.append(data)
            slot.kind, slot.text, slot.count = _STRING, data, len(data)
        elif isinstance(value, torch.dtype):
            slot.kind, slot.dtype = _DTYPE, _CODES[value]
        elif isinstance(value, torch.device):
            slot.kind, slot.flags, slot.integer = _DEVICE, 1, value.index or 0
        elif isinstance(value, (list, tuple)):
            self._put_list(value, slot, known)
        elif hasattr(value, "__index__"):
            slot.kind, slot.integer = _INT, value.__index__()
        elif hasattr(value, "__float__"):
            slot.kind, slot.real = _DOUBLE, float(value)
        else:
            raise TypeError(f"an extension cannot take a {type(value).__name__}")

    def _put_list(self, value: Sequence[Any], slot: Value, known: dict[int, torch.Tensor] | None) -> None:
        slot.count = len(value)
        items: Any
        if all(isinstance(item, int) and not isinstance(item, bool) for item in value):
            slot.kind, items = _INTS, (ctypes.c_int64 * max(1, len(value)))(*value)
        elif all(isinstance(item, (int, float)) and not isinstance(item, bool) for item in value):
            slot.kind, items = _DOUBLES, (ctypes.c_double * max(1, len(value)))(*value)
        else:
            slot.kind, items = _LIST, (Value * len(value))()
            for item, inner in zip(value, items, strict=True):
                self._put(item, inner, known)
        slot.data = ctypes.addressof(items)
        self._keep.append(items)

    def _put_tensor(self, tensor: torch.Tensor, slot: Value) -> None:
        if tensor.dim() > MAX_DIMS or tensor.dtype not in _CODES:
            raise TypeError(f"an extension cannot take a tensor of {tensor.dim()} dimensions and dtype {tensor.dtype}")
        slot.kind, slot.dtype, slot.ndim = _TENSOR, _CODES[tensor.dtype], tensor.dim()
        device = self._memory.is_device(tensor)
        slot.flags = (_CUDA if device else 0) | (_REQUIRES_GRAD if tensor.requires_grad else 0)
        slot.integer = (tensor.device.index or 0) if device else 0
        slot.data = tensor.data_ptr()
        slot.sizes[: tensor.dim()] = tuple(tensor.shape)
        slot.strides[: tensor.dim()] = tensor.stride()
        slot.handle = self._next
        self._tensors[self._next] = tensor.detach() if tensor.requires_grad else tensor
        self._next += 1

    def _release(self, handle: int) -> None:
        self._tensors.pop(handle, None)

    # -- C to Python

    def _take(self, value: Value, back: dict[int, torch.Tensor] | None = None) -> Any:
        kind = value.kind
        if kind == _NONE:
            return None
        if kind == _TENSOR:
            tensor = self._tensors[value.handle]
            return back.get(id(tensor), tensor) if back else tensor
        if kind == _INT:
            return value.integer
        if kind == _DOUBLE:
            return value.real
        if kind == _BOOL:
            return bool(value.integer)
        if kind == _STRING:
            return ctypes.string_at(ctypes.cast(value.text, ctypes.c_void_p), value.count).decode("utf-8", "replace")
        if kind == _DTYPE:
            return DTYPES[value.dtype]
        if kind == _INTS:
            return list((ctypes.c_int64 * value.count).from_address(value.data)) if value.count else []
        if kind == _LIST:
            items = [self._take(item, back) for item in self._items(value)]
            return tuple(items) if value.flags else items
        if kind == _OPTIONS:
            place = None if value.flags < 0 else "cuda" if value.flags else "cpu"
            device = None if place is None else self._memory.device(place)
            return operators.Options(DTYPES.get(value.dtype), device, place)
        if kind == _DEVICE:
            place = "cuda" if value.flags else "cpu"
            return operators.Options(None, self._memory.device(place), place)
        if kind == _FORMAT:
            return _FORMATS[value.integer]
        if kind == _SLICE:
            return slice(*(None if value.flags >> i & 1 else value.sizes[i] for i in range(3)))
        if kind == _ELLIPSIS:
            return Ellipsis
        raise TypeError(f"unknown value kind {kind}")

    @staticmethod
    def _items(value: Value) -> Sequence[Value]:
        return (Value * value.count).from_address(value.data) if value.count else ()

    # -- operators

    def _operator(self, name: bytes, args: Any, n: int, out: Any) -> int:
        slot = out.contents
        try:
            values = [self._take(args[i]) for i in range(n)]
            if name == b"from_blob":
                result: Any = _from_blob(*values)
            else:
                with torch.no_grad():
                    result = operators.run(name.decode(), values)
            self._keep = self._keep[-64:]
            self._put(self._settle(name.decode().lstrip("."), result, values), slot)
            return 0
        except Exception as error:  # crosses the border as text and becomes a c10::Error there
            message = f"{name.decode()}: {error}".encode()
            self._keep.append(message)
            slot.text = message
            return 1

    def _settle(self, name: str, result: Any, values: Sequence[Any]) -> Any:
        if isinstance(result, torch.Tensor):
            return self._memory.result(name, result, values)
        if isinstance(result, (list, tuple)):
            return [self._settle(name, item, values) for item in result]
        return result


def _collect(values: Sequence[Any], into: list[torch.Tensor]) -> None:
    for value in values:
        if isinstance(value, torch.Tensor):
            into.append(value)
        elif isinstance(value, (list, tuple)):
            _collect(value, into)


def _from_blob(address: int, sizes: list[int], strides: list[int], options: operators.Options) -> torch.Tensor:
    dtype = options.dtype or torch.float32
    span = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) if all(sizes) else 0
    if not span:
        return torch.empty(sizes, dtype=dtype)
    bytes_ = span * dtype.itemsize
    buffer = (ctypes.c_char * bytes_).from_address(address)
    return torch.frombuffer(buffer, dtype=dtype).as_strided(sizes, strides)
