"""What a calibration is made from, as files, and which of it has changed: by content, looked at only where a file's
status says that it may have.

A kind (`suites`, `operators`, ...) changes when a file of it appears, goes, or has other bytes. Writing the same bytes
again changes nothing.
"""

import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

BANK = "bank"  # the kind that changes by itself while a training goes on
_SETTLED_NS = 2_000_000_000  # a file may change within a tick of its clock: a younger one is read again
_PACKAGES = ("kernelward", "torch", "triton")
_SKIPPED = frozenset({"__pycache__", ".git"})

Stamp = tuple[int, int, int, int]


class Files:
    """Content hashes of files, with their status as a shortcut."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[Stamp, str]] = {}
        self.read = 0

    def hash(self, path: Path) -> str:
        """SHA-256 of a file's bytes; "" where it cannot be read (it is just being replaced, for one)."""
        try:
            found = path.stat()
            stamp = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
            known = self._known.get(path)
            if known is not None and known[0] == stamp:
                return known[1]
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError:
            self._known.pop(path, None)
            return ""
        self.read += 1
        if time.time_ns() - max(stamp[2], stamp[3]) > _SETTLED_NS:
            self._known[path] = stamp, digest
        return digest

    def of(self, roots: Iterable[Path], suffixes: tuple[str, ...]) -> str:
        """One hash over the files with these suffixes at or below some places; missing places hold nothing."""
        whole = hashlib.sha256()
        for path in sorted(set(_below(roots, suffixes))):
            whole.update(f"{path}\0{self.hash(path)}\n".encode("utf-8", "surrogateescape"))
        return whole.hexdigest()


def _below(roots: Iterable[Path], suffixes: tuple[str, ...]) -> Iterator[Path]:
    for root in roots:
        if root.is_file():
            yield root
            continue
        for folder, inner, names in os.walk(root):
            inner[:] = [name for name in inner if name not in _SKIPPED and not name.startswith(".")]
            yield from (Path(folder, name) for name in names if name.endswith(suffixes) and not name.startswith("."))


def versions() -> str:
    """The installed versions of what cells depend on, as one line."""
    found = []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"{name} -")
    return ", ".join(found)


def changed_kinds(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """The kinds that differ, by name."""
    return tuple(sorted(kind for kind in {*before, *now} if before.get(kind) != now.get(kind)))


def replace_file(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old text or the new one, whatever happens meanwhile.

    Raises:
        OSError: it cannot be written; the old one is as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.new")
    with draft.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
