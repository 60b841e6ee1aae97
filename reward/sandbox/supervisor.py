"""The process between zygote and candidate: starts it, drains its output, watches its use of memory, ends it.

Where the machine allows it is pid 1 of the candidate's own pid namespace, so that its end is the end of everything the
candidate started. Elsewhere it is the subreaper of the candidate's processes and kills them one by one.
"""

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .limits import Limits

WATCH_INTERVAL = 0.025
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Tail:
    """The beginning and the end of a stream, bounded."""

    limit: int
    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)
    dropped: int = 0

    def add(self, data: bytes) -> None:
        """Keep what fits: the first quarter of the limit from the start, the rest from the end."""
        room = self.limit // 4 - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        self.tail += data
        excess = len(self.tail) - (self.limit - self.limit // 4)
        if excess > 0:
            del self.tail[:excess]
            self.dropped += excess

    def text(self) -> str:
        """What was kept, with a mark where something was dropped."""
        mark = f"\n[... {self.dropped} bytes dropped ...]\n".encode() if self.dropped else b""
        return bytes(self.head + mark + self.tail).decode("utf-8", "replace")


@dataclass
class Supervisor:
    """One candidate's supervisor.

    Attributes:
        control: seqpacket socket to the judge: reports out, `output` and `end` in.
        lifeline: a pipe that reaches its end when the zygote dies.
        limits: what the candidate may use.
        start: runs in the forked child and never returns.
        directory: the candidate's temporary directory where it is an ordinary folder, whose size must be watched.
        alone: this is pid 1 of a pid namespace, so /proc shows the candidate's processes and no others.
        handed_over: the candidate's sockets, closed here once it has them.
    """

    control: socket.socket
    lifeline: int
    limits: Limits
    start: Callable[[int], None]
    directory: Path | None
    alone: bool
    handed_over: tuple[socket.socket, ...] = ()

    def announce(self) -> None:
        """Hello to the judge, with a descriptor by which it can kill this process at once."""
        fds = []
        with contextlib.suppress(OSError):  # a kernel without pidfds: the judge then relies on our answer alone
            fds.append(os.pidfd_open(os.getpid()))
        with contextlib.suppress(OSError):  # a judge that is gone needs no hello
            socket.send_fds(self.control, [b'{"event": "started"}'], fds)
        for fd in fds:
            os.close(fd)

    def run(self) -> None:
        """Fork the candidate, watch it until it ends or the judge says so, and report how it ended."""
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        woken, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for fd in (read_end, woken, wake, self.lifeline):
                os.close(fd)
            self.control.close()
            try:
                self.start(write_end)
            except BaseException:
                traceback.print_exc()  # to the pipe, or to the zygote's own log
            finally:
                os._exit(70)
        for sock in self.handed_over:
            sock.close()
        os.close(write_end)
        os.set_blocking(read_end, False)
        self._pid = pid
        self._output = Tail(self.limits.output_bytes)
        self._pipe = read_end
        self._woken = woken
        self._baseline = memory_of(os.getpid())
        self._expected = 0
        self._looks = 0
        status, by = self._watch()
        self._kill_all()
        if status is None:
            status = self._status
        self._drain()
        self._send({"event": "exit", "status": status, "by": by, "output": self._output.text()})

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # a judge that is gone needs no report
            self.control.send(json.dumps(message).encode())

    def _watch(self) -> tuple[int | None, str | None]:
        """Until the candidate's process ends (its wait status), or has to (who or what says so)."""
        self._status: int | None = None
        poller = select.poll()
        for fd in (self.control.fileno(), self.lifeline, self._pipe, self._woken):
            poller.register(fd, select.POLLIN)
        next_look = time.monotonic() + WATCH_INTERVAL
        while True:
            wait = max(0.0, next_look - time.monotonic())
            for fd, _event in poller.poll(wait * 1000):
                if fd == self.control.fileno():
                    if not self._answer():
                        return None, "judge"
                elif fd == self.lifeline:
                    return None, "zygote"
                elif fd == self._woken:
                    os.read(self._woken, 4096)
                    if self._reap_candidate():
                        return self._status, None
                elif not self._drain():
                    poller.unregister(self._pipe)
            if time.monotonic() >= next_look:
                over = self._over_limit()
                if over:
                    return None, over
                next_look = time.monotonic() + WATCH_INTERVAL

    def _reap_candidate(self) -> bool:
        """Collect what has ended, orphans of the candidate included; whether the candidate itself has."""
        while self._status is None:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return False
            if pid == self._pid:
                self._status = status
        return True

    def _answer(self) -> bool:
        """Answer one request of the judge; False to end."""
        try:
            request = self.control.recv(4096)
        except OSError:
            return False
        if request == b"output":
            self._drain()
            self._send({"event": "output", "output": self._output.text()})
            return True
        if request.startswith(b"buffers "):
            self._expected = int(request.split()[1])
            return True
        return False

    def _drain(self) -> bool:
        """Read at most a few MiB of the candidate's output; False at its end."""
        for _ in range(64):
            try:
                data = os.read(self._pipe, 1 << 16)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._output.add(data)
        return True

    def _processes(self) -> list[int]:
        everything = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        own = os.getpid()
        if self.alone:
            return [pid for pid in everything if pid != own]
        parents = {}
        for pid in everything:
            fields = stat_fields(pid)
            if fields:
                parents[pid] = int(fields[1])
        found = []
        for pid in parents:
            ancestor = parents.get(pid, 0)
            while ancestor > 1 and ancestor != own:
                ancestor = parents.get(ancestor, 0)
            if ancestor == own:
                found.append(pid)
        return found

    def _over_limit(self) -> str | None:
        tasks = 0
        memory = -self._expected
        for pid in self._processes():
            fields = stat_fields(pid)
            if fields:
                tasks += int(fields[17])
                memory += max(0, memory_of(pid) - self._baseline)
        if tasks > self.limits.processes:
            return "processes"
        if memory > self.limits.memory_bytes:
            return "memory-limit"
        self._looks += 1
        if self.directory is not None and self._looks % 10 == 0 and folder_size(self.directory) > self.limits.tmp_bytes:
            return "disk"
        return None

    def _kill_all(self) -> None:
        """SIGKILL to everything that descends from this process, until nothing is left; reap all of it."""
        if self.alone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        while True:
            if not self.alone:
                for pid in self._processes():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            try:
                pid, status = os.waitpid(-1, 0 if self.alone else os.WNOHANG)
            except ChildProcessError:
                return
            if pid == self._pid:
                self._status = status
            if pid == 0:
                time.sleep(0.001)


def stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name (state first), or [] if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            data = file.read()
    except OSError:
        return []
    return data[data.rindex(b")") + 2 :].decode().split()


def memory_of(pid: int) -> int:
    """Bytes of anonymous and shared memory that a process has in RAM; mapped files do not count."""
    total = -1
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith((b"RssAnon", b"RssShmem")):
                    total = max(total, 0) + (int(line.split()[1]) << 10)
        if total < 0:  # an older kernel: no split by kind
            with open(f"/proc/{pid}/statm", "rb") as file:
                fields = file.read().split()
            total = (int(fields[1]) - int(fields[2])) * PAGE
    except OSError:
        return 0
    return total


def folder_size(folder: Path) -> int:
    """Bytes that a folder's files occupy. Files that come and go meanwhile are not counted."""
    total = 0
    for root, _folders, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(root, name)).st_blocks * 512
    return total


def report_failure(control: socket.socket, error: BaseException) -> None:
    """Tell the judge that no candidate could be started; the fault is ours."""
    message = {"event": "failed", "message": f"{type(error).__name__}: {error}"[:1000]}
    with contextlib.suppress(OSError):
        control.send(json.dumps(message).encode())
    print(message["message"], file=sys.stderr)
