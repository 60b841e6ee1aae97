"""Compiling for candidates, where they cannot interfere.

The *workshop* is a process that the zygote forks before any candidate. For each candidate it forks a *bench*, which
answers that candidate's requests over a socket, and for each request a *compile process*, which is confined to a folder
of its own and ends with everything it started. The bench computes the cache's key from the sources it was sent, so a
candidate can only ever fill the entry that belongs to its own sources; compilers see nothing of its processes or files.
"""

import contextlib
import json
import os
import resource
import select
import shutil
import signal
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..sandbox import landlock, linux
from ..sandbox.engine import CompileFailure, describe
from ..sandbox.landlock import Rule
from ..sandbox.wire import WireError, receive_frame, send_frame
from .builder import Builder, Built, extension_from, pack, request_key, unpack
from .cache import MAX_FILE, BuildCache
from .frontend import ExtensionSource

MAX_REQUEST = 8 << 20
MAX_REPLY = 1 << 20
MAX_HELLO = 1 << 12
BUILD_S = {"build": 600.0, "more": 120.0, "slow": 600.0}
"""Wall-clock seconds for one request; torch's own compilation needs minutes on a busy machine."""
MEMORY_BYTES = 12 << 30
_SIZE = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Confinement:
    """What compile processes may touch: Landlock rules for reading, and the kernel's Landlock version (0: none)."""

    rules: tuple[Rule, ...] = ()
    version: int = 0

    def apply(self, folder: Path) -> None:
        """Confine this process to `folder` and to reading; no network, no privileges, bounded memory.

        Raises:
            OSError: the kernel refuses what it offered.
        """
        with contextlib.suppress(OSError):  # where namespaces are not offered
            linux.unshare(linux.CLONE_NEWNET | linux.CLONE_NEWIPC)
        with open("/proc/self/statm") as file:
            data = int(file.read().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (data + MEMORY_BYTES, data + MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
        linux.drop_capabilities()
        if self.version:
            landlock.restrict([*self.rules, Rule(str(folder), ~0)], self.version)
        linux.prctl(linux.PR_SET_DUMPABLE, 0)


# ---- the workshop and its benches ------------------------------------------------------------------------------------


def start_workshop(
    maker: Callable[[str], Builder], cache: BuildCache, versions: Mapping[str, str], confinement: Confinement
) -> socket.socket:
    """Fork the workshop; returns the socket to `connect` with. It ends with the last holder of that socket.

    Call it in a trusted process with a single thread that has imported all that compiling needs.

    Args:
        maker: a builder for an architecture.
        cache: where builds are kept.
        versions: of everything outside the sources that a build depends on; part of every key.
        confinement: of compile processes.
    """
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        try:
            close_all_but(theirs.fileno())
            linux.prctl(linux.PR_SET_DUMPABLE, 0)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            while True:
                data, fds, _flags, _address = socket.recv_fds(theirs, 4096, 1)
                if not data:
                    break
                if fds and os.fork() == 0:
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    close_all_but(fds[0])
                    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
                    arch = str(json.loads(data)["arch"])
                    bench = Bench(socket.socket(fileno=fds[0]), maker(arch), arch, cache, versions, confinement)
                    bench.serve()
                    os._exit(0)
                for fd in fds:
                    os.close(fd)
        finally:
            os._exit(0)
    theirs.close()
    return mine


def close_all_but(kept: int) -> None:
    """In a fork: close every descriptor above standard error but one; another's socket must not stay open here."""
    os.closerange(3, kept)
    os.closerange(kept + 1, 1 << 16)


@dataclass(slots=True)
class Bench:
    """Answers one candidate's requests."""

    channel: socket.socket
    builder: Builder
    arch: str
    cache: BuildCache
    versions: Mapping[str, str]
    confinement: Confinement

    def serve(self) -> None:
        """Answer until the candidate is gone."""
        while True:
            try:
                request, fds = receive_frame(self.channel, MAX_REQUEST)
            except (EOFError, OSError, WireError):
                return
            for fd in fds:
                os.close(fd)
            try:
                reply, files = self._answer(request)
            except CompileFailure as failure:
                reply, files = _failed(failure.reason, str(failure)), {}
            except (KeyError, TypeError, ValueError, OSError) as error:
                reply, files = _failed("builder", describe(error)), {}
            try:
                send_frame(self.channel, {**reply, "sizes": {name: len(data) for name, data in files.items()}})
                for data in files.values():
                    self.channel.sendall(data)
            except OSError:
                return

    def _answer(self, request: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, bytes]]:
        operation = str(request["op"])
        extension = extension_from(request["extension"])
        expressions = [str(text) for text in request["expressions"]]
        strict = request["strict"] is True
        key = request_key(operation, self.arch, extension, self.versions, expressions, strict)
        found = self.cache.get(key)
        if found is not None:
            return {"ok": True, "cached": True}, found

        def job(folder: Path) -> Built:
            if operation == "build":
                return self.builder.build(extension, folder, strict)
            if operation == "more":
                return self.builder.more(extension, expressions, folder, strict)
            return self.builder.slow(extension, folder, str(request["why"]))

        reply, files = self._compile(job, BUILD_S[operation])
        if reply["ok"]:
            self.cache.put(key, files)
        return {**reply, "cached": False}, files

    def _compile(self, job: Callable[[Path], Built], seconds: float) -> tuple[dict[str, Any], dict[str, bytes]]:
        folder = Path(tempfile.mkdtemp(prefix="compiling-", dir=self.cache.root))
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                linux.new_session()
                os.close(read_end)
                self.channel.close()
                linux.end_with(parent)
                _work(job, folder, write_end, self.confinement)
            finally:
                os._exit(0)
        os.close(write_end)
        try:
            return _parse(self._collect(read_end, seconds))
        finally:
            os.close(read_end)
            _end_descendants()
            shutil.rmtree(folder, ignore_errors=True)

    def _collect(self, source: int, seconds: float) -> bytes:
        """What the compile process writes until it ends.

        Raises:
            CompileFailure: it takes too long or says too much.
        """
        data = bytearray()
        deadline = time.monotonic() + seconds
        poller = select.poll()
        poller.register(source, select.POLLIN)
        poller.register(self.channel, select.POLLRDHUP)
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise CompileFailure("compile-limit", f"compiling took longer than {seconds:.0f} s")
            for fd, _event in poller.poll(left * 1000):
                if fd != source:
                    raise CompileFailure("compile-limit", "the candidate ended while it was compiled")
                piece = os.read(source, 1 << 20)
                if not piece:
                    return bytes(data)
                data += piece
                if len(data) > MAX_FILE:
                    raise CompileFailure("compile-limit", "the compiled code is too large")


def _failed(reason: str, message: str) -> dict[str, Any]:
    return {"ok": False, "reason": reason, "message": message[:20000], "cached": False}


def _work(job: Callable[[Path], Built], folder: Path, target: int, confinement: Confinement) -> None:
    """In the compile process: do it, and write the outcome."""
    files: dict[str, bytes] = {}
    try:
        confinement.apply(folder)
        os.environ["TMPDIR"] = os.environ["HOME"] = tempfile.tempdir = str(folder)
        os.chdir(folder)
        files = pack(job(folder))
        header: dict[str, Any] = {"ok": True, "sizes": {name: len(data) for name, data in files.items()}}
    except CompileFailure as failure:
        header = _failed(failure.reason, str(failure))
    except (ValueError, TypeError, RuntimeError, OSError, MemoryError) as error:
        header = _failed("builder", describe(error))
    text = json.dumps(header).encode()
    with os.fdopen(target, "wb") as pipe:
        pipe.write(_SIZE.pack(len(text)) + text)
        for data in files.values():
            pipe.write(data)


def _parse(data: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Inverse of `_work`'s writing; an end without words is a crash of a compiler that runs in the process."""
    try:
        (length,) = _SIZE.unpack_from(data)
        header = json.loads(data[_SIZE.size : _SIZE.size + length])
        files = {}
        position = _SIZE.size + length
        for name, size in header.get("sizes", {}).items():
            files[str(name)] = data[position : position + int(size)]
            position += int(size)
        if position != len(data):
            raise ValueError("cut short")
    except (struct.error, ValueError, TypeError, AttributeError):
        raise CompileFailure("compiler-crash", "the compiler crashed or ran out of memory on this source") from None
    return header, files


def _end_descendants() -> None:
    """Kill and collect everything this process has started, whatever sessions it moved to."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while True:
        with contextlib.suppress(OSError, ValueError):
            for pid in children.read_text().split():
                os.kill(int(pid), signal.SIGKILL)
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.002)
        except ChildProcessError:
            return


# ---- the candidate's side --------------------------------------------------------------------------------------------


class BuilderClient:
    """Asks a bench; one request at a time."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._channel.settimeout(max(BUILD_S.values()) + 30)

    def _ask(
        self,
        extension: ExtensionSource,
        operation: str,
        expressions: Sequence[str] = (),
        why: str = "",
        strict: bool = False,
    ) -> Built:
        source = {**asdict(extension), "headers": dict(extension.headers)}
        request = {
            "op": operation,
            "extension": source,
            "expressions": list(expressions),
            "why": why,
            "strict": strict,
        }
        try:
            send_frame(self._channel, request)
            reply, _ = receive_frame(self._channel, MAX_REPLY)
            files = {name: self._receive(int(size)) for name, size in reply["sizes"].items()}
        except (EOFError, OSError):
            raise CompileFailure("builder", "the process that compiles is gone") from None
        if not reply["ok"]:
            raise CompileFailure(reply["reason"], reply["message"])
        return unpack(files, reply["cached"])

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self._channel.recv(min(1 << 20, size - len(data)))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)

    def build(self, extension: ExtensionSource, strict: bool = False) -> Built:
        """See `Builder.build`."""
        return self._ask(extension, "build", strict=strict)

    def more(self, extension: ExtensionSource, expressions: Sequence[str], strict: bool = False) -> Built:
        """See `Builder.more`."""
        return self._ask(extension, "more", expressions, strict=strict)

    def slow(self, extension: ExtensionSource, why: str) -> Built:
        """See `Builder.slow`."""
        return self._ask(extension, "slow", why=why)


def connect(workshop: socket.socket, arch: str) -> BuilderClient:
    """A bench of this process's own. Afterwards close `workshop`: other candidates' benches are asked for through it.

    Raises:
        OSError: the workshop is gone.
    """
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs:
        _set_up(workshop, theirs, arch)
    return BuilderClient(mine)


def _set_up(workshop: socket.socket, channel: socket.socket, arch: str) -> None:
    socket.send_fds(workshop, [json.dumps({"arch": arch}).encode()], [channel.fileno()])


# ---- by name, for a process that is no relative of the workshop ------------------------------------------------------


def admit_one(door: socket.socket, workshop: socket.socket) -> None:
    """Give the first who connects (`connect_at`) a bench; nobody after it.

    Args:
        door: a listening Unix stream socket in a folder that only its owner can enter.
        workshop: as `start_workshop` returns it.

    Raises:
        EOFError, OSError, WireError: whoever connected left or did not keep to the form.
    """
    channel, _ = door.accept()
    door.close()
    with channel:
        request, fds = receive_frame(channel, MAX_HELLO)
        for fd in fds:
            os.close(fd)
        _set_up(workshop, channel, str(request["arch"]))


def connect_at(path: Path, arch: str) -> BuilderClient:
    """A bench behind the socket of that name.

    Raises:
        OSError: nobody listens there.
    """
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    channel.connect(str(path))
    send_frame(channel, {"arch": arch})
    return BuilderClient(channel)
