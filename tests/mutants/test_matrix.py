"""The kill matrix on disk: several writers, kill -9, a full disk, and re-evaluation under another tolerance."""

import math
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelward.mutants.matrix import Grid, Matrix
from kernelward.mutants.matrix_schema import CODES, Cell, EntryRow, MatrixError, pack_errs, ratio, unpack_errs
from kernelward.suites.entry import Entry
from kernelward.suites.errors import InputError
from small_matrix import SmallMatrix

BATCH = 25

BATCHES = 100  # of one writer, again and again
WRITER = f"""
import itertools, sys
from kernelward.mutants.matrix import Matrix
from kernelward.mutants.matrix_schema import Cell

path, first, environment, entry = sys.argv[1], *map(int, sys.argv[2:])
with Matrix(path) as matrix:
    for batch in itertools.cycle(range(first, first + {BATCHES})):
        mutants = range(batch * {BATCH} + 1, batch * {BATCH} + {BATCH} + 1)
        matrix.put_cells(Cell(m, entry, environment, "plain", 1, "value", (0.5,), 0.5) for m in mutants)
        print(batch, flush=True)
"""


@pytest.fixture
def small(tmp_path: Path) -> SmallMatrix:
    return SmallMatrix(tmp_path / "m.sqlite", mutants=3, entries=2)


def put(small: SmallMatrix, mutant: int, entry: int, outcome: str = "value", **values: object) -> None:
    cell = {"variant": "plain", "seeds": 3, "errs": (0.5,), "margin": 0.5, **values}
    small.matrix.put_cells(
        [Cell(small.mutants[mutant], small.entries[entry], small.environment, outcome=outcome, **cell)]
    )


def test_adding_the_same_thing_twice_gives_the_same_id(small: SmallMatrix) -> None:
    again = SmallMatrix(small.matrix.path, mutants=3, entries=2)
    assert (again.problem, again.substrate, again.environment) == (small.problem, small.substrate, small.environment)
    assert (again.mutants, again.entries) == (small.mutants, small.entries)


def test_what_a_screen_said_survives_adding_the_mutant_again(small: SmallMatrix) -> None:
    small.matrix.set_mutant_state(small.mutants[0], "duplicate", "abc", "nvrtc")
    SmallMatrix(small.matrix.path, mutants=3)
    row = small.matrix.mutants(small.problem)[small.mutants[0]]
    assert (row.state, row.code_hash, row.how) == ("duplicate", "abc", "nvrtc")
    assert list(small.matrix.mutants(small.problem, "ready")) == small.mutants[1:]


def test_measuring_an_entry_again_replaces_what_the_gate_said(small: SmallMatrix) -> None:
    entry = Entry.make("normal")
    row = small.entry_row(entry, measured={"tolerance": [0.25]}, admitted=False, reason="powerless:zeros")
    assert small.matrix.add_entry(row) == small.entries[0]
    kept = small.matrix.entries(small.problem)[small.entries[0]]
    assert (kept.tolerance, kept.admitted, kept.reason) == ((0.25,), False, "powerless:zeros")


def test_cells_come_back_as_they_were_stored(small: SmallMatrix) -> None:
    cells = [
        Cell(small.mutants[0], small.entries[0], small.environment, "plain", 3, "value", (0.25, math.inf), 1.5, 0.25),
        Cell(small.mutants[0], small.entries[0], small.environment, "strict", 1, "crash", (), math.nan, 0.5),
        Cell(small.mutants[0], small.entries[1], small.environment, "plain", 1, "value", (math.inf,), math.inf, 0.0),
    ]
    small.matrix.put_cells(cells)
    assert repr(small.matrix.cells(small.mutants[0])) == repr(cells)
    assert small.matrix.done(small.problem) == {(c.mutant, c.entry, c.environment, c.variant) for c in cells}


def test_a_cell_over_fewer_seeds_does_not_replace_one_over_more(small: SmallMatrix) -> None:
    put(small, 0, 0, "value", seeds=3)
    put(small, 0, 0, "pass", seeds=1)
    assert [c.outcome for c in small.matrix.cells(small.mutants[0])] == ["value"]
    put(small, 0, 0, "pass", seeds=3)
    assert [c.outcome for c in small.matrix.cells(small.mutants[0])] == ["pass"]


def test_missing_cells_are_listed_in_the_order_asked(small: SmallMatrix) -> None:
    put(small, 0, 0, seeds=3)
    put(small, 1, 1, seeds=1)
    (a, b, _), (x, y) = small.mutants, small.entries
    assert small.matrix.missing([b, a], [x, y], small.environment, "plain") == [(b, x), (a, y)]
    assert small.matrix.missing([b], [x, y], small.environment, "plain", seeds=3) == [(b, x), (b, y)]
    assert small.matrix.missing([a], [x], small.environment, "strict") == [(a, x)]


def test_rows_hold_classes_ratios_and_margins_and_say_what_is_missing(small: SmallMatrix) -> None:
    put(small, 0, 1, "value", errs=(0.004,), margin=0.02)
    put(small, 1, 0, "crash", errs=(), margin=math.nan, variant="strict", seeds=1)
    grid = small.matrix.rows(small.problem)
    assert grid.classes.tolist() == [[[-1, -1], [1, -1]], [[-1, 2], [-1, -1]], [[-1, -1], [-1, -1]]]
    assert grid.ratio[0, 1, 0] == pytest.approx(4.0)
    assert grid.margin[0, 1, 0] == pytest.approx(0.02)
    assert grid.seeds[0, 1, 0] == 3
    assert int(grid.kills().sum()) == 2
    assert int(grid.kills(factor=5.0).sum()) == 1  # the crash
    assert int(grid.fails_allclose(1e-2).sum()) == 2
    assert int(grid.fails_allclose(0.03).sum()) == 1


def test_an_entry_without_a_tolerance_decides_nothing_at_ours(small: SmallMatrix) -> None:
    official = Entry.make("own", seed_policy="kernelbench")
    id = small.matrix.add_entry(small.entry_row(official, measured=None, role="protocol", admitted=False))
    small.matrix.put_cells([Cell(small.mutants[0], id, small.environment, "plain", 1, "value", (9.0,), 9.0)])
    grid = small.matrix.rows(small.problem)
    assert np.isnan(grid.ratio[0, 2, 0])
    assert not grid.kills()[0, 2, 0]
    assert grid.fails_allclose(1e-2)[0, 2, 0]


def test_refusing_a_changed_shape_is_no_kill_but_an_exception_at_the_declared_one_is(tmp_path: Path) -> None:
    small = SmallMatrix(
        tmp_path / "m.sqlite", mutants=1, entries=[Entry.make("normal", constants={"n": 33}), Entry.make()]
    )
    put(small, 0, 0, "refused", errs=(math.inf,), margin=math.inf)
    put(small, 0, 1, "refused", errs=(math.inf,), margin=math.inf)
    grid = small.matrix.rows(small.problem)
    assert grid.kills()[0, :, 0].tolist() == [False, True]
    assert grid.fails_allclose(1e-2)[0, :, 0].tolist() == [False, True]


def test_of_two_environments_the_one_named_first_wins(small: SmallMatrix) -> None:
    newer = small.matrix.add_environment({"engine": "emulator", "torch": "9"})
    put(small, 0, 0, "value", errs=(0.5,))
    small.matrix.put_cells([Cell(small.mutants[0], small.entries[0], newer, "plain", 3, "pass", (0.0,), 0.0)])
    put(small, 1, 0, "crash")
    classes = {
        "newest": small.matrix.rows(small.problem).classes[:2, 0, 0].tolist(),
        "older first": small.matrix.rows(small.problem, environments=[small.environment, newer])
        .classes[:2, 0, 0]
        .tolist(),
        "newer alone": small.matrix.rows(small.problem, environments=[newer]).classes[:2, 0, 0].tolist(),
    }
    value, crash, gone, passed = CODES["value"], CODES["crash"], -1, CODES["pass"]
    assert classes == {"newest": [passed, crash], "older first": [value, crash], "newer alone": [passed, gone]}


def test_where_nothing_can_run_strictly_plain_cells_stand_for_strict_ones(tmp_path: Path) -> None:
    small = SmallMatrix(tmp_path / "m.sqlite", environment={"engine": "gpu", "variants": ["plain"]})
    put(small, 0, 0, "value")
    grid = small.matrix.rows(small.problem)
    assert grid.classes[0, 0].tolist() == [1, 1]
    assert grid.classes[1, 0].tolist() == [-1, -1]


def test_ten_thousand_mutants_are_judged_again_in_milliseconds() -> None:
    rng = np.random.default_rng(0)
    shape = (10_000, 40, 2)
    grid = Grid(
        mutants=np.arange(shape[0]),
        entries=np.arange(shape[1]),
        classes=rng.integers(-1, 6, shape).astype(np.int8),
        ratio=rng.lognormal(size=shape).astype(np.float32),
        margin=rng.lognormal(size=shape).astype(np.float32),
        seeds=np.full(shape, 3, np.int16),
        changed=np.arange(shape[1]) % 2 == 0,
    )
    times = []
    for question in (lambda: grid.kills(2.0), lambda: grid.fails_allclose(1e-3)):
        started = time.process_time()
        question().any(axis=(1, 2)).sum()
        times.append(time.process_time() - started)
    assert max(times) < 0.5  # 20 ms each on an idle core


@given(st.lists(st.floats(min_value=0, allow_nan=False), max_size=4))
def test_errors_survive_their_text_to_six_digits(errs: list[float]) -> None:
    assert unpack_errs(pack_errs(errs)) == pytest.approx(tuple(errs), rel=1e-5)


@pytest.mark.parametrize(
    ("errs", "tolerance", "expected"),
    [
        ((0.5, 0.1), (1.0, 0.05), 2.0),
        ((0.0,), (0.0,), 0.0),
        ((1e-9,), (0.0,), math.inf),
        ((math.inf,), (1.0, 1.0), math.inf),
        ((), (1.0,), math.nan),
    ],
)
def test_the_ratio_is_that_of_the_worst_output(errs: tuple, tolerance: tuple, expected: float) -> None:
    assert ratio(errs, tolerance) == pytest.approx(expected, nan_ok=True)


def test_errors_of_another_number_of_outputs_are_not_compared() -> None:
    with pytest.raises(ValueError, match="1 errors, but 2 tolerances"):
        ratio((0.5,), (1.0, 1.0))


# writers that share a file, and writers that are killed


def writer(matrix: Matrix, first: int, small: SmallMatrix) -> subprocess.Popen:
    arguments = [str(matrix.path), str(first), str(small.environment), str(small.entries[0])]
    return subprocess.Popen([sys.executable, "-c", WRITER, *arguments], stdout=subprocess.PIPE, text=True)


def test_writers_killed_at_any_moment_lose_no_committed_cell_and_tear_none(tmp_path: Path) -> None:
    small = SmallMatrix(tmp_path / "m.sqlite", mutants=3 * BATCHES * BATCH)
    written: set[int] = set()
    for patience in (0.05, 0.25):
        children = [writer(small.matrix, BATCHES * i, small) for i in range(3)]
        for child in children:  # all are writing
            assert child.stdout is not None
            written.add(int(child.stdout.readline()))
        time.sleep(patience)
        for child in children:
            os.kill(child.pid, signal.SIGKILL)
        for child in children:
            assert child.stdout is not None
            written |= {int(line) for line in child.stdout.read().split("\n") if line}
            child.wait()
            child.stdout.close()
    with Matrix(small.matrix.path) as matrix:
        assert matrix.query("PRAGMA integrity_check") == [("ok",)]
        batches = dict(matrix.query(f"SELECT (mutant - 1) / {BATCH}, count(*) FROM cells GROUP BY 1"))
        assert set(batches.values()) == {BATCH}
        assert written <= set(batches)
        assert len(written) > 6
        matrix.put_cells([Cell(small.mutants[-1], small.entries[0], small.environment, "plain", 1, "pass", (0.0,))])


def test_several_processes_may_make_the_file_at_the_same_time(tmp_path: Path) -> None:
    code = "import sys; from kernelward.mutants.matrix import Matrix; print(Matrix(sys.argv[1]).add_problem('p', 'h'))"
    path = str(tmp_path / "m.sqlite")
    children = [subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE) for _ in range(4)]
    assert [child.communicate()[0] for child in children] == [b"1\n"] * 4


def test_a_full_disk_is_said_and_costs_nothing_that_was_committed(small: SmallMatrix) -> None:
    put(small, 0, 0)
    (pages,) = small.matrix.query("PRAGMA page_count")[0]
    small.matrix.query(f"PRAGMA max_page_count = {pages + 2}")
    rows = [EntryRow(small.problem, f"entry-{i}", "cpu", {"generator": "own", "why": "x" * 200}) for i in range(200)]
    with pytest.raises(MatrixError, match=r"the disk is full\. What was committed is kept"):
        small.matrix.add_entries(rows)
    assert len(small.matrix.entries(small.problem)) == 2
    put(small, 1, 0)
    assert len(small.matrix.done(small.problem)) == 2


def test_a_disk_that_refuses_to_write_is_said(small: SmallMatrix) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    wal = small.matrix.path.with_name(small.matrix.path.name + "-wal")
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (wal.stat().st_size, hard))
        with pytest.raises(MatrixError, match="disk"):
            small.matrix.add_entries([EntryRow(small.problem, "e", "cpu", {"generator": "own", "why": "x" * 99_999})])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(small.matrix.entries(small.problem)) == 2


def test_a_lock_that_is_held_too_long_is_said(small: SmallMatrix) -> None:
    other = sqlite3.connect(small.matrix.path)
    other.execute("BEGIN IMMEDIATE")
    small.matrix.query("PRAGMA busy_timeout = 10")
    with pytest.raises(MatrixError, match="another process held it"):
        put(small, 0, 0)
    other.rollback()
    put(small, 0, 0)
    other.close()


# files that are something else


def test_another_schema_version_is_refused_by_name(small: SmallMatrix) -> None:
    small.matrix.query("PRAGMA user_version = 99")
    small.matrix.close()
    with pytest.raises(InputError, match="a kill matrix of schema 99, this version reads schema 1"):
        Matrix(small.matrix.path)


def test_a_missing_matrix_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="make one with `kernelward calibrate`"):
        Matrix(tmp_path / "none.sqlite", create=False)
    assert not (tmp_path / "none.sqlite").exists()


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    text, database = tmp_path / "notes.txt", tmp_path / "other.sqlite"
    text.write_text("not a database " * 100)
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE mine (x)")
    before = text.read_bytes(), database.read_bytes()
    for path in (text, database):
        with pytest.raises(InputError, match="not a kill matrix; nothing was changed"):
            Matrix(path)
    assert (text.read_bytes(), database.read_bytes()) == before


def test_a_snapshot_is_of_one_moment_whatever_others_write(small: SmallMatrix) -> None:
    with Matrix(small.matrix.path) as other:
        with small.matrix.snapshot():
            before = small.matrix.problems()
            other.add_problem("later", "hash of later")
            assert small.matrix.problems() == before
        assert len(small.matrix.problems()) == len(before) + 1
        with pytest.raises(KeyError), small.matrix.snapshot():
            raise KeyError
        small.matrix.add_problem("after a failure", "hash")  # the snapshot has ended


def test_a_failed_batch_leaves_nothing_behind(small: SmallMatrix) -> None:
    good = Cell(small.mutants[0], small.entries[0], small.environment, "plain", 1, "pass", (0.0,))
    bad = Cell(10**9, small.entries[0], small.environment, "plain", 1, "pass", (0.0,))
    with pytest.raises(sqlite3.IntegrityError):
        small.matrix.put_cells([good, bad])
    assert small.matrix.done(small.problem) == set()
