"""Agreement of two engines: which cells make a pair, what is counted, and what the command prints."""

import json
import math
from pathlib import Path

import pytest
from kernelward.mutants.agreement import agreement, pairs_of
from kernelward.mutants.agreement_table import run_agreement
from kernelward.mutants.matrix_schema import Cell
from kernelward.suites.entry import Entry
from kernelward.suites.errors import InputError
from small_matrix import SmallMatrix
from typer.testing import CliRunner

DENSE, RAGGED, OWN = Entry.make("normal"), Entry.make("normal", constants={"n": 33}), Entry.make("own")
GPU = {"engine": "nvrtc", "device": "GPU", "device_class": "cuda", "variants": ["plain"]}


class Both(SmallMatrix):
    """Three entries on each device class; the GPU's tolerance is ten times the emulator's."""

    def __init__(self, path: Path, mutants: int | list[tuple[str, str, str]] = 4, problem: str = "softmax") -> None:
        super().__init__(path, mutants=mutants, entries=[DENSE, RAGGED, OWN], problem=problem)
        self.gpu = self.matrix.add_environment(GPU)
        looser = {"tolerance": [10 * self.tolerance]}
        rows = [self.entry_row(e, device_class="cuda", measured=looser) for e in (OWN, RAGGED, DENSE)]
        own, ragged, dense = self.matrix.add_entries(rows)
        self.theirs = [dense, ragged, own]

    def cpu(self, mutant: int, *shown: float | str | None, variant: str = "strict") -> None:
        """What the emulator shows on the entries: an error, a class, or nothing."""
        self._put(mutant, self.entries, self.environment, variant, shown)

    def cuda(self, mutant: int, *shown: float | str | None, variant: str = "plain") -> None:
        """What the GPU shows on them."""
        self._put(mutant, self.theirs, self.gpu, variant, shown)

    def _put(self, mutant: int, entries: list[int], environment: int, variant: str, shown: tuple) -> None:
        for entry, err in zip(entries, shown, strict=False):
            if err is None:
                continue
            what = (err, (math.inf,), math.inf) if isinstance(err, str) else ("pass", (err,), err)
            self.matrix.put_cells([Cell(self.mutants[mutant], entry, environment, variant, 3, *what)])  # type: ignore[arg-type]

    def verdicts(self, variant: str = "strict") -> dict[tuple[bool, bool], int]:
        """(killed on the emulator, killed on the GPU) -> pairs."""
        return dict(agreement(pairs_of(self.matrix, variant)[0]).verdicts)  # type: ignore[arg-type]


@pytest.fixture
def both(tmp_path: Path) -> Both:
    return Both(tmp_path / "m.sqlite")


def test_entries_are_joined_by_recipe_and_each_side_judges_by_its_own_tolerance(both: Both) -> None:
    both.cpu(0, 5e-3, 0.0, None)
    both.cuda(0, 5e-3, 5e-2, 1.0)
    found, _ = pairs_of(both.matrix)
    assert [(p.entry, p.cpu.killed, p.gpu.killed) for p in found] == [(DENSE.id, True, False), (RAGGED.id, False, True)]
    assert [round(p.cpu.ratio, 3) for p in found] == [5.0, 0.0]


def test_plain_cells_stand_for_strict_ones_on_a_gpu_alone(both: Both) -> None:
    both.cpu(0, 1.0, variant="plain")
    both.cuda(0, 1.0)
    both.cpu(1, None, None, 1.0, variant="strict")
    both.cuda(1, None, None, 1.0, variant="strict")
    assert both.verdicts("strict") == {(True, True): 1}
    assert both.verdicts("plain") == {(True, True): 1}


def test_only_what_is_admitted_and_measured_on_both_makes_a_pair(both: Both) -> None:
    for mutant in range(2):
        both.cpu(mutant, 1.0, 1.0, 1.0)
        both.cuda(mutant, 1.0, 1.0, 1.0)
    assert both.verdicts() == {(True, True): 6}
    both.matrix.add_entry(both.entry_row(OWN, device_class="cuda", admitted=False, reason="above-cap"))
    both.matrix.add_entry(both.entry_row(DENSE, measured=None))
    both.matrix.set_mutant_state(both.mutants[1], "equivalent")
    assert both.verdicts() == {(True, True): 1}


def test_a_shape_refused_by_both_says_nothing_and_by_one_is_a_disagreement_with_a_kill(both: Both) -> None:
    both.cpu(0, 0.0, "refused")
    both.cuda(0, 0.0, "refused")
    both.cpu(1, "refused", 1.0)  # at the declared shape an exception is an exception
    both.cuda(1, "crash", "refused")
    found, refused = pairs_of(both.matrix)
    assert refused == 1
    assert [(p.cpu.cls, p.gpu.cls, p.agrees) for p in found] == [
        ("pass", "pass", True), ("crash", "crash", True), ("value", "refused", False),
    ]  # fmt: skip
    assert found[2].cause == "refused on the GPU"


def test_disagreements_are_grouped_by_what_differs(tmp_path: Path) -> None:
    kinds = [("drop_sync", "synchronization", "a"), ("drop_sync", "synchronization", "b"), ("lt2le", "boundary", "c")]
    both = Both(tmp_path / "m.sqlite", mutants=kinds)
    for mutant in (0, 1):
        both.cpu(mutant, "race", "race", 1.0)
        both.cuda(mutant, 0.0, 0.0, 1.0)
    both.cpu(2, "crash", 2e-3, 0.0)
    both.cuda(2, 0.0, 5e-3, 1.0)
    found = agreement(pairs_of(both.matrix)[0])
    groups = [(d.cause, d.cpu, d.gpu, d.operator, d.pairs, d.mutants) for d in found.disagreements]
    assert groups[0] == ("race seen by the emulator alone", "race", "pass", "drop_sync", 4, 2)
    assert sorted(groups[1:]) == [
        ("crash seen by the emulator alone", "crash", "pass", "lt2le", 1, 1),
        ("value seen by the GPU alone", "pass", "value", "lt2le", 1, 1),
        ("within a factor of 4 of the tolerance on both", "value", "pass", "lt2le", 1, 1),
    ]
    assert (found.groups["synchronization"].agree, found.groups["synchronization"].of) == (2, 6)
    assert (found.cpu_classes["race"].agree, found.cpu_classes["race"].of) == (0, 4)
    assert found.confusion["race", "pass"] == 4
    assert (found.compared.agree, found.compared.of) == (2, 4)
    assert (found.fitting.agree, found.fitting.of) == (0, 2)  # those of lt2le


def filled(path: Path) -> Both:
    """The textbook's table: 20 killed by both, 5 by the emulator alone, 10 by the GPU alone, 15 by neither."""
    both = Both(path, mutants=50)
    for i in range(50):
        both.cpu(i, 1.0 if i < 25 else 0.0)
        both.cuda(i, 1.0 if i < 20 or 25 <= i < 35 else 0.0)
    return both


def test_kappa_and_its_interval(tmp_path: Path) -> None:
    found = agreement(pairs_of(filled(tmp_path / "m.sqlite").matrix)[0])
    assert (found.rate.agree, found.rate.of) == (35, 50)
    assert found.kappa == pytest.approx(0.4)
    assert found.rate.interval == pytest.approx((0.5625, 0.8090), abs=1e-3)
    assert found.kappa_interval is not None
    # 50 pairs of as many mutants: the large-sample standard error of Fleiss, Cohen and Everitt (1969) is 0.127
    assert found.kappa_interval == pytest.approx((0.4 - 1.96 * 0.127, 0.4 + 1.96 * 0.127), abs=0.04)


def test_mutants_are_resampled_and_not_their_pairs(tmp_path: Path) -> None:
    both = Both(tmp_path / "m.sqlite", mutants=20)
    for i in range(20):
        both.cpu(i, 1.0, 1.0, 1.0)
        both.cuda(i, *[1.0 if i < 15 else 0.0] * 3)
    found = agreement(pairs_of(both.matrix)[0])
    low, high = found.rate.interval
    assert found.by_mutant is not None
    assert found.by_mutant[1] - found.by_mutant[0] > 1.5 * (high - low)
    assert found.kappa == 0.0  # one side always says killed


def test_where_both_say_one_thing_of_everything_there_is_no_kappa(both: Both) -> None:
    for mutant in range(4):
        both.cpu(mutant, 1.0)
        both.cuda(mutant, 1.0)
    found = agreement(pairs_of(both.matrix)[0])
    assert math.isnan(found.kappa)
    assert found.kappa_interval is None
    assert found.to_dict()["kappa"] is None


def test_the_command_prints_tables_markdown_and_the_documented_object(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = filled(tmp_path / "m.sqlite").matrix.path
    assert run_agreement(path, "family", 98.0) == 1
    printed = capsys.readouterr().out
    assert "agreement 70.00 %, below 98 %" in printed
    run_agreement(path, "operator", markdown=True)
    assert "| boundary / lt2le | softmax |" in capsys.readouterr().out
    assert run_agreement(path, "family", 70.0, as_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    documented = run_agreement.__doc__ or ""
    keys = (*found, *found["strict"], *found["strict"]["disagreements"][0])
    assert [key for key in keys if f"`{key}`" not in documented] == []
    assert found["plain"] is None
    assert found["strict"]["confusion"] == [
        {"cpu": "pass", "cuda": "pass", "pairs": 15}, {"cpu": "pass", "cuda": "value", "pairs": 10},
        {"cpu": "value", "cuda": "pass", "pairs": 5}, {"cpu": "value", "cuda": "value", "pairs": 20},
    ]  # fmt: skip


def test_the_emulators_plain_cells_are_counted_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = filled(tmp_path / "m.sqlite")
    both.cpu(0, 1.0, variant="plain")
    run_agreement(both.matrix.path, "family", as_json=True)
    assert json.loads(capsys.readouterr().out)["plain"]["of"] == 1


def test_a_matrix_of_one_machine_says_what_is_missing(tmp_path: Path) -> None:
    both = Both(tmp_path / "m.sqlite")
    both.cpu(0, 1.0)
    with pytest.raises(InputError, match="calibrate --import DELTA"):
        run_agreement(both.matrix.path, "family")


def test_the_flag_of_coverage(tmp_path: Path) -> None:
    from kernelward.mutants.cli import app

    path = str(filled(tmp_path / "m.sqlite").matrix.path)
    done = CliRunner().invoke(app, ["coverage", "--agreement", "--matrix", path, "--fail-under", "60"])
    assert done.exit_code == 0
    assert "Emulator (strict cells) and GPU" in done.output
    refused = CliRunner().invoke(app, ["coverage", "--agreement", "--matrix", path, "--device", "cpu"])
    assert refused.exit_code == 2
    assert "leave out --protocol and --device" in refused.output
