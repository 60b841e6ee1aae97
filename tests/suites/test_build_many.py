"""Default suites of a whole folder: every problem gets an answer, whatever happens to another."""

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kernelward.reward.cli import app
from kernelward.suites import build_many
from kernelward.suites.suite import load_suite
from typer.testing import CliRunner

PLAIN = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x.sum(1)

def get_inputs():
    return [torch.rand(8, 24)]

def get_init_inputs():
    return []
"""
ENDS = PLAIN + "\nimport os\nos._exit(9)\n"


@pytest.fixture
def kernelward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return lambda *args: CliRunner().invoke(app, ["suite", "build", *map(str, args), "--device", "cpu"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    levels = tmp_path / "KernelBench"
    (levels / "level1").mkdir(parents=True)
    (levels / "level1" / "2_Sums.py").write_text(PLAIN)
    (levels / "level1" / "10_Zeros.py").write_text(PLAIN.replace("x.sum(1)", "x * 0"))
    return levels


def test_a_folder_gets_a_file_for_each_suite_and_the_unrefereeable_are_named(
    kernelward, folder: Path, tmp_path: Path
) -> None:
    done = kernelward(folder, "--out", tmp_path / "suites")
    assert done.exit_code == 3, done.output
    assert "level1/10_Zeros: unrefereeable: all-zero" in done.output
    assert "2 problems: " in done.output
    assert "1 built" in done.output
    assert "1 unrefereeable" in done.output
    files = [p.relative_to(tmp_path / "suites").as_posix() for p in (tmp_path / "suites").rglob("*.yaml")]
    assert files == ["level1/2_Sums.yaml"]
    assert load_suite(tmp_path / "suites" / files[0]).problem_id == "level1/2_Sums"


def test_what_was_built_is_not_built_again(kernelward, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = kernelward(folder, "--json")
    monkeypatch.setattr(build_many, "ProcessPoolExecutor", None)
    assert json.loads(kernelward(folder, "--json").stdout) == json.loads(first.stdout)


def test_broken_problems_are_named_and_cost_the_others_nothing(kernelward, folder: Path) -> None:
    (folder / "level1" / "3_Ends.py").write_text(ENDS)
    (folder / "level1" / "4_Broken.py").write_text("def get_inputs(:\n")
    (folder / "level1" / "5_Raises.py").write_text(PLAIN.replace("torch.rand(8, 24)", "torch.rand(8, 24) + undefined"))
    done = kernelward(folder, "--json")
    assert done.exit_code == 1, done.output
    found = json.loads(done.stdout)
    assert list(found) == [f"level1/{n}" for n in ("2_Sums", "3_Ends", "4_Broken", "5_Raises", "10_Zeros")]
    assert found["level1/2_Sums"]["suite"] is not None
    assert "was ended" in found["level1/3_Ends"]["failure"]
    assert "4_Broken.py" in found["level1/4_Broken"]["failure"]
    assert "undefined" in found["level1/5_Raises"]["failure"]
    assert found["level1/10_Zeros"]["failure"] == ""
    assert found["level1/10_Zeros"]["suite"] is None


def test_lack_of_memory_beside_others_is_no_answer(kernelward, folder: Path, tmp_path: Path) -> None:
    once = tmp_path / "asked"
    crowded = f"\nimport pathlib\nif not pathlib.Path({str(once)!r}).exists():\n"
    crowded += f"    pathlib.Path({str(once)!r}).touch()\n    raise MemoryError('out of memory')\n"
    (folder / "level1" / "2_Sums.py").write_text(PLAIN + crowded)
    done = kernelward(folder, "--json", "--workers", 2)
    assert once.exists()
    assert json.loads(done.stdout)["level1/2_Sums"]["suite"] is not None


def test_lack_of_memory_with_the_machine_to_itself_is_said(kernelward, folder: Path) -> None:
    (folder / "level1" / "2_Sums.py").write_text(PLAIN + "\nraise MemoryError('out of memory')\n")
    found = json.loads(kernelward(folder, "--json").stdout)
    assert "out of memory" in found["level1/2_Sums"]["failure"]


def test_a_folder_without_problems_is_an_error(kernelward, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = kernelward(tmp_path / "empty")
    assert done.exit_code == 2
    assert "holds no .py files" in done.output


def test_problems_that_do_not_fit_side_by_side_take_turns_and_small_ones_pass() -> None:
    room, lock = build_many.Room(), threading.Lock()
    inside: list[float] = []
    seen: list[list[float]] = []

    def build(part: float) -> None:
        with room.share(part):
            with lock:
                inside.append(part)
                seen.append(sorted(inside))
            time.sleep(0.05)
            with lock:
                inside.remove(part)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(build, [0.7, 0.7, 0.2, 0.7, 0.2, 1.0, 0.2]))
    assert len(seen) == 7
    assert all(sum(parts) <= 1.0 for parts in seen)
    assert any(len(parts) > 1 for parts in seen)


def test_a_folder_of_one_problem_gets_its_file_in_the_folder_as_well(kernelward, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "sums.py").write_text(PLAIN)
    done = kernelward(tmp_path / "one", "--out", tmp_path / "suites")
    assert done.exit_code == 0, done.output
    (file,) = (tmp_path / "suites").rglob("*.yaml")
    assert file.name == f"{load_suite(file).problem_id}.yaml"


def is_running(pid: int) -> bool:
    """Whether a process is there and not merely waiting for somebody to take note of its end."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_build_that_is_killed_leaves_nobody_behind(folder: Path, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    waits = f"    import os, time\n    open({str(pid)!r}, 'w').write(str(os.getpid()))\n    time.sleep(120)\n"
    source = PLAIN.replace("def get_inputs():\n", f"def get_inputs():\n{waits}")
    (folder / "level1" / "9_Slow.py").write_text(source)
    command = ["suite", "build", str(folder), "--device", "cpu"]
    with subprocess.Popen(
        [sys.executable, "-c", "from kernelward.reward.cli import app; app()", *command],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
        stderr=subprocess.DEVNULL,
    ) as build:
        deadline = time.monotonic() + 60
        while not (pid.exists() and pid.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        build.kill()
    child = int(pid.read_text())
    assert child != build.pid
    deadline = time.monotonic() + 10
    while (alive := is_running(child)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive
