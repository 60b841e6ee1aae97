"""Deltas of a kill matrix: between machines, in any order, any number of times, and never half."""

import json
import lzma
import math
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from kernelward.mutants.cli import app
from kernelward.mutants.matrix import Matrix
from kernelward.mutants.matrix_delta import open_measured
from kernelward.mutants.matrix_schema import OUTCOMES, VARIANTS, Cell, MatrixError
from kernelward.suites.errors import InputError
from small_matrix import SmallMatrix
from typer.testing import CliRunner


def fill(
    small: SmallMatrix, *, variant: str = "plain", seeds: int = 3, outcome: str = "value", err: float = 0.5
) -> None:
    small.matrix.put_cells(
        Cell(m, e, small.environment, variant, seeds, outcome, (err, math.inf), err, 0.25)  # type: ignore[arg-type]
        for m in small.mutants
        for e in small.entries
    )


def other_ids(path: Path) -> SmallMatrix:
    """A matrix in which another problem took the first row ids."""
    return SmallMatrix(path, problem="another", mutants=5, entries=3)


def test_a_delta_arrives_whole_where_the_row_ids_are_others(tmp_path: Path) -> None:
    small = SmallMatrix(tmp_path / "a.sqlite")
    fill(small)
    fill(small, variant="strict", seeds=1, outcome="race")
    assert small.matrix.export_delta(tmp_path / "a.delta") == 12
    there = other_ids(tmp_path / "b.sqlite").matrix
    report = there.import_delta(tmp_path / "a.delta")
    assert (report.added, report.replaced, report.unchanged, report.conflicts) == (12, 0, 0, 0)
    (problem,) = (id for id, (name, _) in there.problems().items() if name == "softmax")
    assert problem != small.problem
    ours, theirs = small.matrix.rows(small.problem), there.rows(problem)
    for name in ("classes", "ratio", "margin", "seeds"):
        assert getattr(ours, name).tobytes() == getattr(theirs, name).tobytes()
    assert [m.uid for m in there.mutants(problem).values()] == [m.uid for m in small.matrix.mutants().values()]


def test_a_delta_is_read_like_a_matrix_and_leaves_nothing_behind(tmp_path: Path) -> None:
    small = SmallMatrix(tmp_path / "a.sqlite")
    fill(small, variant="strict")
    delta = tmp_path / "a.delta"
    small.matrix.export_delta(delta)
    with open_measured(tmp_path / "a.sqlite") as matrix, open_measured(delta) as same:
        assert same.path == delta
        assert same.rows(small.problem).classes.tobytes() == matrix.rows(small.problem).classes.tobytes()
        where = Path(same.query("PRAGMA database_list")[0][2])
        assert where.is_file()
    assert not where.parent.exists()
    for kind, of_it in (("delta", delta), ("sqlite", tmp_path / "a.sqlite")):
        shown = CliRunner().invoke(app, ["coverage", "--matrix", str(of_it), "--json"])
        assert shown.exit_code == 0, kind
        assert json.loads(shown.stdout)["matrix"] == str(of_it)


def test_a_delta_that_measured_the_same_twice_does_not_say_what_is_newer(tmp_path: Path) -> None:
    small = SmallMatrix(tmp_path / "a.sqlite")
    fill(small, variant="strict")
    newer = small.matrix.add_environment({"kernelward": "newer"})
    (mutant, *_), (entry, *_) = small.mutants, small.entries
    small.matrix.put_cells([Cell(mutant, entry, newer, "strict", 3, "pass", (0.0, 0.0), 0.0, 0.25)])
    small.matrix.export_delta(tmp_path / "a.delta")
    with pytest.raises(InputError, match="does not say which are newer"), open_measured(tmp_path / "a.delta"):
        pass


def test_what_is_neither_a_matrix_nor_a_delta_is_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no such thing")
    with pytest.raises(InputError, match=r"text: not a kill matrix"), open_measured(tmp_path / "text"):
        pass
    with pytest.raises(InputError, match=r"no kill matrix at .*nothing"), open_measured(tmp_path / "nothing"):
        pass
    assert sorted(p.name for p in tmp_path.iterdir()) == ["text"]


def test_the_same_content_gives_the_same_bytes_in_whatever_order_it_came(tmp_path: Path) -> None:
    one, two = SmallMatrix(tmp_path / "a.sqlite"), other_ids(tmp_path / "b.sqlite")
    fill(one)
    fill(two)
    for matrix, name in ((one.matrix, "a"), (two.matrix, "b")):
        matrix.export_delta(tmp_path / f"{name}.delta")
    for first, second in ("ab", "ba"):
        with Matrix(tmp_path / f"{first}{second}.sqlite") as both:
            both.import_delta(tmp_path / f"{first}.delta")
            both.import_delta(tmp_path / f"{second}.delta")
            both.export_delta(tmp_path / f"{first}{second}.delta")
    assert (tmp_path / "ab.delta").read_bytes() == (tmp_path / "ba.delta").read_bytes()


def test_importing_twice_changes_nothing(tmp_path: Path) -> None:
    small = SmallMatrix(tmp_path / "a.sqlite")
    fill(small)
    small.matrix.export_delta(tmp_path / "a.delta")
    again = small.matrix.import_delta(tmp_path / "a.delta")
    assert (again.added, again.replaced, again.unchanged, again.conflicts) == (0, 0, 6, 0)


def test_since_leaves_out_what_an_earlier_delta_holds(tmp_path: Path) -> None:
    small = SmallMatrix(tmp_path / "a.sqlite", mutants=200)
    fill(small)
    small.matrix.export_delta(tmp_path / "first.delta")
    assert small.matrix.export_delta(tmp_path / "none.delta", since=tmp_path / "first.delta") == 0
    fill(SmallMatrix(tmp_path / "a.sqlite", mutants=2), variant="strict")
    small.matrix.set_mutant_state(small.mutants[100], "duplicate", "abc", "nvrtc")
    assert small.matrix.export_delta(tmp_path / "second.delta", since=tmp_path / "first.delta") == 4
    with Matrix(tmp_path / "b.sqlite") as alone:
        assert alone.import_delta(tmp_path / "second.delta").added == 4
        assert sorted(m.state for m in alone.mutants().values()) == ["duplicate", "ready", "ready"]
    with Matrix(tmp_path / "c.sqlite") as both:
        both.import_delta(tmp_path / "second.delta")
        both.import_delta(tmp_path / "first.delta")
        both.export_delta(tmp_path / "both.delta")
    assert small.matrix.export_delta(tmp_path / "none.delta", since=tmp_path / "both.delta") == 0


def test_more_seeds_win_and_contradictions_are_reported(tmp_path: Path) -> None:
    ours, theirs = SmallMatrix(tmp_path / "a.sqlite"), SmallMatrix(tmp_path / "b.sqlite")
    fill(ours, seeds=1)
    fill(theirs, seeds=3)
    theirs.matrix.export_delta(tmp_path / "three.delta")
    assert ours.matrix.import_delta(tmp_path / "three.delta").replaced == 6
    fill(theirs, seeds=3, outcome="pass", err=0.0)
    theirs.matrix.set_mutant_state(theirs.mutants[0], "duplicate", "abc", "nvrtc")
    theirs.matrix.export_delta(tmp_path / "other.delta")
    report = ours.matrix.import_delta(tmp_path / "other.delta")
    assert (report.added, report.unchanged, report.conflicts) == (0, 6, 7)
    assert report.examples[0].endswith("state, code_hash, how")
    assert {c.outcome for m in ours.mutants for c in ours.matrix.cells(m)} == {"value"}


def test_what_was_screened_elsewhere_replaces_what_was_not_here(tmp_path: Path) -> None:
    ours, theirs = SmallMatrix(tmp_path / "a.sqlite"), SmallMatrix(tmp_path / "b.sqlite")
    ours.matrix.set_mutant_state(ours.mutants[0], "generated")
    ours.matrix.set_substrate_status(ours.substrate, "pending")
    theirs.matrix.export_delta(tmp_path / "b.delta")
    assert ours.matrix.import_delta(tmp_path / "b.delta").conflicts == 0
    assert ours.matrix.mutants()[ours.mutants[0]].state == "ready"
    assert ours.matrix.substrates()[ours.substrate].status == "admitted"


def contents(matrix: Matrix) -> dict[tuple[str, str, str], str]:
    """Cells by uids."""
    mutants, entries = matrix.mutants(), matrix.entries()
    return {
        (mutant.uid, entries[c.entry].uid, c.variant): repr((c.seeds, c.outcome, c.errs, c.margin))
        for id, mutant in mutants.items()
        for c in matrix.cells(id)
    }


@settings(
    max_examples=8,
    phases=[Phase.explicit, Phase.generate],
    deadline=None,
)
@given(
    st.dictionaries(
        st.tuples(st.integers(0, 4), st.integers(0, 2), st.sampled_from(VARIANTS)),
        st.tuples(
            st.integers(1, 3),
            st.sampled_from(OUTCOMES),
            st.lists(st.floats(0, allow_nan=False), max_size=3),
            st.floats(0),
        ),
    )
)
def test_every_cell_survives_the_journey(tmp_path_factory: pytest.TempPathFactory, cells: dict) -> None:
    folder = tmp_path_factory.mktemp("journey")
    small = SmallMatrix(folder / "a.sqlite", mutants=5, entries=3)
    small.matrix.put_cells(
        Cell(small.mutants[m], small.entries[e], small.environment, variant, seeds, outcome, tuple(errs), margin)
        for (m, e, variant), (seeds, outcome, errs, margin) in cells.items()
    )
    assert small.matrix.export_delta(folder / "a.delta") == len(cells)
    there = other_ids(folder / "b.sqlite")
    there.matrix.import_delta(folder / "a.delta")
    assert contents(small.matrix) == contents(there.matrix)
    small.matrix.close()
    there.matrix.close()


def spoiled(path: Path, change: str) -> None:
    data = path.read_bytes()
    if change == "cut short":
        path.write_bytes(data[: len(data) // 2])
    elif change == "a line missing":
        lines = lzma.decompress(data).splitlines(keepends=True)
        path.write_bytes(lzma.compress(b"".join(lines[:3] + lines[4:])))
    elif change == "another version":
        lines = lzma.decompress(data).splitlines(keepends=True)
        header = json.dumps({**json.loads(lines[0]), "version": 99}).encode() + b"\n"
        path.write_bytes(lzma.compress(b"".join([header, *lines[1:]])))
    else:
        path.write_text("hello")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("cut short", "not a delta of a kill matrix, or cut short"),
        ("a line missing", "its checksum does not fit"),
        ("another version", "written for schema 99, this version reads schema 1"),
        ("another file", "not a delta of a kill matrix"),
    ],
)
def test_a_spoiled_delta_is_refused_and_changes_nothing(tmp_path: Path, change: str, message: str) -> None:
    small = SmallMatrix(tmp_path / "a.sqlite")
    fill(small)
    small.matrix.export_delta(tmp_path / "a.delta")
    spoiled(tmp_path / "a.delta", change)
    with Matrix(tmp_path / "b.sqlite") as there:
        with pytest.raises(InputError, match=message):
            there.import_delta(tmp_path / "a.delta")
        assert there.problems() == {}


def test_an_export_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = SmallMatrix(tmp_path / "a.sqlite")
    small.matrix.export_delta(tmp_path / "a.delta")
    before = (tmp_path / "a.delta").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(MatrixError, match="No space left on device"):
        small.matrix.export_delta(tmp_path / "a.delta")
    assert (tmp_path / "a.delta").read_bytes() == before
    assert [p.name for p in tmp_path.glob(".a.delta*")] == []


def test_ten_thousand_cells_take_a_hundred_kilobytes(tmp_path: Path) -> None:
    small = SmallMatrix(tmp_path / "a.sqlite", mutants=500, entries=10)
    cells = []
    for i, mutant in enumerate(small.mutants):
        for j, entry in enumerate(small.entries):
            err = 10.0 ** -((i * 7919 + j * 104729) % 1000 / 150) if (i + j) % 3 else 0.0
            kind = "value" if err else "pass"
            for variant in VARIANTS:
                cells.append(Cell(mutant, entry, small.environment, variant, 3, kind, (err,), err * 1.37, err / 9))
    small.matrix.put_cells(cells)
    assert small.matrix.export_delta(tmp_path / "a.delta") == 10_000
    assert (tmp_path / "a.delta").stat().st_size < 130_000
