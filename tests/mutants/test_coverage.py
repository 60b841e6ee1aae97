"""Coverage: what counts as detected, witnessed and unknown, and what the command prints and returns."""

import json
import math
from pathlib import Path

import pytest
from kernelward.mutants.coverage import CoverageOptions, measure, run_coverage, select_suite, suite_record
from kernelward.mutants.coverage_cells import (
    Close,
    Truth,
    cell_fates,
    read_problems,
    together,
    under_refusal,
    witnesses,
)
from kernelward.mutants.coverage_report import Share
from kernelward.mutants.coverage_table import bounds
from kernelward.mutants.matrix_schema import VARIANTS, Cell
from kernelward.suites.entry import Entry
from kernelward.suites.errors import InputError
from kernelward.suites.protocol import load_protocol
from small_matrix import SmallMatrix

RAGGED, DECLARED, SPIKY = Entry.make("normal", constants={"n": 33}), Entry.make("normal"), Entry.make("spiky")
WRONG, RIGHT = 1.0, 0.0  # err = margin; the tolerance is 1e-3


class Measured(SmallMatrix):
    """Three pool entries and KernelBench's five, with helpers to say what each mutant does on them."""

    def __init__(self, path: Path, mutants: int | list[tuple[str, str, str]] = 3, problem: str = "softmax") -> None:
        super().__init__(path, mutants=mutants, entries=[RAGGED, DECLARED, SPIKY], problem=problem)
        spec = load_protocol("kernelbench")
        assert spec.entries != "suite"
        rows = [self.entry_row(e, role="protocol", admitted=False, measured=None) for e in spec.entries]
        self.official = self.matrix.add_entries(rows)

    def shows(self, mutant: int, *errs: float | str, variants: tuple[str, ...] = VARIANTS, seeds: int = 3) -> None:
        """What a mutant does on the pool entries: an error, or a class."""
        self._put(mutant, self.entries, errs, variants, seeds)

    def official_shows(self, mutant: int, *errs: float | str) -> None:
        """The same for the five official draws (which need no seeds)."""
        self._put(mutant, self.official, errs, ("plain",), 1)

    def _put(self, mutant: int, entries: list[int], errs: tuple, variants: tuple[str, ...], seeds: int) -> None:
        for entry, err in zip(entries, errs, strict=False):
            for variant in variants:
                if isinstance(err, str):
                    cell = (err, (math.inf,), math.inf)
                else:
                    cell = ("value" if err else "pass", (err,), err)
                where = (self.mutants[mutant], entry, self.environment, variant, seeds)
                self.matrix.put_cells([Cell(*where, *cell)])  # type: ignore[arg-type]

    @property
    def cells(self):
        """The problem, ready to be counted."""
        return next(c for c in read_problems(self.matrix, "cpu") if c.id == self.problem)


@pytest.fixture
def measured(tmp_path: Path) -> Measured:
    return Measured(tmp_path / "m.sqlite")


def test_a_mutant_is_witnessed_by_three_seeds_and_open_while_cells_are_missing(measured: Measured) -> None:
    measured.shows(0, RIGHT, RIGHT, WRONG)
    measured.shows(1, RIGHT, RIGHT, WRONG, seeds=1)
    measured.shows(2, RIGHT, RIGHT, RIGHT)
    assert witnesses(measured.cells, Truth()).tolist() == [1, -1, 0]
    measured.shows(1, RIGHT, RIGHT, WRONG)
    assert witnesses(measured.cells, Truth()).tolist() == [1, 1, 0]


def test_an_entry_that_is_not_admitted_witnesses_nothing(measured: Measured) -> None:
    measured.shows(0, RIGHT, RIGHT, WRONG)
    measured.matrix.add_entry(measured.entry_row(SPIKY, admitted=False, reason="above-cap"))
    assert witnesses(measured.cells, Truth())[0] == 0


def test_both_denominators_stand_beside_each_other(measured: Measured) -> None:
    measured.shows(0, WRONG, WRONG, WRONG)
    measured.shows(1, 5e-3, RIGHT, RIGHT)  # beyond our tolerance, within 1e-2
    measured.shows(2, RIGHT, RIGHT, RIGHT)
    report = measure(measured.matrix)
    assert report.witnessed["ours"] == {"yes": 2, "no": 1, "undecided": 0}
    assert report.witnessed["official"] == {"yes": 1, "no": 2, "undecided": 0}


def test_a_missing_official_draw_leaves_a_mutant_unknown_unless_another_shows_it(measured: Measured) -> None:
    for mutant in range(3):
        measured.shows(mutant, WRONG, WRONG, WRONG)
    measured.official_shows(0, RIGHT, WRONG)
    measured.official_shows(1, RIGHT, RIGHT, RIGHT, RIGHT)
    measured.official_shows(2, RIGHT, RIGHT, RIGHT, RIGHT, RIGHT)
    share = measure(measured.matrix, protocols=["kernelbench"]).get("kernelbench").ours
    assert (share.detected, share.of, share.unknown) == (1, 2, 1)
    assert share.at_least == pytest.approx(1 / 3)


def test_an_official_check_sees_crashes_but_not_errors_within_its_tolerance(measured: Measured) -> None:
    for mutant in range(3):
        measured.shows(mutant, WRONG, WRONG, WRONG)
    measured.official_shows(0, RIGHT, RIGHT, "crash", RIGHT, RIGHT)
    measured.official_shows(1, *[5e-3] * 5)
    measured.official_shows(2, *[5e-5] * 5)
    report = measure(measured.matrix)
    assert [report.get(name).ours.detected for name in ("kernelbench", "kernelbench-head")] == [1, 2]


def test_what_fails_plainly_fails_strictly_but_not_the_reverse(measured: Measured) -> None:
    measured.shows(0, WRONG, variants=("plain",))
    measured.shows(1, RIGHT, variants=("plain",))
    measured.shows(2, "race", variants=("strict",))
    fates = cell_fates(measured.cells, Truth())[:, 0].tolist()
    assert fates == [1, -1, 1]
    assert cell_fates(measured.cells, Truth(), "plain")[:, 0].tolist() == [1, 0, -1]


def test_a_refused_shape_abstains_and_its_twin_counts(measured: Measured) -> None:
    measured.shows(0, "refused", WRONG)
    measured.shows(1, "refused", RIGHT)
    measured.shows(2, "refused")
    assert cell_fates(measured.cells, Truth())[:, 0].tolist() == [1, 0, -1]


def test_refusing_every_changed_shape_buys_nothing_where_the_twin_sees_it(measured: Measured) -> None:
    measured.shows(0, WRONG, WRONG)
    measured.shows(1, WRONG, RIGHT)
    measured.shows(2, WRONG)
    cells = measured.cells
    fates = cell_fates(cells, Truth())
    assert together(fates[:, [0]]).tolist() == [1, 1, 1]
    assert under_refusal(cells, fates, [0]).tolist() == [1, 0, -1]  # of the last one's twin nothing is known


def test_where_a_dense_entry_of_a_shape_ends_a_mutant_the_others_that_were_not_asked_count_as_well(
    measured: Measured,
) -> None:
    measured.shows(0, RIGHT, "crash")
    measured.shows(1, "crash", RIGHT)
    measured.shows(2, RIGHT, WRONG)
    for comparison in (Truth(), Close(1e-2)):
        fates = cell_fates(measured.cells, comparison)
        # ragged, declared, and spiky at the declared shape
        assert fates[:, :3].tolist() == [[0, 1, 1], [1, 0, -1], [0, 1, -1]]
    measured.shows(0, RIGHT, "crash", RIGHT)
    assert cell_fates(measured.cells, Truth())[0, :3].tolist() == [0, 1, 0]


def test_where_one_entry_of_a_shape_does_not_end_it_nothing_is_taken_to_be_so(measured: Measured) -> None:
    ramp = measured.matrix.add_entry(measured.entry_row(Entry.make("ramp")))
    measured.shows(0, RIGHT, "crash", RIGHT)
    measured.shows(1, RIGHT, "crash")
    cells = measured.cells
    column = [i for i, entry in enumerate(cells.entries) if entry.uid == Entry.make("ramp").id]
    assert ramp
    assert cell_fates(cells, Truth())[:2, column].tolist() == [[-1], [1]]


def test_of_a_mutant_that_crashed_in_one_draw_only_nothing_is_taken_to_be_so(measured: Measured) -> None:
    measured.shows(0, RIGHT, "crash", seeds=1)
    measured.shows(1, "crash")
    measured.shows(1, RIGHT, "crash", seeds=1)  # the ragged one crashed in all draws: it keeps more seeds
    measured.shows(2, "hang")
    measured.shows(2, "hang", "crash", seeds=1)
    fates = cell_fates(measured.cells, Truth())
    assert fates[:, :3].tolist() == [[0, 1, -1], [1, 1, 1], [1, 1, 1]]


def test_mutants_that_do_not_count_are_in_no_denominator(measured: Measured) -> None:
    for mutant in range(3):
        measured.shows(mutant, WRONG, WRONG, WRONG)
    measured.matrix.set_mutant_state(measured.mutants[0], "equivalent", "h", "nvrtc")
    assert measure(measured.matrix).witnessed["ours"]["yes"] == 2
    measured.matrix.set_substrate_status(measured.substrate, "quarantined", "disagrees with all others")
    with pytest.raises(InputError, match="no mutants on cpu yet"):
        measure(measured.matrix)


def test_a_mutant_counts_by_the_way_it_shows(measured: Measured) -> None:
    measured.shows(0, "crash", "crash", WRONG)
    measured.shows(1, "crash", "hang", RIGHT)
    measured.shows(2, RIGHT, RIGHT, RIGHT)
    measured.shows(2, "race", variants=("strict",))
    assert dict(measure(measured.matrix).classes) == {"value": 1, "hang": 1, "race": 1}


def filled(path: Path, problem: str = "softmax") -> Measured:
    """Forty mutants: a quarter each shown by the ragged, the spiky, both dense ones, and by the official check too."""
    kinds = [(f"op{i % 5}", ("arithmetic", "precision")[i % 2], f"{problem} site {i}") for i in range(40)]
    measured = Measured(path, mutants=kinds, problem=problem)
    for i in range(40):
        measured.shows(i, *[(WRONG, RIGHT, RIGHT), (RIGHT, RIGHT, WRONG), (WRONG, WRONG, RIGHT), (WRONG,) * 3][i % 4])
        measured.official_shows(i, *[WRONG if i % 4 == 3 else RIGHT] * 5)
    return measured


def test_suites_are_chosen_on_one_half_dense_first_and_scored_on_the_other(tmp_path: Path) -> None:
    measured = filled(tmp_path / "m.sqlite")
    _, columns = select_suite(measured.cells, 2)
    assert [measured.cells.entries[c].uid for c in columns] == [RAGGED.id, SPIKY.id]
    report = measure(measured.matrix)
    one, two = report.get("kernelward@1"), report.get("kernelward@2")
    assert (one.ours.detected, two.ours.detected, two.ours.of) == (30, 40, 40)
    assert two.selected is not None
    assert two.held_out is not None
    assert two.selected.of + two.held_out.of == 40
    assert report.suites["softmax"][2] == (RAGGED.id, SPIKY.id)
    assert report.get("kernelbench").ours.detected == 10
    record = suite_record(measured.cells, columns)
    assert record["kernelward"] == {"detected": 40, "witnessed": 40}
    assert record["kernelbench"] == {"detected": 10, "witnessed": 40}


def test_groups_and_resampled_problems(tmp_path: Path) -> None:
    filled(tmp_path / "m.sqlite")
    both = filled(tmp_path / "m.sqlite", problem="layernorm")
    report = measure(both.matrix, by="problem")
    line = report.get("kernelbench")
    assert {label: share.of for label, share in line.groups.items()} == {"softmax": 40, "layernorm": 40}
    assert line.bootstrap == (0.25, 0.25)
    families = measure(both.matrix, by="family").get("kernelbench").groups
    assert (families["arithmetic"].detected, families["precision"].detected) == (0, 20)
    assert line.balanced == pytest.approx(0.25)


def test_inputs_and_tolerance_are_told_apart(measured: Measured) -> None:
    for mutant, err in enumerate((5e-3, WRONG, WRONG)):
        measured.shows(mutant, err, err, err)
        measured.official_shows(mutant, *[RIGHT if mutant < 2 else WRONG] * 5)
    effects = {(e.inputs, e.tolerance, e.engine): e.share for e in measure(measured.matrix).effects}
    assert effects["official", "official", "plain"].detected == 1
    assert effects["ours", "official", "plain"].detected == 2
    assert effects["ours", "ours", "plain"].detected == 3
    assert effects["official", "official", "strict"].unknown == 2


def test_intervals_are_exact_for_few_and_wilson_for_many() -> None:
    assert Share(10, 10).interval == pytest.approx((0.6915, 1.0), abs=1e-4)
    assert Share(100, 100).interval == pytest.approx((0.9630, 1.0), abs=1e-4)
    assert Share(0, 0).interval == (0.0, 1.0)


def test_where_many_mutants_are_unknown_a_share_of_the_others_is_not_printed() -> None:
    assert bounds(Share(60, 100, 4)) == "60.00 % (50.2-69.1)"
    assert bounds(Share(60, 60, 40)) == "60.0 to 100.0 %"
    assert bounds(Share(0, 0)) == "-"


# the command


def test_the_threshold_decides_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = filled(tmp_path / "m.sqlite").matrix.path
    assert run_coverage(CoverageOptions(matrix=path, fail_under=99.0)) == 0
    assert run_coverage(CoverageOptions(matrix=path, protocols=("kernelbench",), fail_under=26.0)) == 1
    assert "kernelbench: at least 25.00 %, below 26 %" in capsys.readouterr().out
    assert run_coverage(CoverageOptions(matrix=path, protocols=("kernelbench",), fail_under=25.0)) == 0


def test_missing_cells_do_not_pass_a_threshold(measured: Measured) -> None:
    for mutant in range(3):
        measured.shows(mutant, WRONG, WRONG, WRONG)
    measured.official_shows(0, WRONG)
    options = CoverageOptions(matrix=measured.matrix.path, protocols=("kernelbench",), fail_under=90.0, as_json=True)
    assert run_coverage(options) == 1


def test_the_json_object_is_the_documented_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = filled(tmp_path / "m.sqlite").matrix.path
    run_coverage(CoverageOptions(matrix=path, protocols=("kernelbench", "kernelward"), as_json=True))
    found = json.loads(capsys.readouterr().out)
    documented = run_coverage.__doc__ or ""
    assert all(f"`{key}`" in documented for key in (*found, *found["protocols"][0], *found["protocols"][0]["ours"]))
    assert [line["name"] for line in found["protocols"]] == ["kernelbench", "kernelward@3"]
    assert found["protocols"][0]["ours"]["share"] == 0.25
    assert found["ok"]


def test_tables_and_markdown_hold_the_same_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = filled(tmp_path / "m.sqlite").matrix.path
    run_coverage(CoverageOptions(matrix=path, protocols=("kernelbench",), markdown=True))
    assert "| kernelbench | 40 | 25.00 % (14.2-40.2) |" in capsys.readouterr().out
    run_coverage(CoverageOptions(matrix=path, protocols=("kernelbench",)))
    printed = capsys.readouterr().out
    assert "25.00 %" in printed
    assert "witnessed at our tolerances: 40 of 40" in printed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"matrix": Path("nowhere.sqlite")}, "make one with `kernelward calibrate`"),
        ({"protocols": ("kernelward@9",)}, "1 to 6 entries"),
        ({"protocols": ("nobody",)}, "unknown protocol 'nobody'"),
        ({"fail_under": 101.0}, "give a percentage"),
    ],
)
def test_bad_input_is_named(tmp_path: Path, changes: dict, message: str) -> None:
    path = filled(tmp_path / "m.sqlite").matrix.path
    with pytest.raises(InputError, match=message):
        run_coverage(CoverageOptions(**{"matrix": path, **changes}))


def test_an_empty_matrix_says_so(tmp_path: Path) -> None:
    small = SmallMatrix(tmp_path / "m.sqlite")
    with pytest.raises(InputError, match="the kill matrix is empty"):
        measure(small.matrix)


def test_selection_at_the_official_tolerance_sees_only_what_it_can(measured: Measured) -> None:
    for mutant, err in enumerate((5e-3, WRONG, WRONG)):
        measured.shows(mutant, err, err, err)
    line = measure(measured.matrix).get("kernelward@1")
    assert line.at_official is not None
    assert (line.at_official.detected, line.at_official.of) == (2, 2)
    assert together(cell_fates(measured.cells, Close())[:, [0]]).tolist() == [0, 1, 1]
