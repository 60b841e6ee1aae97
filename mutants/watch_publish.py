"""What a watcher publishes: how much of the faults the suites in use notice now, and how much of that is up to date.

`OUT/coverage.json` is replaced as a whole, `OUT/history.jsonl` gets one line a pass. A count is {`detected`,
`witnessed`, `unknown`, `share` (null of nothing), `low`, `high`}: mutants that the suite in use detects, of those that
some entry shows wrong; those whose cells are still missing are unknown and in neither; the 95 % interval.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..suites.protocol import load_protocol
from .coverage import OFFICIAL_PROTOCOLS
from .coverage_cells import Fates, ProblemCells, Truth, cell_fates, protocol_fates, read_problems, together, witnesses
from .coverage_report import Share
from .matrix import Grid, Matrix
from .matrix_schema import Origin
from .mutant import FAMILIES
from .watch_files import replace_file
from .watch_suites import InUse

FORMAT = 1
Plain = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Counted:
    """Counts of one origin of mutants.

    Attributes:
        overall: all families and problems.
        families, problems, official: by family, by problem, and by official protocol.
    """

    overall: Plain
    families: Mapping[str, Plain]
    problems: Mapping[str, Plain]
    official: Mapping[str, Plain]


def count(
    matrix: Matrix, device_class: str, suites: Mapping[str, InUse], problems: Iterable[str], origin: Origin
) -> Counted | None:
    """Count the mutants of some problems against the suites in use.

    Args:
        suites: by hash of the problem; without one, a problem's mutants are unknown.
        problems: hashes; what else the matrix holds is left out.

    Returns:
        None where there is no mutant.
    """
    wanted = set(problems)
    found = [cells for cells in read_problems(matrix, device_class, origin) if cells.hash in wanted and cells.mutants]
    if not found:
        return None
    seen = _joined(found, lambda cells: witnesses(cells, Truth())) == 1
    fates = _joined(found, lambda cells: suite_fates(matrix, cells, suites.get(cells.hash), device_class))
    families = np.array([m.family for cells in found for m in cells.mutants])
    names = np.array([cells.name for cells in found for _ in cells.mutants])
    official = {
        name: _share(_joined(found, partial(protocol_fates, spec=load_protocol(name))), seen)
        for name in OFFICIAL_PROTOCOLS
    }
    there = [family for family in FAMILIES if (families == family).any()]
    return Counted(
        _share(fates, seen),
        {family: _share(fates, seen & (families == family)) for family in there},
        {str(name): _share(fates, seen & (names == name)) for name in np.unique(names)},
        official,
    )


def _joined(problems: Sequence[ProblemCells], ask: Callable[[ProblemCells], Fates]) -> Fates:
    return np.concatenate([ask(cells) for cells in problems])


def _share(fates: Fates, counted: NDArray[np.bool_]) -> Plain:
    kept = fates[counted]
    share = Share(int((kept == 1).sum()), int((kept >= 0).sum()), int((kept < 0).sum()))
    plain = share.to_dict()
    return {
        "detected": share.detected,
        "witnessed": share.of,
        **{name: plain[name] for name in ("unknown", "share", "low", "high")},
    }


def suite_fates(matrix: Matrix, cells: ProblemCells, used: InUse | None, device_class: str) -> Fates:
    """What a suite says of each mutant, by the entries and the tolerances that it states.

    An entry that the gate refused was never put to a mutant and is left out; one whose cells are not there yet leaves a
    mutant unknown that no other entry detects.
    """
    if used is None:
        return np.full(len(cells.mutants), -1, np.int8)
    bounds: dict[int, Sequence[float]] = {}
    columns: list[int] = []
    unasked = 0
    ids = cells.grid.entries
    for item in (*used.suite.entries, *used.suite.reserves):
        column = cells.by_uid(item.entry.id)
        measured = item.for_device(device_class)
        if column >= 0 and measured is not None:
            bounds[int(ids[column])] = measured.tolerance
        if item in used.suite.entries:
            unasked += column < 0
            if column >= 0 and cells.entries[column].admitted:
                columns.append(column)
    own = {int(id): row.tolerance for id, row in zip(ids, cells.entries, strict=True)}
    if any(tuple(bound) != own[id] for id, bound in bounds.items()):
        whole = matrix.rows(cells.id, device_class=device_class, tolerances=bounds)
        cells = replace(cells, grid=_of_mutants(whole, cells.grid.mutants))
    fates = cell_fates(cells, Truth())[:, columns]
    lacking = np.full((len(cells.mutants), unasked), -1, np.int8)
    return together(np.concatenate([fates, lacking], axis=1))


def _of_mutants(grid: Grid, mutants: NDArray[np.int64]) -> Grid:
    at = np.searchsorted(grid.mutants, mutants)
    return replace(
        grid,
        mutants=grid.mutants[at],
        classes=grid.classes[at],
        ratio=grid.ratio[at],
        margin=grid.margin[at],
        seeds=grid.seeds[at],
    )


def refused_entries(matrix: Matrix, suites: Mapping[str, InUse], device_class: str) -> list[str]:
    """Entries of suites in use that the gate does not admit, and why: they are left out of what is published."""
    notes = []
    for id, (name, digest) in matrix.problems().items():
        if digest in suites:
            rows = {row.uid: row for row in matrix.entries(id, device_class=device_class).values()}
            for item in suites[digest].suite.entries:
                row = rows.get(item.entry.id)
                if row is not None and not row.admitted:
                    notes.append(f"{name}: entry {item.entry.id} of its suite may not judge: {row.reason}")
    return notes


def publish(out: Path, coverage: Plain) -> None:
    """Replace `coverage.json`.

    Raises:
        OSError: it cannot be written; the old one is as it was.
    """
    replace_file(out / "coverage.json", json.dumps({"format": FORMAT, **coverage}, indent=1) + "\n")


def append_history(out: Path, coverage: Plain) -> None:
    """Add a pass to `history.jsonl`: what is published, without the parts by problem and by official protocol.

    Raises:
        OSError: it cannot be written.
    """
    line = json.dumps({k: v for k, v in coverage.items() if k not in ("problems", "official")}) + "\n"
    place = out / "history.jsonl"
    with place.open("ab") as file:
        torn = file.tell() and _last_byte(place) != b"\n"  # a disk that was full, or a process that was killed
        file.write((b"\n" if torn else b"") + line.encode())


def _last_byte(place: Path) -> bytes:
    with place.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1)


def read_coverage(out: Path) -> Plain:
    """What was published last; {} where nothing was, or by another version."""
    try:
        found = json.loads((out / "coverage.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and found.get("format") == FORMAT else {}
