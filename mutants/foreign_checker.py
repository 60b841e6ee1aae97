"""A checker that is not ours, as a command or a Python function, and what it says of one candidate."""

import contextlib
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..reward.sandbox.limits import GIB, Limits
from ..reward.sandbox.process import signal_name, wait_readable
from ..suites.errors import InputError

TIME_LIMIT_S = 300.0
LIMITS = Limits(memory_bytes=96 * GIB, tmp_bytes=8 * GIB, processes=4096)  # a build of torch extensions fits
_END_S = 10.0  # for the supervisor to kill and reap what it started
_DETAIL = 300
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_TRACEBACK = "Traceback (most recent call last)"
#: Further lines of the message that torch gives to every error of a CUDA call.
_CUDA_ADVICE = (
    "CUDA kernel errors might",
    "For debugging consider",
    "Compile with `TORCH_USE_CUDA_DSA`",
    "Search for `cuda",
)


@dataclass(frozen=True, slots=True)
class Said:
    """One answer.

    Attributes:
        passes: None = no verdict; it counts neither for nor against the candidate.
        seconds: wall clock.
        detail: the end of what was printed, or why there is no verdict.
    """

    passes: bool | None
    seconds: float
    detail: str = ""


class ForeignChecker:
    """Asks a checker about candidates, each in a fresh process; usable from several threads.

    Args:
        text: a command in which `{problem}` and `{candidate}` stand for paths (exit code 0 = pass, 1 = fail, anything
            else = no verdict), or `package.module:function` (see `foreign_call`).
        time_limit: wall-clock seconds for one answer.

    Raises:
        InputError: it is neither, or the command's program is not there.
    """

    def __init__(self, text: str, time_limit: float = TIME_LIMIT_S) -> None:
        self.time_limit = time_limit
        self.function = _FUNCTION.fullmatch(text.strip()) is not None
        if self.function:
            call = f"{__package__}.foreign_call"
            self.command = [sys.executable, "-m", call, text.strip(), "{problem}", "{candidate}"]
            return
        try:
            self.command = shlex.split(text)
        except ValueError as error:
            raise InputError(f"checker {text!r}: {error}") from error
        if "{candidate}" not in text:
            raise InputError(
                f"checker {text!r}: give a command with {{problem}} and {{candidate}} where their paths go, or a "
                "Python function as package.module:function"
            )
        if shutil.which(self.command[0]) is None:
            raise InputError(f"checker {text!r}: there is no program {self.command[0]}")

    def ask(self, problem: str, candidate: str) -> Said:
        """What it says of a candidate's source for a problem's."""
        started = time.monotonic()
        request = {
            "command": self.command,
            "problem": problem,
            "candidate": candidate,
            "limits": LIMITS.to_dict(),
        }
        ended = self._ended(json.dumps(request).encode())
        passes, detail = self._read(ended)
        return Said(passes, time.monotonic() - started, detail[-_DETAIL:])

    def _ended(self, request: bytes) -> Mapping[str, Any] | None:
        """The supervisor's last words; {} where there are none, None where the time was up."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        lifeline, hold = os.pipe2(os.O_CLOEXEC)
        passed = {"control": theirs.fileno(), "lifeline": lifeline}
        command = [sys.executable, "-P", "-m", f"{__package__}.foreign_child"]
        with ours:
            try:
                child = subprocess.Popen(
                    [*command, *(text for name, fd in passed.items() for text in (f"--{name}", str(fd)))],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=tuple(passed.values()),
                    start_new_session=True,
                )
            except BaseException:
                os.close(hold)
                raise
            finally:
                theirs.close()
                os.close(lifeline)
            try:
                assert child.stdin is not None
                with contextlib.suppress(BrokenPipeError), child.stdin:
                    child.stdin.write(request)
                if wait_readable([ours.fileno()], time.monotonic() + self.time_limit):
                    return _report(ours)
                ours.shutdown(socket.SHUT_WR)
                wait_readable([ours.fileno()], time.monotonic() + _END_S)
                return None
            finally:
                os.close(hold)  # reaches the supervisor even where it no longer reads its socket
                _end(child)

    def _read(self, ended: Mapping[str, Any] | None) -> tuple[bool | None, str]:
        if ended is None:
            return None, f"no answer within {self.time_limit:.0f} s"
        output, status = str(ended.get("output", "")).strip(), ended.get("status")
        if ended.get("by"):
            return None, f"over its limit of {ended['by']}"
        if status is None:
            return None, "the process around the checker is gone"
        if os.WIFSIGNALED(status):
            return None, f"{output}\nended by {signal_name(os.WTERMSIG(status))}"
        match os.waitstatus_to_exitcode(status):
            case 0:
                return True, output
            case 1 if self.function or not _died_of_exception(output):
                return False, output
            case code:
                return None, f"{output}\nexit code {code}"


def _died_of_exception(output: str) -> bool:
    """Whether a traceback is the last thing printed: Python's exit code for that is 1, which is no verdict."""
    start = output.rfind(_TRACEBACK)
    if start < 0:
        return False
    lines = [line for line in output[start:].splitlines()[1:] if line.strip() and not line.startswith(_CUDA_ADVICE)]
    rest = [line for line in lines if not line.startswith(" ")]  # frames are indented; then comes the exception
    return bool(rest) and lines[-1] == rest[0]


def _report(control: socket.socket) -> Mapping[str, Any]:
    data = control.recv(1 << 20)
    return dict(json.loads(data)) if data else {}


def _end(child: "subprocess.Popen[bytes]") -> None:
    try:
        child.wait(_END_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
