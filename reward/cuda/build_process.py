"""The builder's process, and asking it.

It is forked from the candidate's process before the candidate's code runs. It inherits the sandbox, keeps the cache's
socket, and cannot be looked into: it is not dumpable. The candidate's process closes its own copy of that socket.
"""

import contextlib
import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..sandbox import linux
from ..sandbox.engine import CompileFailure, describe
from ..sandbox.wire import WireError, receive_frame, send_frame
from .builder import Builder, Built, extension_from, pack, unpack
from .cache import MAX_FILE, close_all_but, memfd, read_fd
from .frontend import ExtensionSource

MAX_REQUEST = 8 << 20
MAX_REPLY = 1 << 20
WAIT_S = 300.0


def _serve(channel: socket.socket, builder: Builder, directory: Path) -> None:
    while True:
        try:
            request, fds = receive_frame(channel, MAX_REQUEST)
        except (EOFError, OSError, WireError):
            return
        for fd in fds:
            os.close(fd)
        reply: dict[str, Any]
        sent: list[int] = []
        try:
            extension = extension_from(request["extension"])
            expressions = [str(text) for text in request.get("expressions", ())]
            if request["op"] == "more":
                built = builder.more(extension, expressions, directory)
            elif request["op"] == "slow":
                built = builder.slow(extension, directory, str(request["why"]))
            else:
                built = builder.build(extension, directory)
            files = pack(built)
            sent = [memfd(data) for data in files.values()]
            reply = {"ok": True, "names": list(files), "cached": built.cached, "why": built.why}
        except CompileFailure as failure:
            reply = {"ok": False, "reason": failure.reason, "message": str(failure)[:20000]}
        except (KeyError, TypeError, ValueError, RuntimeError, OSError, MemoryError, RecursionError) as error:
            reply = {"ok": False, "reason": "builder", "message": describe(error)}
        try:
            send_frame(channel, reply, sent)
        except OSError:
            return
        finally:
            for fd in sent:
                os.close(fd)


class BuilderClient:
    """Asks a builder's process; one request at a time."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._channel.settimeout(WAIT_S)

    def _ask(self, request: dict[str, Any], extension: ExtensionSource) -> Built:
        source = {**asdict(extension), "headers": dict(extension.headers)}
        try:
            send_frame(self._channel, {**request, "extension": source})
            reply, fds = receive_frame(self._channel, MAX_REPLY)
        except TimeoutError:
            raise CompileFailure("compile-timeout", f"compiling took longer than {WAIT_S:.0f} s") from None
        except (EOFError, OSError):
            raise CompileFailure("compiler-crash", "the compiler crashed or ran out of memory on this source") from None
        try:
            if not reply["ok"]:
                raise CompileFailure(reply["reason"], reply["message"])
            files = {name: read_fd(fd, MAX_FILE) for name, fd in zip(reply["names"], fds, strict=True)}
        finally:
            for fd in fds:
                os.close(fd)
        return unpack(files, reply["why"], reply["cached"])

    def build(self, extension: ExtensionSource) -> Built:
        """See `Builder.build`."""
        return self._ask({"op": "build"}, extension)

    def more(self, extension: ExtensionSource, expressions: Sequence[str]) -> Built:
        """See `Builder.more`."""
        return self._ask({"op": "more", "expressions": list(expressions)}, extension)

    def slow(self, extension: ExtensionSource, why: str) -> Built:
        """See `Builder.slow`."""
        return self._ask({"op": "slow", "why": why}, extension)


def start_builder(builder: Builder, directory: Path, keep: Sequence[int] = ()) -> BuilderClient:
    """Fork the builder's process. Call it before the candidate's code runs, and close what is in `keep` afterwards.

    Args:
        builder: what serves; built by this process, used by the fork alone.
        directory: scratch space for compilers.
        keep: descriptors that the builder needs (the cache's socket).
    """
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    if os.fork() == 0:
        try:
            close_all_but(theirs.fileno(), *keep)
            with contextlib.suppress(OSError):  # older kernels in a sandbox that forbids it
                linux.prctl(linux.PR_SET_DUMPABLE, 0)
                linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
            _serve(theirs, builder, directory)
        finally:
            os._exit(0)
    theirs.close()
    return BuilderClient(mine)
