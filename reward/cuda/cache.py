"""A build cache that many workers share and that no candidate can write to.

Entries are content-addressed: the key is a hash of everything that goes into a build, so an entry is only ever one
thing. Candidates run in processes that cannot write to the folder, and what is written comes from compilers that ran
where candidates cannot reach (`workshop.py`).
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
            if path.name.startswith(("writing-", "removing-", "compiling-")):
                with contextlib.suppress(OSError):
                    if time.time() - path.stat().st_mtime > 3600:
                        shutil.rmtree(path, ignore_errors=True)
