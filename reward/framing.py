"""Messages between the client and its judge: a length and a JSON object, over a socket pair."""

import json
import socket
import struct
from typing import Any

_LENGTH = struct.Struct(">I")
MAX_FRAME = 1 << 28  # 256 MiB: far above the longest candidate that is judged, so that it can be refused by name


class FrameError(OSError):
    """The other side closed the connection, or sent something that is not a frame."""


def send_frame(sock: socket.socket, message: dict[str, Any]) -> None:
    """Send one message; callers on several threads hold a lock.

    Raises:
        FrameError: the connection is gone, or the message is too long.
    """
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MAX_FRAME:
        raise FrameError(f"a message of {len(body)} bytes is too long (at most {MAX_FRAME})")
    try:
        sock.sendall(_LENGTH.pack(len(body)) + body)
    except OSError as error:
        raise FrameError(f"the connection is gone: {error}") from error


def receive_frame(sock: socket.socket) -> dict[str, Any]:
    """The next message.

    Raises:
        FrameError: the connection is gone, or what arrived is not a frame.
    """
    (length,) = _LENGTH.unpack(_receive_exactly(sock, _LENGTH.size))
    if length > MAX_FRAME:
        raise FrameError(f"a frame of {length} bytes was announced (at most {MAX_FRAME})")
    try:
        message = json.loads(_receive_exactly(sock, length))
    except ValueError as error:
        raise FrameError(f"not a JSON message: {error}") from error
    if not isinstance(message, dict):
        raise FrameError("not a JSON object")
    return message


def _receive_exactly(sock: socket.socket, count: int) -> bytes:
    buffer = bytearray(count)
    view = memoryview(buffer)
    while view:
        try:
            got = sock.recv_into(view)
        except OSError as error:
            raise FrameError(f"the connection is gone: {error}") from error
        if not got:
            raise FrameError("the other side closed the connection")
        view = view[got:]
    return bytes(buffer)
