"""Folders of problem files: which problems there are and what they are called."""

import re
from pathlib import Path

from .errors import InputError

PROBLEMS_VARIABLE = "KERNELBENCH_DIR"  # names the folder that ids are looked up in by default


def problem_files(root: Path) -> dict[str, Path]:
    """Problem files below a folder by id: the path without `.py`, from the folder that holds the levels.

    Args:
        root: a KernelBench checkout (its problems live in `KernelBench/`), that folder, one level of it, or any folder.

    Raises:
        InputError: there is no such folder.
    """
    if not root.is_dir():
        raise InputError(f"no folder of problems at {root}: check --problems or {PROBLEMS_VARIABLE}")
    inner = root / "KernelBench"
    base = inner if inner.is_dir() else root
    prefix = f"{base.name}/" if re.fullmatch(r"level\d+", base.name) else ""
    files = {}
    for file in sorted(base.rglob("*.py")):
        relative = file.relative_to(base)
        if file.name.startswith((".", "__")) or any(part.startswith((".", "__")) for part in relative.parts[:-1]):
            continue
        files[prefix + relative.with_suffix("").as_posix()] = file
    return files


def id_of_file(path: Path) -> str:
    """The id of a problem that was named by its path: its level and stem, or its stem."""
    level = path.resolve().parent.name
    return f"{level}/{path.stem}" if re.fullmatch(r"level\d+", level) else path.stem


def abbreviates(wanted: str, id: str) -> bool:
    """`level1/23` stands for `level1/23_Softmax`; a bare stem stands for a file anywhere below the folder."""
    return (id.startswith(f"{wanted}_") and wanted[-1].isdigit()) or ("/" not in wanted and id.endswith(f"/{wanted}"))


def natural(id: str) -> list[tuple[int, int, str]]:
    """A sort key that puts `level1/2_X` before `level1/12_Y`."""
    return [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in re.split(r"(\d+)", id) if p]
