"""A build cache that many workers share and that no candidate can write to.

Entries are content-addressed: the key is a hash of everything that goes into a build, so an entry is only ever one
thing. Candidates run in processes that cannot write to the folder. What builds for them is a helper that was forked
before the candidate's code ran (`builder.py`); it reaches the folder through a *keeper*, a process outside the sandbox
that reads and writes entries on behalf of whoever holds its socket. The candidate's own process closes that socket.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from ..sandbox import linux

GIB = 1 << 30
MAX_FILE = 256 << 20
MAX_FILES = 8
_KEY = re.compile(r"[0-9a-f]{64}\Z")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
_MANIFEST = "manifest.json"


def build_key(parts: Mapping[str, Any]) -> str:
    """Hash of a build's inputs: sources, flags, headers, compiler, architecture. Values must be JSON-able."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


class Store(Protocol):
    """Where finished builds are kept."""

    def get(self, key: str) -> dict[str, bytes] | None:
        """The files under a key, or None."""

    def put(self, key: str, files: Mapping[str, bytes]) -> None:
        """Keep files under a key. A store that cannot keep them forgets them."""


def default_root() -> Path:
    """`$KERNELWARD_CACHE`, else the user's cache folder."""
    root = os.environ.get("KERNELWARD_CACHE")
    if root:
        return Path(root) / "cuda"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kernelward" / "cuda"


class BuildCache:
    """The cache as a folder: one subfolder per key, written elsewhere and renamed into place.

    Args:
        root: the folder; created with access for its owner alone.
        max_bytes: the total size above which the least recently used entries are removed.
    """

    def __init__(self, root: Path, max_bytes: int = 2 * GIB) -> None:
        self.root = root
        self.max_bytes = max_bytes
        root.mkdir(parents=True, exist_ok=True, mode=0o700)

    def _entry(self, key: str) -> Path:
        if not _KEY.match(key):
            raise ValueError(f"not a key: {key[:80]!r}")
        return self.root / key

    def get(self, key: str) -> dict[str, bytes] | None:
        """The files under a key; None where there are none, or where they are not what was written.

        Raises:
            ValueError: the key is none.
        """
        entry = self._entry(key)
        try:
            manifest = json.loads((entry / _MANIFEST).read_bytes())
            files = {name: (entry / name).read_bytes() for name in manifest}
        except (OSError, ValueError):
            return None
        if any(hashlib.sha256(data).hexdigest() != manifest[name] for name, data in files.items()):
            shutil.rmtree(entry, ignore_errors=True)
            return None
        with contextlib.suppress(OSError):  # evicted just now; the files are read already
            os.utime(entry)
        return files

    def put(self, key: str, files: Mapping[str, bytes]) -> None:
        """Keep files under a key; the first writer of a key wins. A full disk only means that nothing is kept.

        Raises:
            ValueError: a key or name that is none, too many files or too large ones.
        """
        entry = self._entry(key)
        if len(files) > MAX_FILES or any(not _NAME.match(name) or name == _MANIFEST for name in files):
            raise ValueError("file names of a cache entry must be short and plain")
        if sum(map(len, files.values())) > MAX_FILE:
            raise ValueError(f"a cache entry is larger than {MAX_FILE} bytes")
        if entry.exists():
            return
        work = None
        try:
            work = Path(tempfile.mkdtemp(prefix="writing-", dir=self.root))
            for name, data in files.items():
                (work / name).write_bytes(data)
            manifest = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
            (work / _MANIFEST).write_text(json.dumps(manifest))
            work.rename(entry)
        except OSError:
            if work is not None:
                shutil.rmtree(work, ignore_errors=True)
            return
        self._evict()

    def size(self) -> int:
        """Bytes of all entries."""
        return sum(size for _, _, size in self._entries())

    def _entries(self) -> list[tuple[float, Path, int]]:
        found = []
        for entry in self.root.iterdir():
            if _KEY.match(entry.name):
                with contextlib.suppress(OSError):  # removed by another worker meanwhile
                    size = sum(file.stat().st_size for file in entry.iterdir())
                    found.append((entry.stat().st_mtime, entry, size))
        return sorted(found)

    def _evict(self) -> None:
        with (self.root / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            entries = self._entries()
            total = sum(size for _, _, size in entries)
            for _, entry, size in entries[:-1]:
                if total <= self.max_bytes:
                    break
                # Renamed first, so that a reader never sees half an entry.
                doomed = self.root / f"removing-{entry.name[:16]}-{os.getpid()}"
                with contextlib.suppress(OSError):
                    entry.rename(doomed)
                    shutil.rmtree(doomed, ignore_errors=True)
                    total -= size
            self._sweep()

    def _sweep(self) -> None:
        """Remove what writers left behind that died, after an hour."""
        for path in self.root.iterdir():
            if path.name.startswith(("writing-", "removing-")):
                with contextlib.suppress(OSError):
                    if time.time() - path.stat().st_mtime > 3600:
                        shutil.rmtree(path, ignore_errors=True)


# ---- the keeper ------------------------------------------------------------------------------------------------------


def memfd(data: bytes) -> int:
    """A descriptor on a nameless file that holds the data; in memory where the sandbox allows it."""
    try:
        fd = os.memfd_create("kernelward-build", os.MFD_CLOEXEC)
    except PermissionError:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(data)
    return fd


def read_fd(fd: int, limit: int) -> bytes:
    """All of a file or memfd.

    Raises:
        ValueError: it is larger than the limit.
    """
    size = os.fstat(fd).st_size
    if size > limit:
        raise ValueError(f"{size} bytes are more than {limit}")
    data = b""
    while len(data) < size:
        piece = os.pread(fd, size - len(data), len(data))
        if not piece:
            break
        data += piece
    return data


class CacheKeeper:
    """Serves a `BuildCache` to whoever holds the other end of its socket.

    Requests are one packet each: JSON, the descriptor to answer on, then one memfd per file.
    """

    def __init__(self, cache: BuildCache, requests: socket.socket) -> None:
        self._cache = cache
        self._requests = requests

    def serve(self) -> None:
        """Answer until every holder of the other end is gone."""
        while True:
            data, fds, _flags, _address = socket.recv_fds(self._requests, 1 << 16, MAX_FILES + 1)
            if not data:
                return
            if not fds:
                continue
            try:
                with socket.socket(fileno=fds[0]) as answer:
                    self._answer(json.loads(data), answer, fds[1:])
            except (OSError, ValueError, KeyError, TypeError):
                continue  # a request that makes no sense gets no answer
            finally:
                for fd in fds[1:]:
                    os.close(fd)

    def _answer(self, request: dict[str, Any], answer: socket.socket, fds: list[int]) -> None:
        if request["op"] == "put":
            names = [str(name) for name in request["names"]]
            files = {name: read_fd(fd, MAX_FILE) for name, fd in zip(names, fds, strict=True)}
            self._cache.put(str(request["key"]), files)
            answer.send(b"{}")
            return
        files_found = self._cache.get(str(request["key"]))
        if files_found is None:
            answer.send(b'{"names":null}')
            return
        sent = [memfd(data) for data in files_found.values()]
        try:
            socket.send_fds(answer, [json.dumps({"names": list(files_found)}).encode()], sent)
        finally:
            for fd in sent:
                os.close(fd)


def close_all_but(*kept: int) -> None:
    """In a fork: close every descriptor above standard error but those; another's socket must not stay open here."""
    first = 3
    for fd in sorted(kept):
        os.closerange(first, fd)
        first = fd + 1
    os.closerange(first, 1 << 16)


def start_keeper(cache: BuildCache) -> socket.socket:
    """Fork a keeper and return the socket for `CacheClient`. The keeper ends with the last holder of that socket.

    Call it in a trusted process with a single thread. The descriptor is inheritable by forks, not by programs.
    """
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        try:
            close_all_but(theirs.fileno())
            linux.prctl(linux.PR_SET_DUMPABLE, 0)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            CacheKeeper(cache, theirs).serve()
        finally:
            os._exit(0)
    theirs.close()
    return mine


class CacheClient:
    """A `Store` behind a keeper's socket. A keeper that does not answer within `seconds` counts as an empty cache."""

    def __init__(self, requests: socket.socket, seconds: float = 10.0) -> None:
        self._requests = requests
        self._seconds = seconds

    def _ask(self, request: dict[str, Any], fds: list[int]) -> tuple[dict[str, Any], list[int]]:
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with mine, theirs:
            mine.settimeout(self._seconds)
            socket.send_fds(self._requests, [json.dumps(request).encode()], [theirs.fileno(), *fds])
            theirs.close()
            data, received, _flags, _address = socket.recv_fds(mine, 1 << 16, MAX_FILES)
            return (json.loads(data) if data else {}), received

    def get(self, key: str) -> dict[str, bytes] | None:
        """See `Store`."""
        try:
            answer, fds = self._ask({"op": "get", "key": key}, [])
        except OSError:
            return None
        try:
            names = answer.get("names")
            return None if names is None else {n: read_fd(fd, MAX_FILE) for n, fd in zip(names, fds, strict=True)}
        finally:
            for fd in fds:
                os.close(fd)

    def put(self, key: str, files: Mapping[str, bytes]) -> None:
        """See `Store`."""
        fds = [memfd(data) for data in files.values()]
        try:
            with contextlib.suppress(OSError):  # no keeper, no cache
                self._ask({"op": "put", "key": key, "names": list(files)}, fds)
        finally:
            for fd in fds:
                os.close(fd)
