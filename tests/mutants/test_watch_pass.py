"""What a pass measures again after which edit, counted in cells, and what it publishes."""

import json
import shutil
import time
from pathlib import Path

import pytest
from kernelward.mutants.matrix import Matrix
from kernelward.mutants.watch_options import WatchOptions
from kernelward.mutants.watch_pass import run_pass, with_rests
from kernelward.mutants.watch_publish import append_history, read_coverage
from kernelward.reward.bank import BankedKernel, KernelBank
from watched import DECLARED, DENSE, KERNEL, NEW, Watched

PER_SUBSTRATE = 4


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    """A calibration that is up to date."""
    watched = Watched(tmp_path_factory.mktemp("watched"))
    result = again(watched)
    assert result["evaluations"] > 0
    assert result["stale"]["mutants"] == 0
    return watched


@pytest.fixture
def watched(measured: Watched, tmp_path: Path) -> Watched:
    """A copy of it to edit."""
    root = tmp_path / "copy"
    shutil.copytree(measured.root, root)
    copy = object.__new__(Watched)
    copy.__dict__.update(measured.__dict__)
    copy.root = root
    copy.out, copy.problems, copy.substrates = root / "out", root / "problems", root / "substrates"
    copy.suites = copy.out / "suites"
    return copy


def again(watched: Watched, bank: Path | None = None) -> dict:
    options = WatchOptions(
        out=watched.out,
        problems=(str(watched.problems),),
        substrates=watched.substrates,
        bank=bank,
        per_substrate=PER_SUBSTRATE,
        device="cpu",
    )
    return run_pass(options, 1, (), [])


def ready(watched: Watched) -> int:
    with Matrix(watched.out / "matrix.sqlite") as matrix:
        return len(matrix.mutants(state="ready"))


def test_a_pass_that_rests_works_for_as_many_seconds_as_one_that_does_not() -> None:
    options, pace = with_rests(WatchOptions(out=Path("out"), budget_s=10.0))
    pace()
    worked = time.monotonic()
    while time.monotonic() - worked < 0.2:
        pass
    rested = time.monotonic()
    pace()
    share = 0.2 / (0.2 + time.monotonic() - rested)
    assert options.budget_s * share == pytest.approx(10.0, rel=0.2)


def test_nothing_changed_evaluates_nothing_and_publishes(watched: Watched) -> None:
    (watched.out / "trainer.json").write_text('{"global_step": 7}')
    before = read_coverage(watched.out)["evaluations_total"]
    result = again(watched)
    assert (result["evaluations"], result["evaluations_total"], result["step"]) == (0, before, 7)
    line = json.loads((watched.out / "history.jsonl").read_text().splitlines()[-1])
    assert line["overall"] == result["overall"]
    assert line["suites"]["tiny_relu"]["hash"] == watched.suite(DENSE, DECLARED).hash


def test_a_new_entry_of_a_suite_is_all_that_is_asked(watched: Watched) -> None:
    suite = watched.write_suite(DENSE, DECLARED, NEW)
    result = again(watched)
    assert result["evaluations"] == ready(watched)
    assert result["suites"]["tiny_relu"] == {
        "hash": suite.hash,
        "origin": "file",
        "entries": [DENSE.id, DECLARED.id, NEW.id],
    }
    watched.write_suite(DENSE, DECLARED)
    assert again(watched)["evaluations"] == 0
    watched.write_suite(DENSE, DECLARED, NEW)
    assert again(watched)["evaluations"] == 0


def test_a_suites_own_tolerance_counts_without_running_anything(watched: Watched) -> None:
    before = again(watched)["overall"]
    watched.write_suite(DENSE, DECLARED, loosened=1e9)
    result = again(watched)
    assert result["evaluations"] == 0
    assert result["overall"]["witnessed"] == before["witnessed"]
    assert result["overall"]["detected"] < before["detected"]


def test_an_edited_substrate_takes_its_mutants_along_and_back(watched: Watched) -> None:
    first, mutants = again(watched), ready(watched)
    file = watched.substrates / "relu.py"
    file.write_text(KERNEL.replace("BLOCK=64", "BLOCK=32").replace(", 64)", ", 32)"))
    edited = again(watched)
    with Matrix(watched.out / "matrix.sqlite") as matrix:
        states = {row.hash: row.status for row in matrix.substrates().values()}
        cells = [len(matrix.cells(id)) for id in matrix.mutants(state="ready")]
    assert sorted(states.values()) == ["admitted", "pending"]
    assert edited["overall"]["witnessed"] <= PER_SUBSTRATE
    assert edited["evaluations"] == sum(cells) - first["evaluations_total"]
    file.write_text(KERNEL)
    back = again(watched)
    assert back["evaluations"] == 0
    assert back["overall"] == first["overall"]
    assert ready(watched) > mutants


def test_a_half_written_suite_leaves_the_last_good_one_in_use(watched: Watched) -> None:
    file = watched.suites / "tiny_relu.yaml"
    good, text = watched.suite(DENSE, DECLARED).hash, file.read_text()
    file.write_text(text[: len(text) // 2])
    result = again(watched)
    assert result["suites"]["tiny_relu"]["hash"] == good
    assert any(str(file) in note and "last good version" in note for note in result["warnings"])
    assert result["evaluations"] == 0


def test_a_half_written_problem_leaves_what_was_published(watched: Watched) -> None:
    before = read_coverage(watched.out)
    (watched.problems / "tiny_relu.py").write_text("class Model(torch.nn.Mod")
    other = watched.problems / "other.py"
    shutil.copy(Path(__file__).parents[2] / "examples" / "problems" / "relu.py", other)
    (watched.substrates / "other.py").write_text(KERNEL.replace("tiny_relu", "other"))
    with pytest.raises(Exception, match=r"tiny_relu\.py, line 1: syntax error"):
        again(watched)
    assert read_coverage(watched.out) == before


def test_a_full_disk_leaves_what_was_published_and_is_said(watched: Watched) -> None:
    before = read_coverage(watched.out)
    draft = watched.out / ".coverage.json.new"
    draft.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        again(watched)
    assert read_coverage(watched.out) == before
    draft.unlink()
    assert again(watched)["overall"] == before["overall"]


def test_history_goes_on_after_a_torn_line(tmp_path: Path) -> None:
    place = tmp_path / "history.jsonl"
    place.write_text('{"pass": 1}\n{"pa')
    append_history(tmp_path, {"pass": 3, "problems": {}})
    lines = place.read_text().splitlines()
    assert lines[1] == '{"pa'
    assert json.loads(lines[2]) == {"pass": 3}


TORCH = """
import torch

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return {}
"""


def bank_of(watched: Watched, *sources: str, backend: str = "triton") -> Path:
    place = watched.root / "bank.sqlite"
    with KernelBank(place) as bank:
        for source in sources:
            bank.add(BankedKernel("tiny_relu", watched.problem.hash, watched.problem.source, backend, source, 1.0))
    return place


def test_an_accepted_kernel_that_the_pool_finds_wrong_is_a_false_accept_with_its_entry(watched: Watched) -> None:
    place = bank_of(watched, KERNEL.replace("x > 0.0, x, 0.0", "x > 1.0, x, 0.0"), "no kernel at all")
    result = again(watched, place)
    assert result["bank"]["kernels"] == {"new": 0, "verified": 0, "false-accept": 1, "unusable": 1}
    assert result["bank"]["overall"] is None
    with KernelBank(place) as bank:
        (found,) = bank.false_accepts()
    assert found.evidence is not None
    assert found.evidence.as_entry in (DENSE, DECLARED)
    assert found.evidence.reason == "value"
    assert again(watched, place)["bank"]["examined"] == 0


def test_a_kernel_of_torchs_operators_is_verified_and_not_mutated(watched: Watched) -> None:
    place = bank_of(watched, TORCH.format("x.clamp(min=0)"), TORCH.format("x.clone()"), backend="torch")
    result = again(watched, place)
    assert result["bank"]["kernels"] == {"new": 0, "verified": 1, "false-accept": 1, "unusable": 0}
    assert (result["bank"]["examined"], result["bank"]["waiting"], result["bank"]["overall"]) == (2, 0, None)
    assert again(watched, place)["bank"]["examined"] == 0
    with Matrix(watched.out / "matrix.sqlite") as matrix:
        assert len(matrix.substrates()) == 1


def test_a_verified_kernel_is_mutated_and_counted_apart(watched: Watched) -> None:
    before = again(watched)
    place = bank_of(watched, KERNEL.replace("BLOCK=64", "BLOCK=128").replace(", 64)", ", 128)"))
    result = again(watched, place)
    assert result["bank"]["kernels"]["verified"] == 1
    assert result["bank"]["overall"]["witnessed"] > 0
    assert result["overall"] == before["overall"]
    with Matrix(watched.out / "matrix.sqlite") as matrix:
        origins = {row.origin for row in matrix.mutants(state="ready").values()}
        statuses = [row.status for row in matrix.substrates().values() if row.name.startswith("bank/")]
    assert origins == {"substrate", "bank"}
    assert statuses == ["admitted"]
    unchanged = again(watched, place)
    assert (unchanged["evaluations"], unchanged["bank"]["examined"]) == (0, 0)
    place.unlink()
    assert again(watched)["bank"] is None
