"""`kernelward suite`: what it prints, what it writes, and its exit codes."""

import json
from pathlib import Path

import pytest
from kernelward.reward.cli import app
from kernelward.suites.suite import Suite, load_suite
from typer.testing import CliRunner

SUMS = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x.sum(1)

batch_size = 8
dim = 24

def get_inputs():
    return [torch.rand(batch_size, dim)]

def get_init_inputs():
    return []
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("problems")
    (root / "sums.py").write_text(SUMS)
    (root / "zeros.py").write_text(SUMS.replace("x.sum(1)", "x * 0"))
    return root


@pytest.fixture
def kernelward(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.delenv("KERNELBENCH_DIR", raising=False)
    return lambda *args: CliRunner().invoke(app, ["suite", *map(str, args)])


def test_build_writes_a_suite_that_validates(kernelward, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "sums.yaml"
    built = kernelward("build", folder / "sums.py", "--out", out, "--device", "cpu")
    assert built.exit_code == 0, built.output
    assert "sums: uncalibrated" in built.output
    suite = load_suite(out)
    assert suite.problem_id == "sums"
    checked = kernelward("validate", out, "--problems", folder, "--device", "cpu")
    assert checked.exit_code == 0, checked.output
    count = len(suite.entries) + len(suite.reserves)
    assert f"{count} of {count} entries of sums are admitted" in checked.output


def test_show_prints_json_that_holds_the_suite(kernelward, folder: Path) -> None:
    shown = kernelward("show", "sums", "--problems", folder, "--device", "cpu", "--json")
    assert shown.exit_code == 0, shown.output
    data = json.loads(shown.stdout)
    assert set(data) == {
        *("hash", "problem", "problem_hash", "policy", "calibrated", "coverage", "entries", "reserves", "provenance")
    }
    assert (data["calibrated"], data["coverage"]) == (False, None)
    assert all(entry["measured"][0]["device_class"] == "cpu" for entry in data["entries"])
    built = json.loads(kernelward("build", folder / "sums.py", "--device", "cpu", "--json").stdout)
    assert built["suite"] == data


def test_validate_names_an_entry_that_is_not_admitted(kernelward, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "sums.yaml"
    kernelward("build", folder / "sums.py", "--out", out, "--device", "cpu")
    suite = load_suite(out)
    text = out.read_text().replace(suite.problem_hash, _hash_of(folder / "zeros.py"))
    (tmp_path / "other.yaml").write_text(text)
    checked = kernelward("validate", tmp_path / "other.yaml", "--problem", folder / "zeros.py", "--device", "cpu")
    assert checked.exit_code == 1, checked.output
    assert "NOT admitted: all-zero" in checked.output
    as_json = kernelward(
        "validate", tmp_path / "other.yaml", "--problem", folder / "zeros.py", "--device", "cpu", "--json"
    )
    assert as_json.exit_code == 1
    assert json.loads(as_json.stdout)["valid"] is False


def _hash_of(path: Path) -> str:
    from kernelward.suites.problem import find_problem

    return find_problem(str(path)).hash


def test_a_problem_that_cannot_be_refereed_is_no_verdict(kernelward, folder: Path) -> None:
    for command in ("build", "show"):
        done = kernelward(command, folder / "zeros.py", "--device", "cpu")
        assert done.exit_code == 3, done.output
        assert "all-zero" in done.output


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["show", "nope"], "neither a file nor a folder"),
        (["show", "gone.yaml"], "cannot read the suite"),
        (["build", "sums", "--problems", "FOLDER", "--precision", "fp8"], "precision must be one of"),
        (["build", "sums", "--problems", "FOLDER", "--device", "tpu"], "unknown device 'tpu'"),
        (["build", "sums", "--problems", "FOLDER", "--device", "cpu", "--out", "no/such/folder.yaml"], "cannot write"),
        (["validate", "sums", "--problems", "FOLDER"], "the library has no suite for sums"),
        (["validate", "sums", "--problems", "nowhere"], "no folder of problems"),
    ],
)
def test_wrong_input_is_exit_code_2_and_says_what(kernelward, folder: Path, args: list[str], part: str) -> None:
    done = kernelward(*(str(folder) if a == "FOLDER" else a for a in args))
    assert done.exit_code == 2, done.output
    assert part in done.stderr
    assert "Traceback" not in done.output


def test_a_suite_of_another_version_of_the_problem_is_refused(kernelward, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "sums.yaml"
    kernelward("build", folder / "sums.py", "--out", out, "--device", "cpu")
    assert isinstance(load_suite(out), Suite)
    done = kernelward("validate", out, "--problem", folder / "zeros.py", "--device", "cpu")
    assert done.exit_code == 2
    assert "the suite is for another version of sums" in done.stderr
