"""A watcher as it runs: real processes, killed at any moment, beside another one, and on code that is edited."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kernelward.mutants.watch import AWAITED_S, BANK_S, State, Supervisor, Watcher, fingerprints
from kernelward.mutants.watch_files import BANK, Files, changed_kinds
from kernelward.mutants.watch_options import WatchOptions
from kernelward.mutants.watch_publish import read_coverage
from kernelward.suites.errors import InputError
from watched import DECLARED, DENSE, NEW, Watched

ROOT = Path(__file__).parents[2]
PATIENCE_S = 240.0  # the machine may be busy; what is asserted about time is in a test of its own
OPERATORS = ("__init__.py", "rules.py", "boundary.py", "arithmetic.py")


def options(watched: Watched, **changes: Any) -> WatchOptions:
    values = {"problems": (str(watched.problems),), "substrates": watched.substrates, "device": "cpu", "nice": 0}
    return WatchOptions(out=watched.out, **{**values, "workers": 1, "per_substrate": 4, "poll_s": 0.2, **changes})


def until(found: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        value = found()
        if value:
            return value
        time.sleep(0.1)
    raise AssertionError(f"waited {PATIENCE_S:.0f} s for {what}")


def cells(watched: Watched) -> int:
    with sqlite3.connect(watched.out / "matrix.sqlite") as connection:
        return connection.execute("SELECT count(*) FROM cells").fetchone()[0]


def history(watched: Watched) -> list[dict]:
    place = watched.out / "history.jsonl"
    return [json.loads(line) for line in place.read_text().splitlines()] if place.is_file() else []


def passes_of(pid: int) -> list[int]:
    """Processes that a supervisor started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package in a copy that may be edited, with a few operators; processes of the test find it first."""
    package = tmp_path / "path" / "kernelward"
    for room in ("configs", "suites", "reward", "mutants"):
        shutil.copytree(ROOT / room, package / room)
    for module in (package / "mutants" / "operators" / "triton").glob("*.py"):
        if module.name not in OPERATORS:
            module.unlink()
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    return package


@pytest.mark.slow
def test_edits_are_followed_through_kills_and_only_what_is_stale_is_measured(tmp_path: Path, tree: Path) -> None:
    watched = Watched(tmp_path / "watched")
    first = Watcher(options(watched))
    first.start()
    pid = until(lambda: cells(watched) and json.loads((watched.out / "watch.json").read_text())["pid"], "a first cell")
    (running,) = passes_of(pid)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{running}").exists(), "the end of the pass")
    kept = cells(watched)
    assert kept > 0

    with Watcher(options(watched)):
        until(lambda: history(watched) and not history(watched)[-1]["stale"]["mutants"], "a pass that is done")
        (done,) = [line for line in history(watched) if not line["stale"]["mutants"]]
        mutants = done["stale"]["of"]
        assert mutants == 4
        assert cells(watched) == kept + sum(line["evaluations"] for line in history(watched))
        assert {"boundary", "arithmetic"} == set(done["families"])

        edited = time.time()
        suite = watched.write_suite(DENSE, DECLARED, NEW)
        found = until(lambda: next((h for h in history(watched) if "suites" in h["changed"]), None), "the new suite")
        assert found["suites"]["tiny_relu"]["hash"] == suite.hash
        assert found["evaluations"] == mutants
        assert found["time"] - edited < 60 or os.getloadavg()[0] > 2 * (os.cpu_count() or 1)

        (tree / "mutants" / "operators" / "triton" / "arithmetic.py").unlink()
        found = until(lambda: next((h for h in history(watched) if "operators" in h["changed"]), None), "the operators")
        assert set(found["families"]) == {"boundary"}
        assert found["evaluations"] <= (mutants - 1) * 12
    assert json.loads((watched.out / "watch.json").read_text())["state"] == "stopped"


def test_what_an_edit_made_stale_is_worked_on_without_rests_until_it_is_measured() -> None:
    state = State(number=1)
    assert state.urgency((), 0.0) == {"eager": True, "awaited": True}
    state.measured(stale=500)
    state.number = 2
    assert state.urgency((), 60.0) == {"eager": False, "awaited": False}, "the backlog at the start waits"
    assert state.urgency(("bank", "operators"), 100.0) == {"eager": True, "awaited": True}
    state.measured(stale=7)
    assert state.urgency(("bank",), 160.0) == {"eager": False, "awaited": True}
    state.measured(stale=0)
    assert state.urgency(("bank",), 220.0) == {"eager": False, "awaited": False}


def test_an_edit_that_is_too_much_work_is_not_worked_on_without_rests_for_ever() -> None:
    state = State(number=5)
    state.urgency(("substrates",), 1000.0)
    state.measured(stale=900)
    assert state.urgency((), 1000.0 + AWAITED_S - 1)["awaited"]
    assert not state.urgency((), 1000.0 + AWAITED_S + 1)["awaited"]


def test_a_second_watcher_stands_by_and_takes_over(tmp_path: Path) -> None:
    watched = object.__new__(Watched)
    watched.out = watched.problems = watched.substrates = tmp_path / "out"  # nothing to measure: passes fail at once
    script = "import sys; from kernelward.mutants.watch import watch; from kernelward.mutants.watch_options import *\n"
    script += "sys.exit(watch(WatchOptions.from_json(sys.argv[1])))"
    command = [sys.executable, "-c", script, options(watched).to_json()]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as one:
        lock = watched.out / "watch.lock"
        until(lambda: lock.is_file() and lock.read_text(), "the lock")
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as two:
            assert two.stderr is not None
            assert f"process {one.pid} watches" in two.stderr.readline()
            one.kill()
            until(lambda: lock.read_text().strip() == str(two.pid), "the other one")
            two.send_signal(signal.SIGINT)
            assert two.wait(30) == 130
    assert json.loads((watched.out / "watch.json").read_text())["state"] == "stopped"


def test_a_pass_that_fails_is_said_once_and_tried_again(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "problems").mkdir()
    broken = WatchOptions(out=tmp_path / "out", problems=(str(tmp_path / "problems"),), poll_s=0.05, nice=0)
    supervisor = Supervisor(broken, said.append)

    def failed() -> list[str]:
        supervisor._look()
        return [line for line in said if "nothing to calibrate" in line]

    (line,) = until(failed, "a failed pass")
    assert "again in 5 s" in line
    status = json.loads((tmp_path / "out" / "watch.json").read_text())
    assert status["state"] == "failed"
    assert "nothing to calibrate" in status["error"]
    assert supervisor._state.again is not None


def test_new_kernels_of_a_policy_hide_no_edit_and_end_no_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = {"suites": "a", BANK: "0"}
    monkeypatch.setattr("kernelward.mutants.watch.fingerprints", lambda *_: dict(marks))
    supervisor = Supervisor(WatchOptions(out=tmp_path), lambda _: None)
    started: list[tuple[str, ...]] = []
    ended: list[bool] = []
    monkeypatch.setattr(supervisor, "_attend", lambda _, outdated: ended.append(outdated))

    def start(now: dict[str, str], changed: tuple[str, ...]) -> None:
        supervisor._state.seen, supervisor._state.again = now, None
        supervisor._state.number += 1
        supervisor._state.ended = time.monotonic()  # it ends at once
        started.append(changed)

    monkeypatch.setattr(supervisor, "_start", start)

    def look(**changes: str) -> None:
        for _ in range(2):
            marks[BANK] += "."  # a training has some more at every look
            marks.update(changes)
            supervisor._look()

    look()
    assert started == [()]  # the first pass is about everything
    supervisor._pass = object()  # type: ignore[assignment]
    look()
    assert not any(ended)
    look(suites="b")
    assert ended[-1]
    supervisor._pass = None
    look()
    assert started[1:] == [(BANK, "suites")]
    look()
    assert len(started) == 2  # nothing but new kernels: they wait a while
    supervisor._state.ended -= BANK_S
    look()
    assert started[2:] == [(BANK,)]


def test_a_watcher_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = (
        "import os, sys, time; from pathlib import Path\n"
        "from kernelward.mutants.watch import Watcher; from kernelward.mutants.watch_options import WatchOptions\n"
        "w = Watcher(WatchOptions(out=Path(sys.argv[1]), problems=('/nowhere.py',), poll_s=0.1)); w.start()\n"
        "print(w._process.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        pid = int(trainer.stdout.readline())
        until(lambda: (tmp_path / "watch.lock").is_file(), "its lock")
        trainer.kill()
    until(lambda: not _runs(pid), "its end")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_folder_that_cannot_be_made_is_the_users_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="watcher cannot be started"):
        Watcher(WatchOptions(out=tmp_path / "file")).start()


def test_options_survive_the_command_line(tmp_path: Path) -> None:
    given = WatchOptions(out=tmp_path, problems=("a", "b"), bank=tmp_path / "bank", per_substrate=3, device="cuda:1")
    assert WatchOptions.from_json(given.to_json()) == given


@pytest.mark.parametrize("kind", ["suites", "substrates", "problems"])
def test_a_kind_changes_with_the_content_of_its_files(tmp_path: Path, kind: str) -> None:
    folders = {name: tmp_path / name for name in ("suites", "substrates", "problems")}
    suffix = ".yaml" if kind == "suites" else ".py"
    for folder in folders.values():
        folder.mkdir()
    file = folders[kind] / f"one{suffix}"
    file.write_text("a")
    given = WatchOptions(
        out=tmp_path / "out",
        problems=(str(folders["problems"]),),
        suites=folders["suites"],
        substrates=folders["substrates"],
    )
    files = Files()
    before = fingerprints(given, files)
    os.utime(file, (1, 1))
    file.with_name(f".half{suffix}").write_text("draft")
    assert changed_kinds(before, fingerprints(given, files)) == ()
    file.write_text("b")
    changed = fingerprints(given, files)
    assert changed_kinds(before, changed) == (kind,)
    file.with_name(f"two{suffix}").write_text("")
    assert changed_kinds(changed, fingerprints(given, files)) == (kind,)


def test_files_that_did_not_change_are_not_read_again(tmp_path: Path) -> None:
    for i in range(5):
        file = tmp_path / f"{i}.py"
        file.write_text(str(i))
        os.utime(file, (1, 1))
    files = Files()
    files.of([tmp_path], (".py",))
    time.sleep(2.1)  # a file that was changed just now may change again within a tick of its clock
    files.of([tmp_path], (".py",))
    read = files.read
    files.of([tmp_path], (".py",))
    assert (read, files.read) == (10, 10)


def test_nothing_was_published_reads_as_nothing(tmp_path: Path) -> None:
    assert read_coverage(tmp_path) == {}
    (tmp_path / "coverage.json").write_text('{"format": 1, "ov')
    assert read_coverage(tmp_path) == {}
