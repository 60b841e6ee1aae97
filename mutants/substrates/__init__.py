"""Correct kernels that mutants are made from: one file each, all written for this project.

A file is a candidate like any other: it defines `ModelNew`. Its docstring says in one line what it is, then
`problem: ` and a name for `find_problem`, and `style: `. The files are data. They are read here and run only where
candidates run, so the folders are no packages.
"""

import ast
import re
from pathlib import Path

from ...reward.screen import detect_backend
from ...suites.errors import InputError
from ...suites.python_syntax import parse
from ..mutant import Backend, Substrate

FOLDER = Path(__file__).parent
_FIELD = re.compile(r"^(problem|style):[ \t]*(\S.*?)[ \t]*$", re.MULTILINE)


def list_substrates(folder: Path | None = None) -> list[Substrate]:
    """Every substrate below a folder, by name.

    Args:
        folder: by default the package's own.

    Raises:
        InputError: `folder` is none, or a file in it is no substrate.
    """
    root = folder or FOLDER
    if not root.is_dir():
        raise InputError(f"no folder {root}: name one that holds substrates, one .py file each")
    files = (file for file in root.rglob("*.py") if file.name != "__init__.py")
    return sorted((_read(file, file.relative_to(root)) for file in files), key=lambda s: s.name)


def load_substrate(path: Path) -> Substrate:
    """Read one substrate. Its name is its place in the package's folder, or else its folder's name and its own.

    Raises:
        InputError: it cannot be read, or its header or its backend is missing.
    """
    full = path.resolve()
    inside = full.is_relative_to(FOLDER)
    return _read(path, full.relative_to(FOLDER) if inside else Path(full.parent.name, full.name))


def _read(path: Path, place: Path) -> Substrate:
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"substrate {path}: cannot be read: {error}") from error
    try:
        docstring = ast.get_docstring(parse(source)) or ""
    except (SyntaxError, ValueError) as error:
        raise InputError(f"substrate {path}: not valid Python: {error}") from error
    fields = dict(_FIELD.findall(docstring))
    for name in ("problem", "style"):
        if name not in fields:
            raise InputError(f"substrate {path}: the docstring has no line `{name}: ...`; add it")
    return Substrate(
        name=place.with_suffix("").as_posix(),
        problem=fields["problem"],
        backend=_backend(path, source),
        style=fields["style"],
        source=source,
        path=path,
    )


def _backend(path: Path, source: str) -> Backend:
    backend = detect_backend(source)
    if backend == "torch":
        raise InputError(f"substrate {path}: neither a CUDA nor a Triton kernel is in it")
    return backend
