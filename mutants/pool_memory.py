"""Which entries are asked of a problem, remembered beside the matrix: finding that out takes the problem apart."""

import contextlib
import functools
import json
from collections.abc import Iterable
from pathlib import Path

from ..suites.code_version import code_version
from ..suites.hashing import sha256_text, stable_hash
from . import calibrate_plan, pool


class PoolMemory:
    """Lists of entries' ids by name, in one JSON file; what cannot be read or written is found out again.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fresh: dict[str, list[str]] = {}
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            found = {}
        self._known: dict[str, list[str]] = found if isinstance(found, dict) else {}

    def get(self, *name: str) -> list[str] | None:
        """The ids under a name, which names everything that they depend on beside the code that lists them."""
        return self._known.get(_key(name))

    def put(self, ids: Iterable[str], *name: str) -> None:
        """Remember ids (see `save`)."""
        self._fresh[_key(name)] = list(ids)

    def save(self) -> None:
        """Write what is new."""
        if self._fresh:
            self._known |= self._fresh
            draft = self._path.with_name(f".{self._path.name}.new")
            with contextlib.suppress(OSError):  # the matrix is written next, and says so better
                draft.write_text(json.dumps(self._known), encoding="utf-8")
                draft.replace(self._path)
            self._fresh = {}


def _key(name: Iterable[str]) -> str:
    return stable_hash([*name, _code()])


@functools.cache
def _code() -> str:
    modules = (pool.__file__, calibrate_plan.__file__)
    texts = [sha256_text(Path(module).read_text(encoding="utf-8")) for module in modules]
    return stable_hash([*texts, code_version("shapes"), code_version("select"), code_version("generators")])
