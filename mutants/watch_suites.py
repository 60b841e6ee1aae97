"""Which suite each problem is judged with now, as the reward finds it: the user's folder, the library, or the default.

A file that is half written or broken does not count: the last version of it that could be read stays in use, and it is
said. Those versions are kept beside the matrix, so that this holds after a restart as well.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..reward.promoted import read_suite
from ..suites.defaults import cached_default_suite
from ..suites.entry import Entry
from ..suites.errors import InputError
from ..suites.hashing import sha256_text, short
from ..suites.problem import Problem
from ..suites.suite import Suite, find_suite, load_suite
from .watch_files import replace_file


@dataclass(frozen=True, slots=True)
class InUse:
    """A suite in use.

    Attributes:
        suite: the suite.
        origin: where it was found.
    """

    suite: Suite
    origin: Literal["file", "library", "default"]

    @property
    def entries(self) -> tuple[Entry, ...]:
        """What it asks, the twins for refusals included."""
        return tuple(item.entry for item in (*self.suite.entries, *self.suite.reserves))


def suites_in_use(
    problems: Iterable[Problem], folder: Path, kept: Path, device: str
) -> tuple[dict[str, InUse], list[str]]:
    """The suites by hash of their problem; a problem that cannot be refereed has none.

    Args:
        folder: of suite files (`*.yaml`), at any depth; it may be missing.
        kept: folder for the last good versions.
        device: `cpu` or `cuda`: default suites that were never built are built on it.

    Returns:
        The suites, and what there is to say about files that are not in use.

    Raises:
        InputError: a problem's own code is broken.
        OSError: a good version cannot be kept.
    """
    files, notes = _files(folder, kept)
    found: dict[str, InUse] = {}
    by_id = {suite.problem_id: path for path, suite in files.items()}
    own = {suite.problem_hash: suite for suite in reversed(files.values())}
    for path, suite in files.items():
        if own[suite.problem_hash] is not suite:
            notes.append(f"{path}: a second suite for {suite.problem_id}; the first one is in use")
    for problem in problems:
        if problem.hash in own:
            found[problem.hash] = InUse(own[problem.hash], "file")
            continue
        if problem.id in by_id:
            notes.append(f"{by_id[problem.id]}: for another version of {problem.id}; it is not in use")
        library = find_suite(problem)
        if library is not None:
            found[problem.hash] = InUse(library, "library")
            continue
        default, _ = cached_default_suite(problem, device)
        if default is None:
            notes.append(f"{problem.id}: no entry may judge it, so it has no suite")
        else:
            found[problem.hash] = InUse(default, "default")
    return found, notes


def _files(folder: Path, kept: Path) -> tuple[dict[Path, Suite], list[str]]:
    suites: dict[Path, Suite] = {}
    notes: list[str] = []
    for path in sorted(folder.rglob("*.yaml")):
        if any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue  # drafts, and the history of promoted suites
        copy = kept / f"{sha256_text(path.relative_to(folder).as_posix())[:32]}.yaml"
        try:
            suites[path] = read_suite(path)
        except InputError as error:
            try:
                suites[path] = load_suite(copy)
            except InputError:
                notes.append(f"{error}; it is not in use")
                continue
            notes.append(f"{error}; its last good version ({short(suites[path].hash)}) stays in use")
            continue
        _keep(copy, suites[path].to_yaml())
    return suites, notes


def _keep(copy: Path, text: str) -> None:
    if copy.is_file() and copy.read_text(encoding="utf-8") == text:
        return
    replace_file(copy, text)
