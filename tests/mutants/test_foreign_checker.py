"""A checker that is not ours: what its exit codes, functions, crashes and left-over processes come to."""

import os
import sys
import time
from pathlib import Path

import pytest
from kernelward.mutants.foreign_checker import ForeignChecker, Said
from kernelward.suites.errors import InputError


def ask(text: str, time_limit: float = 20.0, candidate: str = "wrong") -> Said:
    return ForeignChecker(text, time_limit).ask("problem text", candidate)


def script(folder: Path, body: str) -> str:
    """A command for a Python checker."""
    path = folder / "checker.py"
    path.write_text(f"import sys\n{body}\n")
    return f"{sys.executable} -I -S {path} {{problem}} {{candidate}}"


@pytest.mark.parametrize(
    ("command", "passes"),
    [
        ("grep -q right {candidate}", False),
        ("grep -q wrong {candidate}", True),
        ("grep -q 'problem text' {problem} {candidate}", True),
        ("sh -c 'exit 2' {candidate}", None),
        ("sh -c 'kill -9 $$' {candidate}", None),
    ],
)
def test_exit_codes_are_verdicts(command: str, passes: bool | None) -> None:
    assert ask(command).passes is passes


@pytest.mark.parametrize(
    "body",
    [
        "open('/nowhere')",
        "raise RuntimeError('CUDA error: unspecified launch failure\\nFor debugging consider passing X\\n')",
    ],
)
def test_a_python_checker_that_dies_of_an_exception_gives_no_verdict(tmp_path: Path, body: str) -> None:
    said = ask(script(tmp_path, body))
    assert said.passes is None
    assert "exit code 1" in said.detail


def test_a_candidates_traceback_that_a_checker_prints_does_not_take_its_verdict_away(tmp_path: Path) -> None:
    body = "import traceback\ntry: 1 / 0\nexcept ZeroDivisionError: traceback.print_exc()\nprint('FAIL')\nsys.exit(1)"
    assert ask(script(tmp_path, body)).passes is False


def test_time_is_up_without_a_verdict_and_nothing_it_started_goes_on(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    started = time.monotonic()
    said = ask(f"sh -c 'setsid sleep 60 & echo $! > {note}; sleep 60' {{candidate}}", time_limit=1.0)
    assert (said.passes, said.detail) == (None, "no answer within 1 s")
    assert time.monotonic() - started < 10
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)


def test_what_a_checker_leaves_behind_ends_with_its_answer(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    assert ask(f"sh -c 'setsid sleep 60 & echo $! > {note}' {{candidate}}").passes is True
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)


def test_each_call_has_caches_of_its_own_and_the_users_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHECKER_SETTING", "kept")
    command = "sh -c 'echo $CHECKER_SETTING $TORCH_EXTENSIONS_DIR $TRITON_CACHE_DIR; touch $TMPDIR/x' {candidate}"
    one, other = (ask(command).detail.split() for _ in range(2))
    assert one[0] == "kept"
    assert len({*one[1:], *other[1:]}) == 4
    assert not Path(one[1]).parent.exists()


def test_a_python_function_is_called_with_sources_or_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = """
def by_source(problem, candidate):
    return {"right": True, "wrong": False, "unknown": None, "odd": 1}[candidate]

def by_path(problem_path, candidate_path):
    return candidate_path.read_text() == "right" and problem_path.read_text() == "problem text"

def leaves(problem, candidate):
    raise SystemExit(0)
"""
    (tmp_path / "my_checker.py").write_text(module)
    monkeypatch.chdir(tmp_path)
    said = {text: ask("my_checker:by_source", candidate=text) for text in ("wrong", "unknown", "odd")}
    assert [one.passes for one in said.values()] == [False, None, None]
    assert "has to return True, False or None" in said["odd"].detail
    assert ask("my_checker:by_path", candidate="right").passes is True
    assert ask("my_checker:leaves").passes is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("my_checker.py", "with {problem} and {candidate}"),
        ("no-such-program-at-all {candidate}", "there is no program"),
        ("sh -c 'unclosed {candidate}", "No closing quotation"),
    ],
)
def test_what_is_no_checker_is_said_before_anything_runs(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ForeignChecker(text)
