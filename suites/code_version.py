"""Which code an answer depends on: a module of this room, and those that it imports, however far down."""

import ast
import functools
from pathlib import Path

from .hashing import sha256_text, stable_hash
from .python_syntax import parse

_ROOM = Path(__file__).parent


@functools.cache
def code_version(root: str) -> str:
    """Digest of the modules behind a module of this room, as 64 hexadecimal digits.

    A change to any of them changes the digest; a change elsewhere, such as to a command or to the choice among
    entries that were measured already, does not, so nothing is measured again for it.

    Args:
        root: name of a module in `suites/`, without `.py`.
    """
    return stable_hash(
        [[name, sha256_text((_ROOM / f"{name}.py").read_text(encoding="utf-8"))] for name in behind(root)]
    )


def behind(root: str) -> list[str]:
    """A module and the modules of this room that it imports, directly or not; sorted by name.

    Imports inside of functions and those for type checkers alone count, because they may decide what runs.

    Raises:
        FileNotFoundError: there is no such module.
    """
    found, waiting = set(), [root]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += _imports(parse((_ROOM / f"{name}.py").read_text(encoding="utf-8")))
    return sorted(found)


def _imports(tree: ast.Module) -> list[str]:
    """Modules of this room that a module names: `from .compare import x`, or `from . import compare`."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            names += [node.module] if node.module else [alias.name for alias in node.names]
    return [name for name in names if (_ROOM / f"{name}.py").is_file()]
