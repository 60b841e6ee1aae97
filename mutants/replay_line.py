"""The command that reproduces one cell of a kill matrix, as it is printed beside kills and survivors."""

import re
import shlex
from pathlib import Path

from .coverage import DEFAULT_MATRIX

_ID = re.compile(r"[\w.-]+")


def replay_line(mutant: str, entry: str, device_class: str, matrix: Path | str) -> str:
    """`kernelward replay ...`, quoted for a shell; "" where an id is none: nobody should paste that.

    Args:
        mutant, entry: their ids.
        device_class: of the cell.
        matrix: the file.
    """
    if not all(map(_ID.fullmatch, (mutant, entry))):
        return ""
    words = ["kernelward", "replay", mutant, entry, "--device", device_class]
    if Path(matrix) != DEFAULT_MATRIX:
        words += ["--matrix", str(matrix)]
    return shlex.join(words)
