"""A folder of suites that the judge reads before the packaged library, and how a suite gets into it.

A suite file that the project writes there begins with a line that names its hash, so that one which was cut off is
known to be; the suites that it replaced stay under `.history`, by their hashes, so that the verdicts of a run's past
can be traced. Files without that line are a user's own: they are taken as they are, but while a run is under way only
once they have not been written to for a moment.
"""

import contextlib
import logging
import os
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..suites.errors import InputError

if TYPE_CHECKING:
    from ..suites.suite import Suite

_log = logging.getLogger(__name__)

HISTORY = ".history"
_SEAL = "# kernelward suite "
_SETTLED_S = 2.0


@dataclass(frozen=True, slots=True)
class PromotionRule:
    """Which proposals may be promoted without a person; see `mutants.promote`.

    Attributes:
        false_accepts: those that make a false accept fail.
        least_gain: those that detect at least so much more of the witnessed mutants (0.01 = one in a hundred); None =
            none for that reason.
        known_correct: at least so many kernels known to be correct were judged, and all were accepted.
        most_bytes: the new suite's entries need at most so many bytes together.
    """

    false_accepts: bool = False
    least_gain: float | None = None
    known_correct: int = 1
    most_bytes: int = 256 << 20


def sealed(suite: "Suite") -> str:
    """The text of a suite file that says when it is incomplete."""
    return f"{_SEAL}{suite.hash}\n{suite.to_yaml()}"


def read_suite(path: Path) -> "Suite":
    """Read a suite file, sealed or not.

    Raises:
        InputError: it cannot be read, or is not what its first line says.
    """
    from ..suites.suite import load_suite

    suite = load_suite(path)
    with path.open(encoding="utf-8") as stream:
        first = stream.readline()
    if first.startswith(_SEAL) and first.removeprefix(_SEAL).strip() != suite.hash:
        raise InputError(
            f"{path}:1: the suite is not the one that its first line names: it is incomplete, or was changed by hand "
            "(then delete that line)"
        )
    return suite


def write_suite(path: Path, suite: "Suite") -> None:
    """Write a sealed suite file: a reader sees the old file or the new one, never a part.

    Raises:
        InputError: the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{path.name}.", suffix=".new", delete=False, encoding="utf-8"
        ) as draft:
            try:
                draft.write(sealed(suite))
                draft.flush()
                os.fsync(draft.fileno())
                os.chmod(draft.name, 0o644)
                os.replace(draft.name, path)
            except BaseException:
                os.unlink(draft.name)
                raise
    except OSError as error:
        raise InputError(f"{path}: cannot write the suite: {error.strerror or error}") from error


def install(folder: Path, suite: "Suite") -> Path:
    """Put a suite into a folder, in the place of the problem's earlier one, which is kept in the history.

    Raises:
        InputError: the folder cannot be read or written.
    """
    files = suite_files(folder)
    place = next((path for path, held in files.items() if held.problem_hash == suite.problem_hash), None)
    if place is not None:
        write_suite(_in_history(folder, files[place].hash), files[place])
    write_suite(_in_history(folder, suite.hash), suite)
    place = place or folder / f"{suite.problem_id}.yaml"
    if place in files and files[place].problem_hash != suite.problem_hash:  # another version of the problem
        place = place.with_name(f"{place.stem}-{suite.problem_hash[:12]}.yaml")
    write_suite(place, suite)
    return place


def suite_files(folder: Path) -> "dict[Path, Suite]":
    """All suites of a folder by their files; hidden files and folders are left out.

    Raises:
        InputError: a file is broken, or two are for one problem.
    """
    found: dict[Path, Suite] = {}
    problems: set[str] = set()
    for path in _paths(folder):
        suite = read_suite(path)
        if suite.problem_hash in problems:
            raise InputError(f"{path}: a second suite for problem {suite.problem_id} in {folder}; keep one of them")
        problems.add(suite.problem_hash)
        found[path] = suite
    return found


def from_history(folder: Path, suite_hash: str) -> "Suite | None":
    """A suite that was once promoted in a folder."""
    path = _in_history(folder, suite_hash)
    with contextlib.suppress(InputError):
        if path.is_file():
            return read_suite(path)
    return None


def _in_history(folder: Path, suite_hash: str) -> Path:
    return folder / HISTORY / f"{suite_hash}.yaml"


def _paths(folder: Path) -> list[Path]:
    return [
        path
        for path in sorted(folder.rglob("*.yaml"))
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]


class SuiteFolder:
    """The folder as a run sees it: read when asked, with what is broken left as it was before.

    Args:
        folder: None holds nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._read: dict[Path, tuple[tuple[int, int], Suite]] = {}
        self._said: set[str] = set()
        self._started = False

    def read(self) -> "dict[str, Suite]":
        """The suites by the hash of their problem.

        Raises:
            InputError: at the first reading, where a file is broken or two are for one problem. Later on such a file
                is left out of account with a warning, and what it held before is kept.
        """
        if self._folder is None:
            return {}
        with self._lock:
            if not self._started:
                stamps = {path: _stamp(path) for path in _paths(self._folder)}
                found = suite_files(self._folder)
                self._read = {path: (stamps.get(path, (0, 0)), suite) for path, suite in found.items()}
                self._started = True
            else:
                self._update(self._folder)
            return {suite.problem_hash: suite for _, suite in self._read.values()}

    def find(self, suite_hash: str) -> "Suite | None":
        """A suite of the folder or of its history by its hash."""
        with self._lock:
            held = next((suite for _, suite in self._read.values() if suite.hash == suite_hash), None)
        return held or (None if self._folder is None else from_history(self._folder, suite_hash))

    def _update(self, folder: Path) -> None:
        try:
            paths = _paths(folder)
        except OSError as error:
            self._say(f"{folder}: cannot be read ({error.strerror}); its suites stay as they were")
            return
        kept = {path: held for path, held in self._read.items() if path in paths}
        for path in paths:
            try:
                stamp = _stamp(path)
                if path in kept and kept[path][0] == stamp:
                    continue
                if not _is_sealed(path) and time.time() - stamp[0] / 1e9 < _SETTLED_S:
                    continue  # its writer may not be done; the next epoch sees it
                suite = read_suite(path)
            except (InputError, OSError, UnicodeDecodeError) as error:
                self._say(f"{error}; what was there before is kept")
                continue
            if any(other.problem_hash == suite.problem_hash for at, (_, other) in kept.items() if at != path):
                self._say(f"{path}: a second suite for problem {suite.problem_id}; it is not used")
                continue
            kept[path] = stamp, suite
        self._read = kept

    def _say(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            _log.warning("%s", message)


@dataclass(frozen=True, slots=True)
class SuitesAt:
    """The folder's suites during one epoch.

    Attributes:
        suites: by the hash of the problem.
        hashes: of the suites, by the same; those of other problems are added as they come up.
    """

    suites: "Mapping[str, Suite]"
    hashes: dict[str, str | None]


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size


def _is_sealed(path: Path) -> bool:
    with path.open(encoding="utf-8") as stream:
        return stream.readline().startswith(_SEAL)
