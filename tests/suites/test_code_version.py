"""Which code a stored answer depends on: all that may decide it, and no more."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kernelward.suites import code_version
from kernelward.suites.code_version import behind

ROOTS = ("validity", "defaults")


@pytest.mark.parametrize("root", ROOTS)
def test_whatever_a_module_makes_python_import_is_counted(root: str) -> None:
    program = (
        f"import sys, kernelward.suites.{root}\n"
        "print(*(m.removeprefix('kernelward.suites.') for m in sys.modules if m.startswith('kernelward.suites.')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported = set(done.stdout.split())
    assert root in imported
    assert imported <= set(behind(root))


def test_commands_and_the_choice_among_measured_entries_are_not_behind_the_gate() -> None:
    assert not {"cli", "select", "defaults", "build_many", "suite_cache"} & set(behind("validity"))
    assert {"envelope", "oracle", "compare", "generators"} <= set(behind("validity"))
    assert set(behind("validity")) < set(behind("defaults"))


@pytest.mark.parametrize(
    ("changed", "gate", "suites"),
    [("envelope", True, True), ("defaults", False, True), ("select", False, False), ("cli", False, False)],
)
def test_a_change_counts_where_the_module_is_used(
    changed: str, gate: bool, suites: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in Path(code_version.__file__).parent.glob("*.py"):
        shutil.copy(file, tmp_path)
    monkeypatch.setattr(code_version, "_ROOM", tmp_path)
    ask = code_version.code_version.__wrapped__
    before = [ask(root) for root in ROOTS]
    module = tmp_path / f"{changed}.py"
    module.write_text(module.read_text() + "\nCHANGED = 1\n")
    assert [ask(root) != was for root, was in zip(ROOTS, before, strict=True)] == [gate, suites]


def test_an_import_inside_of_a_function_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.py").write_text(
        "def f():\n    from .b import g\n    from . import c\n    from ..elsewhere import h\n"
    )
    (tmp_path / "b.py").write_text("from .a import f\n")
    (tmp_path / "c.py").write_text("import os\n")
    monkeypatch.setattr(code_version, "_ROOM", tmp_path)
    assert behind("a") == ["a", "b", "c"]
