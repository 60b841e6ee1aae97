"""Frames between judge and child: a length, JSON, file descriptors. Nothing is ever unpickled.

Tensors travel as references into shared buffers (`TensorRef`), everything else as tagged JSON.
"""

import json
import math
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

HEADER = struct.Struct(">I")
MAX_REPLY = 256 << 10  # bytes of JSON that the judge reads from a child in one frame
MAX_REQUEST = 64 << 20
MAX_DEPTH = 32
MAX_FDS = 8

_FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128")
_INTEGERS = ("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64", "bool")
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in (*_FLOATS, *_INTEGERS)}
DTYPE_NAMES: dict[torch.dtype, str] = {dtype: name for name, dtype in DTYPES.items()}


class WireError(ValueError):
    """A frame that breaks the format: too long, not JSON, or not of the expected form."""


class UnsupportedValueError(TypeError):
    """A value that has no form on the wire (an object, a sparse tensor)."""


@dataclass(frozen=True, slots=True)
class TensorRef:
    """Where a tensor lies in a buffer: dtype name, shape and strides in elements, offset in bytes."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of a dense tensor of this shape."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize

    def to_list(self) -> list[Any]:
        """Plain values for the wire."""
        return [self.dtype, list(self.shape), list(self.stride), self.offset]

    @classmethod
    def from_list(cls, data: list[Any]) -> "TensorRef":
        """Inverse of `to_list`."""
        dtype, shape, stride, offset = data
        return cls(dtype, tuple(shape), tuple(stride), offset)


def send_frame(sock: socket.socket, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
    """Send one JSON object, with descriptors attached to its first byte.

    Raises:
        OSError: the peer is gone, or the socket's time-out passed.
    """
    data = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
    frame = HEADER.pack(len(data)) + data
    if fds:
        sent = socket.send_fds(sock, [frame], list(fds))
        frame = frame[sent:]
    if frame:
        sock.sendall(frame)


def receive_frame(sock: socket.socket, limit: int = MAX_REQUEST) -> tuple[dict[str, Any], list[int]]:
    """Blocking read of one frame, for the child's end.

    Raises:
        EOFError: the peer is gone.
        WireError: the frame is too long or not a JSON object.
    """
    first, fds, _flags, _address = socket.recv_fds(sock, HEADER.size, MAX_FDS)
    while first and len(first) < HEADER.size:
        more = sock.recv(HEADER.size - len(first))
        if not more:
            break
        first += more
    if len(first) < HEADER.size:
        raise EOFError("the channel was closed")
    (length,) = HEADER.unpack(first)
    if length > limit:
        raise WireError(f"a frame of {length} bytes")
    data = bytearray()
    while len(data) < length:
        chunk = sock.recv(min(1 << 20, length - len(data)))
        if not chunk:
            raise EOFError("the channel was closed inside a frame")
        data += chunk
    return parse_object(bytes(data)), list(fds)


def parse_object(data: bytes) -> dict[str, Any]:
    """Decode one JSON object.

    Raises:
        WireError: not UTF-8, not JSON, nested too deep, or not an object.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise WireError(f"not a JSON object: {type(error).__name__}") from None
    if not isinstance(value, dict):
        raise WireError("not a JSON object")
    return value


class FrameReader:
    """Collects a child's frames from a non-blocking socket, never more than one frame's limit in memory."""

    def __init__(self, sock: socket.socket, limit: int = MAX_REPLY) -> None:
        self._sock = sock
        self._limit = limit
        self._data = bytearray()
        self.closed = False

    def poll(self) -> dict[str, Any] | None:
        """Read what is there; a complete frame's object, or None.

        Raises:
            WireError: the frame breaks the format.
        """
        while True:
            wanted = HEADER.size
            if len(self._data) >= HEADER.size:
                (length,) = HEADER.unpack_from(self._data)
                if length > self._limit:
                    raise WireError(f"a frame of {length} bytes")
                wanted += length
                if len(self._data) == wanted:
                    body = bytes(self._data[HEADER.size :])
                    self._data.clear()
                    return parse_object(body)
            try:
                # Plain recv: descriptors that a child attaches are closed by the kernel.
                chunk = self._sock.recv(wanted - len(self._data))
            except BlockingIOError:
                return None
            except ConnectionError:
                chunk = b""
            if not chunk:
                self.closed = True
                return None
            self._data += chunk


def encode_value(value: Any, tensors: list[torch.Tensor], depth: int = 0) -> Any:
    """Tagged JSON for a value; tensors are appended to `tensors` and referred to by index.

    Raises:
        UnsupportedValueError: there is no form for it.
    """
    if depth > MAX_DEPTH:
        raise UnsupportedValueError("a value nested too deep")
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"f": repr(float(value))}
    if isinstance(value, complex):
        return {"c": [repr(value.real), repr(value.imag)]}
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return {"t": len(tensors) - 1}
    if isinstance(value, torch.dtype):
        if value not in DTYPE_NAMES:
            raise UnsupportedValueError(f"a dtype {value}")
        return {"dtype": DTYPE_NAMES[value]}
    if isinstance(value, torch.device):
        return {"device": True}
    if isinstance(value, list):
        return {"l": [encode_value(v, tensors, depth + 1) for v in value]}
    if isinstance(value, tuple):
        return {"u": [encode_value(v, tensors, depth + 1) for v in value]}
    if isinstance(value, dict):
        return {
            "d": [[encode_value(k, tensors, depth + 1), encode_value(v, tensors, depth + 1)] for k, v in value.items()]
        }
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # NumPy scalars
        return encode_value(value.item(), tensors, depth + 1)
    raise UnsupportedValueError(f"a value of type {type(value).__name__}")


def decode_value(value: Any, tensor: Callable[[int], torch.Tensor], device: torch.device) -> Any:
    """Inverse of `encode_value`, for the child: the judge wrote it, so it is trusted."""
    if not isinstance(value, dict):
        return value
    ((tag, body),) = value.items()
    match tag:
        case "t":
            return tensor(body)
        case "f":
            return float(body)
        case "c":
            return complex(float(body[0]), float(body[1]))
        case "dtype":
            return DTYPES[body]
        case "device":
            return device
        case "l":
            return [decode_value(v, tensor, device) for v in body]
        case "u":
            return tuple(decode_value(v, tensor, device) for v in body)
        case "d":
            return {decode_value(k, tensor, device): decode_value(v, tensor, device) for k, v in body}
    raise WireError(f"an unknown tag {tag!r}")
