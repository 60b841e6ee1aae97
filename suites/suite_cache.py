"""Default suites on disk: content-addressed, written atomically, safe for processes that want the same one at once."""

import contextlib
import fcntl
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from .code_version import code_version
from .entry import Entry
from .errors import InputError
from .hashing import stable_hash
from .suite import Suite, find_suite

if TYPE_CHECKING:
    from .problem import Problem
    from .validity import Admission

Built = tuple[Suite | None, "tuple[Admission, ...]"]


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/kernelward`, by default `~/.cache/kernelward`."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(root) / "kernelward"


def cache_key(problem: "Problem", device_class: str, policy: str) -> str:
    """What a default suite depends on, as 64 hexadecimal digits."""
    return _key(problem, device_class, policy, "defaults")


def gate_key(problem: "Problem", device_class: str, policy: str) -> str:
    """What the validity gate's answers depend on, as 64 hexadecimal digits; not on how entries are chosen."""
    return _key(problem, device_class, policy, "validity")


def _key(problem: "Problem", device_class: str, policy: str, asked: str) -> str:
    import torch  # here, so that naming a folder does not import it

    return stable_hash([problem.hash, device_class, policy, torch.__version__, code_version(asked)])


def suite_identity(problem: "Problem", device_class: str, policy: str) -> str:
    """Names the suite that a problem is judged with, without building it."""
    found = find_suite(problem)
    return f"library {found.hash}" if found is not None else f"default {cache_key(problem, device_class, policy)}"


def cached(
    key: str, build: Callable[[], Built], folder: Path | None = None, keep: Callable[[Built], bool] = lambda _: True
) -> Built:
    """What is stored under a key, or else what `build` makes, which is then stored.

    Of several processes one builds and the others wait. A damaged file is built again. Where the folder cannot be
    written, the suite is built and not stored, with a warning.

    Args:
        folder: the cache folder; by default `cache_folder()`.
        keep: whether what was built is to be stored.
    """
    place = _place(key, folder)
    found = _read(place)
    if found is not None:
        return found
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(place.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        warnings.warn(f"default suites are not kept: {place.parent}: {error.strerror}", stacklevel=2)
        return build()
    with _locked(lock):
        found = _read(place)
        if found is None:
            found = build()
            if keep(found):
                _write(place, found)
        return found


def stored(key: str, folder: Path | None = None) -> Built | None:
    """What is stored under a key, or None."""
    return _read(_place(key, folder))


def _place(key: str, folder: Path | None) -> Path:
    return (folder or cache_folder()) / "suites" / key[:2] / f"{key}.json"


@contextlib.contextmanager
def _locked(fd: int) -> Iterator[None]:
    """Hold a lock that the system releases when this process ends, however it ends."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _read(place: Path) -> Built | None:
    from .validity import Admission

    try:
        data = json.loads(place.read_text(encoding="utf-8"))
        suite = None if data["suite"] is None else Suite.from_yaml(data["suite"], str(place))
        rejected = tuple(
            Admission(Entry.from_dict(r["entry"]), admitted=False, reason=r["reason"], detail=r["detail"])
            for r in data["rejected"]
        )
    except (OSError, ValueError, KeyError, TypeError, InputError):
        return None  # absent or damaged: it is built (again)
    return suite, rejected


def _write(place: Path, built: Built) -> None:
    suite, rejected = built
    data = {
        "suite": None if suite is None else suite.to_yaml(),
        "rejected": [{"entry": r.entry.to_dict(), "reason": r.reason, "detail": r.detail} for r in rejected],
    }
    try:
        with tempfile.NamedTemporaryFile("w", dir=place.parent, suffix=".tmp", delete=False, encoding="utf-8") as file:
            json.dump(data, file)
        os.replace(file.name, place)
    except OSError as error:
        warnings.warn(f"a default suite was not kept: {place}: {error.strerror}", stacklevel=2)
