"""Calls a checker that is a Python function: `python -m kernelward.mutants.foreign_call MODULE:FUNCTION A.py B.py`.

The function is called with the sources of problem (A) and candidate (B), or with their paths where the name of its
first parameter ends in `path`. It returns True (passes), False (fails) or None (no verdict). The exit code says which.
"""

import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

CODES: dict[bool | None, int] = {True: 0, False: 1, None: 3}
RAISED = 4
"""Exit code where the function raised, or returned anything else; the traceback says why."""


def call(target: str, problem: Path, candidate: Path) -> bool | None:
    """What the function says.

    Raises:
        TypeError: it returned something else.
    """
    module, _, name = target.partition(":")
    function: Any = importlib.import_module(module)
    for part in name.split("."):
        function = getattr(function, part)
    first = next(iter(inspect.signature(function).parameters), "")
    paths = (problem, candidate)
    said = function(*(paths if first.endswith("path") else (path.read_text("utf-8") for path in paths)))
    if said is None or isinstance(said, bool):
        return said
    raise TypeError(f"{target} returned {said!r}; it has to return True, False or None")


def main() -> None:
    """One call; `SystemExit` from within is no answer either."""
    target, problem, candidate = sys.argv[1:]
    try:
        code = CODES[call(target, Path(problem), Path(candidate))]
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = RAISED
    sys.exit(code)


if __name__ == "__main__":
    main()
