"""`kernelward check`: exit codes, JSON, text, and an error for everything that the user may get wrong."""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from kernelward.reward.check import describe, run_check
from kernelward.reward.verdict import EntryResult, Outcome, Verdict
from kernelward.suites.errors import InputError
from kernelward.suites.problem import Problem
from kernelward.suites.suite import Suite

KEYS = ["verdict", "reason", "problem", "protocol", "backend", "engine", "entry", "err", "tolerance", "seed", "seconds"]


@pytest.fixture
def files(
    tmp_path: Path, tiny_relu: Problem, small_suite: Callable[..., Suite], candidate: Callable[[str], str]
) -> Path:
    """A folder with a problem, its suite, a right and a wrong candidate."""
    (tmp_path / "tiny_relu.py").write_text(tiny_relu.source)
    (tmp_path / "suite.yaml").write_text(small_suite(tiny_relu, {"ROWS": 5, "COLUMNS": 37}).to_yaml())
    (tmp_path / "right.py").write_text(candidate("return torch.relu(x)"))
    (tmp_path / "wrong.py").write_text(candidate("return x"))
    return tmp_path


def command(files: Path, name: str, *options: str) -> "subprocess.CompletedProcess[str]":
    arguments = ["check", str(files / name), "--problem", str(files / "tiny_relu.py"), "--device", "cpu", *options]
    code = "from kernelward.mutants.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


def test_a_right_candidate_gives_exit_code_0_and_one_json_object(files: Path) -> None:
    done = command(files, "right.py", "--suite", str(files / "suite.yaml"), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(KEYS) <= set(found)
    assert (found["verdict"], found["protocol"], found["backend"], found["engine"]) == (
        "correct",
        "kernelward",
        "torch",
        "torch",
    )


def test_a_wrong_candidate_gives_exit_code_1_and_says_how_to_replay(files: Path) -> None:
    done = command(files, "wrong.py", "--suite", str(files / "suite.yaml"))
    assert done.returncode == 1, done.stderr
    assert "incorrect (value)" in done.stdout
    assert "replay with --entry own-" in done.stdout


def judged(
    files: Path, name: str, capsys: pytest.CaptureFixture[str], **options: object
) -> tuple[int, dict[str, object]]:
    values: dict[str, object] = {"problem": str(files / "tiny_relu.py"), "device": "cpu", "as_json": True} | options
    code = run_check(files / name, **values)  # type: ignore[arg-type]
    return code, json.loads(capsys.readouterr().out)


def test_a_candidate_that_is_not_utf8_is_a_broken_candidate(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "latin.py").write_bytes("# é\nclass ModelNew: pass\n".encode("latin-1"))
    code, found = judged(files, "latin.py", capsys)
    assert (code, found["verdict"], found["reason"]) == (1, "compile_error", "not-utf8")


def test_a_problem_that_cannot_be_refereed_gives_exit_code_3(
    files: Path, capsys: pytest.CaptureFixture[str], tiny_relu: Problem
) -> None:
    raising = tiny_relu.source.replace("torch.relu(x)", "x if x.is_meta else x.no_such()")
    (files / "raises.py").write_text(raising)
    options = {"problem": str(files / "raises.py"), "protocol": "kernelbench"}
    code, found = judged(files, "right.py", capsys, **options)
    assert (code, found["verdict"], found["reason"]) == (3, "unrefereeable", "reference-raises")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("missing.py", {}, "missing.py.*No such file"),
        (".", {}, "Is a directory"),
        ("right.py", {"problem": "level1/23_Softmax"}, "level1/23_Softmax"),
        ("right.py", {"problem": "no/such/file.py"}, "no/such/file.py"),
        ("right.py", {"protocol": "no-such-protocol"}, "unknown protocol.*kernelbench"),
        ("right.py", {"protocol": "broken.yaml"}, "broken.yaml:3"),
        ("right.py", {"suite": Path("broken.yaml")}, "broken.yaml:3"),
        ("right.py", {"problem": "right.py"}, "no Model"),
        ("right.py", {"device": "tpu"}, "unknown device 'tpu'"),
        ("right.py", {"entry": "nope", "protocol": "kernelbench"}, "no entry 'nope'"),
    ],
)
def test_everything_else_that_is_wrong_is_the_users_error(
    files: Path, monkeypatch: pytest.MonkeyPatch, name: str, options: dict[str, object], message: str
) -> None:
    monkeypatch.chdir(files)
    monkeypatch.delenv("KERNELBENCH_DIR", raising=False)
    (files / "broken.yaml").write_text("name: broken\nentries: [\n")
    values: dict[str, object] = {"problem": "tiny_relu.py", "device": "cpu"} | options
    with pytest.raises(InputError, match=message):
        run_check(files / name, **values)  # type: ignore[arg-type]


def test_the_text_says_what_decided() -> None:
    verdict = Verdict(
        Outcome.INCORRECT,
        "nan",
        "output 0 at [1]: error inf, tolerance 1e-06",
        problem="p",
        protocol="kernelward",
        backend="triton",
        engine="triton-interpreter",
        entry="own-1",
        err=math.inf,
        tolerance=1e-6,
        seed=5,
        entries=(EntryResult("own-1", Outcome.INCORRECT),),
        notes=("decoy-kernel: seen",),
    )
    text = describe(verdict, "x.py")
    for part in ("x.py: incorrect (nan)", "triton backend on triton-interpreter", "error inf of 1e-06", "--seed 5"):
        assert part in text
    assert "note: decoy-kernel: seen" in text
