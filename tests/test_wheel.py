"""The wheel holds every package and data file: built, installed outside the tree, and used from there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAIN = "from kernelward.mutants.cli import main; main()"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder outside the tree with the wheel's content, as pip installs it."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    wheel = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT)]
    subprocess.run(wheel, check=True, timeout=240)
    (built,) = folder.glob("kernelward-*.whl")
    subprocess.run(
        [*pip, "install", "--no-deps", "--target", str(folder / "site"), str(built)], check=True, timeout=240
    )
    return folder / "site"


def kernelward(installed: Path, *args: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed), "XDG_CACHE_HOME": str(installed.parent / "cache")}
    command = [sys.executable, "-c", MAIN, *args]
    return subprocess.run(
        command, env=environment, cwd=installed.parent, capture_output=True, text=True, timeout=240, check=False
    )


def test_every_tracked_data_file_is_in_the_wheel(installed: Path) -> None:
    wanted = {
        p.relative_to(ROOT)
        for room in ("configs", "suites", "reward", "mutants")
        for p in (ROOT / room).rglob("*")
        if p.is_file() and "__pycache__" not in p.parts and p.suffix != ".md"
    }
    assert {p for p in wanted if not (installed / "kernelward" / p).is_file()} == set()


def test_the_installed_package_is_the_one_that_runs(installed: Path) -> None:
    code = "import kernelward.reward as r; print(r.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=installed.parent, capture_output=True, text=True, check=True
    )
    assert Path(run.stdout.strip()).is_relative_to(installed)


def protocols() -> list[str]:
    return sorted(p.stem for p in (ROOT / "configs" / "protocols").glob("*.yaml"))


@pytest.mark.parametrize("protocol", protocols())
def test_check_runs_from_the_wheel_under_every_protocol(installed: Path, protocol: str) -> None:
    candidate, problem = ROOT / "tests/honest/relu/clamp.py", ROOT / "examples/problems/relu.py"
    run = kernelward(installed, "check", str(candidate), "--problem", str(problem), "--protocol", protocol, "--json")
    assert run.returncode == 0, run.stdout + run.stderr
    verdict = json.loads(run.stdout)
    assert (verdict["verdict"], verdict["protocol"]) == ("correct", protocol)
