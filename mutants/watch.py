"""`kernelward calibrate --watch`: keep a kill matrix up to date beside training.

    with Watcher(WatchOptions(out=Path("calibration"), problems=("examples/problems",), bank=bank_path())):
        trainer.train()

The watcher looks at the files that a calibration is made from (suites, operators, substrates, problems, protocols, the
bank of accepted kernels, code and versions), and where content has changed it starts a pass (`watch_pass`): a fresh
process of the lowest priority (`watch_priority`) that measures the cells which are stale, for a budget, and publishes
(`watch_publish`). While cells are left another pass follows; for some minutes after an edit it works all of the time,
later a part of the time. A change during a pass ends it early; newly accepted kernels, of which a training has some in
every step, wait for the next one.

Nothing has to be saved when it is killed: cells are committed one row at a time, publications replace a file, and a
restart begins with a pass that evaluates what is missing. One watcher works on a folder, held by a lock that the system
releases; others stand by and take over. What fails (a full disk, a lost GPU, a file that is half written) leaves the
last publication as it is, is said, and is tried again.

`OUT/watch.json` says how it is: `pid`, `state` (`measuring`, `waiting`, `standby`, `failed`, `stopped`), `time`,
`error` (null where all is well), `pass`.
"""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..suites.errors import InputError
from .watch_files import BANK, Files, changed_kinds, replace_file, versions
from .watch_options import WatchOptions

ROOT = Path(__file__).resolve().parent
GRACE_S = 25.0  # that a pass may take to publish when it is asked to end while it measures
PREPARE_S = 600.0  # the same before it measures: what it prepares is needed by the next pass too
STOP_S = 10.0
IDLE_S = 30.0  # before another pass where one got nothing done
AWAITED_S = 300.0  # after an edit, in which what it made stale is measured without rests
BANK_S = 30.0  # between a pass and the next one for nothing but newly accepted kernels
_RETRY_S = (5.0, 300.0)  # after a failure: at first, and at most

Say = Callable[[str], None]


def fingerprints(options: WatchOptions, files: Files) -> dict[str, str]:
    """What a calibration is made from now, by kind."""
    named = [Path(p).expanduser() for p in options.problems]
    problems = named if any(p.is_dir() for p in named) else [*named, Path("examples/problems")]
    code = [p for folder in (ROOT, ROOT.parent / "suites") for p in folder.glob("*.py")]
    return {
        "suites": files.of([options.suites or options.out / "suites", ROOT.parent / "suites" / "library"], (".yaml",)),
        "operators": files.of([ROOT / "operators"], (".py",)),
        "substrates": files.of([options.substrates or ROOT / "substrates"], (".py",)),
        "problems": files.of(problems, (".py",)),
        "protocols": files.of([ROOT.parent / "configs" / "protocols"], (".yaml",)),
        "code": files.of(code, (".py",)),
        "versions": versions(),
        BANK: "" if options.bank is None else _bank_mark(options.bank),
    }


def _bank_mark(bank: Path) -> str:
    """Which kernels it holds; what becomes of them is the watcher's own doing."""
    import sqlite3

    if not bank.is_file():
        return ""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{bank}?mode=ro", uri=True, timeout=1.0)) as connection:
            return str(connection.execute("SELECT count(*), max(id) FROM kernels").fetchone())
    except sqlite3.Error:
        return ""


@contextlib.contextmanager
def only_one(out: Path) -> Iterator[bool]:
    """Whether this process is the one that works on a folder; the system ends that with the process.

    Raises:
        OSError: the folder or the lock cannot be made.
    """
    out.mkdir(parents=True, exist_ok=True)
    lock = os.open(out / "watch.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield True
    finally:
        os.close(lock)


def holder(out: Path) -> str:
    """The process that works on a folder, as text."""
    with contextlib.suppress(OSError):
        return f"process {(out / 'watch.lock').read_text().strip()}"
    return "another process"


@dataclass(slots=True)
class _Pass:
    """A pass that is running.

    Attributes:
        output, errors: memory files with what it prints.
        began: by the clock of files.
        ending: when it was asked to end.
    """

    process: subprocess.Popen[bytes]
    output: int
    errors: int
    began: float
    ending: float | None = None

    def text(self, fd: int) -> str:
        size = os.fstat(fd).st_size
        return os.pread(fd, 1 << 20, max(0, size - (1 << 20))).decode("utf-8", "replace")


@dataclass(slots=True)
class State:
    """What the loop knows.

    Attributes:
        seen: the files as the last pass found them.
        looked: the files at the last look: only what is the same in two looks is acted on.
        again: when another pass is due without any change; None = not at all.
        ended: when the last pass did.
        awaited: when the last edit came of which something is stale yet; None = nothing.
        failures: passes in a row.
    """

    seen: dict[str, str] = field(default_factory=dict)
    looked: dict[str, str] = field(default_factory=dict)
    again: float | None = 0.0
    ended: float = -BANK_S
    awaited: float | None = None
    failures: int = 0
    number: int = 0
    error: str | None = None

    def urgency(self, changed: Sequence[str], clock: float) -> dict[str, bool]:
        """Of the pass that begins: whether it is `eager` for a core, and `awaited`, so that it does not rest."""
        first, edited = self.number == 1, any(kind != BANK for kind in changed)
        self.awaited = clock if edited else self.awaited
        within = self.awaited is not None and clock - self.awaited < AWAITED_S
        return {"eager": first or edited, "awaited": first or within}

    def measured(self, stale: int) -> None:
        """A pass ended and left so many mutants stale."""
        self.awaited = self.awaited if stale else None


class Supervisor:
    """The loop of a watcher, which looks, starts passes, and measures nothing itself.

    Args:
        options: how.
        say: called with lines for people.
    """

    def __init__(self, options: WatchOptions, say: Say) -> None:
        self.options = options
        self._say = say
        self._ended = threading.Event()
        self._files = Files()
        self._pass: _Pass | None = None
        self._state = State()
        self._status: tuple[Any, ...] = ()

    def end(self) -> None:
        """Return from `run` soon. From a signal handler or another thread."""
        self._ended.set()

    def run(self) -> None:
        """Work, or stand by while another process does, until `end` is called.

        Raises:
            InputError: the folder cannot be used.
        """
        said = False
        while not self._gone():
            try:
                with only_one(self.options.out) as mine:
                    if mine:
                        self._work()
                        return
                    if not said:
                        self._say(f"{holder(self.options.out)} watches {self.options.out} already; standing by")
                    said = True
            except OSError as error:
                if isinstance(error, PermissionError | NotADirectoryError):
                    raise InputError(f"--out {self.options.out}: cannot be used: {error.strerror}") from error
                self._say(f"{self.options.out}: {error.strerror or error}; it is tried again")
            self._ended.wait(self.options.poll_s)

    def _gone(self) -> bool:
        return self._ended.is_set() or self.options.parent not in (None, os.getppid())

    def _work(self) -> None:
        try:
            while not self._gone():
                self._look()
                self._ended.wait(self.options.poll_s)
        finally:
            self._finish()
            self._publish_status("stopped")

    def _look(self) -> None:
        state = self._state
        now = fingerprints(self.options, self._files)
        files = {kind: mark for kind, mark in now.items() if kind != BANK}  # its rows are never half written
        steady, state.looked = files == state.looked, files
        changed = changed_kinds(state.seen, now) if steady else ()
        edited = [kind for kind in changed if kind != BANK]
        if self._pass is not None:
            self._attend(self._pass, bool(edited))
        if self._pass is None and steady:
            clock = time.monotonic()
            due = state.again is not None and clock >= state.again
            if edited or due or (changed and clock - state.ended >= BANK_S):
                self._start(now, changed if state.number else ())

    def _start(self, now: dict[str, str], changed: tuple[str, ...]) -> None:
        state = self._state
        state.number += 1
        state.seen, state.again = now, None
        if changed:
            self._say(f"changed: {', '.join(changed)}")
        request = {
            "options": self.options.to_json(),
            "pass": state.number,
            "changed": changed,
            **state.urgency(changed, time.monotonic()),
            "parent": os.getpid(),
        }
        output, errors = (os.memfd_create(name, os.MFD_CLOEXEC) for name in ("output", "errors"))
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", f"{__package__}.watch_pass", json.dumps(request)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        self._pass = _Pass(process, output, errors, time.time())
        self._publish_status("measuring")

    def _attend(self, running: _Pass, outdated: bool) -> None:
        if running.process.poll() is None:
            if outdated and running.ending is None:
                running.process.terminate()
                running.ending = time.monotonic()
            elif running.ending is not None:
                grace = GRACE_S if self._published_since(running.began) else PREPARE_S
                if time.monotonic() - running.ending > grace:
                    running.process.kill()  # what it committed is kept
            return
        self._pass = None
        self._state.ended = time.monotonic()
        try:
            self._conclude(running)
        finally:
            os.close(running.output)
            os.close(running.errors)

    def _published_since(self, began: float) -> bool:
        try:
            return (self.options.out / "coverage.json").stat().st_mtime >= began
        except OSError:
            return False

    def _conclude(self, running: _Pass) -> None:
        state, code = self._state, running.process.returncode
        result = _result(running.text(running.output))
        if result is not None:  # also where it was ended while it was leaving
            state.failures, state.error = 0, None
            state.measured(result["stale"]["mutants"])
            bank = result["bank"] or {"waiting": 0, "examined": 0}
            if result["stale"]["mutants"] or (bank["waiting"] and bank["examined"]):
                state.again = time.monotonic() + (0.0 if result["evaluations"] or bank["examined"] else IDLE_S)
            self._say(_line(result))
            self._publish_status("waiting")
        elif running.ending is not None:
            state.again = time.monotonic()
            self._say(f"pass {state.number} was overtaken by changes (code {code})")
        else:
            state.failures += 1
            delay = min(_RETRY_S[1], _RETRY_S[0] * 2 ** (state.failures - 1))
            state.again = time.monotonic() + delay
            lines = running.text(running.errors).strip().splitlines()
            error = lines[-1] if lines else f"the pass ended with code {code}"
            if error != state.error:
                self._say(f"{error} (again in {delay:.0f} s, or at the next change)")
            state.error = error
            self._publish_status("failed")

    def _finish(self) -> None:
        running = self._pass
        if running is None:
            return
        self._pass = None
        running.process.terminate()
        try:
            running.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            running.process.kill()
            running.process.wait()
        os.close(running.output)
        os.close(running.errors)

    def _publish_status(self, state: str) -> None:
        found = {
            "pid": os.getpid(),
            "state": state,
            "time": round(time.time(), 3),
            "error": self._state.error,
            "pass": self._state.number,
        }
        try:
            replace_file(self.options.out / "watch.json", json.dumps(found) + "\n")
        except OSError as error:
            self._say(f"{self.options.out / 'watch.json'}: {error.strerror or error}")


def _result(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _line(result: dict[str, Any]) -> str:
    overall, stale = result["overall"], result["stale"]
    share = "nothing witnessed yet"
    if overall is not None and overall["share"] is not None:
        share = f"{100 * overall['share']:.1f} % of {overall['witnessed']} mutants detected"
    rest = [f"{stale['mutants']} of {stale['of']} stale" if stale["mutants"] else "all up to date"]
    rest += [f"{len(result['faults'])} faults, the first: {result['faults'][0]}"] if result["faults"] else []
    rest += result["warnings"]
    return f"pass {result['pass']}: {result['evaluations']} evaluations, {share}; {'; '.join(rest)}"


def watch(options: WatchOptions, say: Say | None = None) -> int:
    """Watch in this process until SIGTERM or SIGINT. Main thread only.

    Returns:
        0, or 130 after SIGINT.

    Raises:
        InputError: the folder cannot be used.
    """
    supervisor = Supervisor(options, say or _to_stderr)
    code = 0

    def end(number: int, _: object) -> None:
        nonlocal code
        code = 130 if number == signal.SIGINT else 0
        supervisor.end()

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        supervisor.run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code


def _to_stderr(line: str) -> None:
    with contextlib.suppress(OSError):  # a log on a full disk is no reason to stop
        print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


class Watcher:
    """A watcher in a process of its own, from Python; a context manager. It ends when this process ends.

    Several may be started on one folder, on every rank for one: the others stand by.

    Args:
        options: how; its log goes to `out`/watch.log.
    """

    def __init__(self, options: WatchOptions) -> None:
        self.options = options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; no effect while it runs.

        Raises:
            InputError: the folder cannot be written.
        """
        if self.alive:
            return
        options = replace(self.options, parent=os.getpid())
        try:
            self.options.out.mkdir(parents=True, exist_ok=True)
            with (self.options.out / "watch.log").open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", __name__, options.to_json()],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C reaches the trainer, which then stops it
                )
        except OSError as error:
            raise InputError(f"{self.options.out}: the watcher cannot be started: {error.strerror}") from error

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """End it; a pass that runs publishes first, within ten seconds."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_S + 5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


if __name__ == "__main__":
    sys.exit(watch(WatchOptions.from_json(sys.argv[1])))
