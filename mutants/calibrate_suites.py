"""The last phase of a calibration: choose each problem's suite from the matrix, and write it with its coverage."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..suites.entry import Entry
from ..suites.errors import InputError
from ..suites.suite import Suite, SuiteEntry, load_suite
from ..suites.validity import Measured, uncovered_regions, unguarded_outputs
from ..suites.version import version
from .coverage import select_suite, suite_record
from .coverage_cells import ProblemCells, Truth, read_problems, witnesses
from .coverage_report import OURS, SUITE_K
from .matrix import Matrix
from .matrix_schema import EntryRow

LEAST_WITNESSED = 10  # mutants below which a choice says nothing
_MOST = 6  # entries of a suite, with those that only guard what the chosen ones do not see


@dataclass(frozen=True, slots=True)
class Chosen:
    """What became of one problem.

    Attributes:
        problem: its id.
        suite: None where there is none, and then `why` says it.
        detected, witnessed: mutants, of the suite.
        before: (detected, witnessed) of the suite file that was there, as it says itself.
    """

    problem: str
    suite: Suite | None
    why: str = ""
    detected: int = 0
    witnessed: int = 0
    before: tuple[int, int] | None = None

    @property
    def change(self) -> str:
        """`new`, `same`, `better` or `worse`, by the share of witnessed mutants that the suite detects."""
        if self.before is None:
            return "new"
        old, new = self.before[0] / max(1, self.before[1]), self.detected / max(1, self.witnessed)
        return "same" if old == new else "better" if new > old else "worse"


def write_suites(
    matrix: Matrix, folder: Path, device_class: str, only: Sequence[str] = (), k: int = SUITE_K
) -> list[Chosen]:
    """Choose suites for the problems of a matrix and write those that can be chosen, one YAML file each.

    Args:
        folder: made where it is missing; files are replaced atomically.
        only: hashes of problems; () = all.
        k: entries that are chosen by what they kill.

    Raises:
        InputError: the folder cannot be written.
    """
    found = []
    for cells in read_problems(matrix, device_class):
        if not only or cells.hash in only:
            place = folder / f"{cells.name}.yaml"
            chosen = choose_suite(cells, k, _before(place))
            found.append(chosen)
            if chosen.suite is not None:
                _write(place, chosen.suite)
    return found


def choose_suite(cells: ProblemCells, k: int = SUITE_K, before: tuple[int, int] | None = None) -> Chosen:
    """A problem's suite: the k entries that detect the most, and what guards the rest of the output.

    All mutants take part; what held-out ones say is counted apart, by suites chosen without them (`coverage`).
    """
    pool = cells.columns("pool")
    if len(pool) < 2:
        return Chosen(cells.name, None, f"{len(pool)} admitted entries")
    seen = int((witnesses(cells, Truth()) == 1).sum())
    if seen < LEAST_WITNESSED:
        return Chosen(cells.name, None, f"{seen} witnessed mutants, at least {LEAST_WITNESSED} are needed")
    _, columns = select_suite(cells, k, half=False)
    columns = _guarded(cells, columns, pool)
    items, reserves = _items(cells, columns)
    record = suite_record(cells, columns)
    suite = Suite(
        problem_id=cells.name,
        problem_hash=cells.hash,
        entries=items,
        calibrated=True,
        coverage={name: dict(counts) for name, counts in record.items()},
        provenance={"made_by": f"kernelward {version()}, calibrate", "mutants": len(cells.mutants)},
        reserves=reserves,
    )
    own = record[OURS]
    return Chosen(cells.name, suite, detected=own["detected"], witnessed=own["witnessed"], before=before)


def _guarded(cells: ProblemCells, columns: Sequence[int], pool: Sequence[int]) -> list[int]:
    """The chosen entries, with the cheapest that see the regions and the trivial answers that those do not."""
    chosen = list(columns)
    for column in sorted(set(pool) - set(chosen), key=lambda c: (cells.entries[c].bytes, cells.entries[c].uid)):
        lacking = _lacking([cells.entries[c] for c in chosen])
        if not lacking or len(chosen) >= _MOST:
            break
        if _lacking([cells.entries[c] for c in (*chosen, column)]) < lacking:
            chosen.append(column)
    return chosen


def _lacking(rows: Sequence[EntryRow]) -> int:
    measured = [_measured(row) for row in rows]
    return len(uncovered_regions(measured)) + len(unguarded_outputs(measured))


def _measured(row: EntryRow) -> Measured:
    assert row.measured is not None
    return Measured.from_dict(dict(row.measured))


def _items(cells: ProblemCells, columns: Sequence[int]) -> tuple[tuple[SuiteEntry, ...], tuple[SuiteEntry, ...]]:
    """The suite's entries, and the declared-shape twins that it keeps for refusals."""
    items, reserves = [], {}
    for column in columns:
        row, at = cells.entries[column], int(cells.twins[column])
        twin = cells.entries[at] if at >= 0 and cells.entries[at].admitted else None
        if twin is not None and at not in columns:
            reserves[twin.uid] = SuiteEntry(Entry.from_dict(twin.recipe), (_measured(twin),))
        items.append(SuiteEntry(Entry.from_dict(row.recipe), (_measured(row),), None if twin is None else twin.uid))
    return tuple(items), tuple(reserves.values())


def _before(place: Path) -> tuple[int, int] | None:
    if not place.is_file():
        return None
    try:
        coverage = load_suite(place).coverage or {}
        return int(coverage[OURS]["detected"]), int(coverage[OURS]["witnessed"])
    except (InputError, KeyError, TypeError, ValueError):
        return None  # a damaged file is replaced


def _write(place: Path, suite: Suite) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = place.with_name(f".{place.name}.new")
        draft.write_text(suite.to_yaml(), encoding="utf-8")
        draft.replace(place)
    except OSError as error:
        raise InputError(f"{place}: cannot write the suite: {error.strerror or error}") from error
