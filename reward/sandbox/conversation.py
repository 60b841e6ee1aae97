"""The judge's conversation with one child and its supervisor: requests, replies, deadlines, and the end of it."""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import process
from .failure import ChildFailure, Phase
from .replies import death
from .wire import FrameReader, WireError, parse_object, send_frame

SPAWN_S = 60.0
END_S = 10.0
GONE_S = 2.0


@dataclass(slots=True)
class Clock:
    """When a call is over: two clocks of which one runs, the candidate's own and that of its compilers.

    Attributes:
        deadline: of the one that runs, on `time.monotonic`.
        left: seconds of the one that stands.
        compiling: which one runs.
    """

    deadline: float
    left: float = 0.0
    compiling: bool = False

    def switch(self, compiling: bool) -> None:
        """Let the other one run, if it does not yet."""
        if compiling != self.compiling:
            now = time.monotonic()
            self.deadline, self.left = now + self.left, self.deadline - now
            self.compiling = compiling

    def compilers_left(self) -> float:
        """Seconds that compilers may still take."""
        return max(0.0, self.deadline - time.monotonic() if self.compiling else self.left)


class Conversation:
    """Two sockets: `channel` to the child, whose words are claims, and `control` to its supervisor, which is ours.

    The child says when compilers of ours work for it. A lie about that gains it no more than `compile_s`, once.
    """

    def __init__(self, control: socket.socket, channel: socket.socket, compile_s: float = 0.0) -> None:
        self._control = control
        self._channel = channel
        self._control.setblocking(False)
        self._channel.setblocking(False)
        self._reader = FrameReader(channel)
        self._calls = 0
        self._pidfd = -1
        self._output: str | None = None
        self._exit: dict[str, Any] | None = None
        self._compile_s = self._compile_left = compile_s
        self.closed = False

    def hello(self) -> None:
        """Wait for the child's first frame.

        Raises:
            ChildFailure: `infra_error`: it was never there.
        """
        try:
            self._await_reply("spawn", 0, Clock(time.monotonic() + SPAWN_S), SPAWN_S)
        except ChildFailure as failure:
            self.close()
            said = failure.output.strip().splitlines()[-1:]  # the last line of a traceback names the fault
            message = ": ".join([failure.message or failure.reason, *said])
            raise ChildFailure("infra_error", "spawn", message, "spawn", output=failure.output) from None

    def call(self, phase: Phase, message: dict[str, Any], fds: Sequence[int], seconds: float) -> dict[str, Any]:
        """Send one request and wait for its reply, which is the child's word and nothing more.

        Raises:
            ChildFailure: no reply within the seconds, a malformed one, or the child is gone. The conversation is over.
        """
        if self.closed:
            raise ChildFailure("infra_error", "closed", "the session has ended", phase)
        self._calls += 1
        clock = Clock(time.monotonic() + seconds, self._compile_left)
        try:
            self._channel.settimeout(max(0.05, seconds))
            send_frame(self._channel, message | {"id": self._calls}, fds)
            self._channel.setblocking(False)
        except TimeoutError:
            raise self._fail(ChildFailure("timeout", phase, f"no answer within {seconds:g} s", phase)) from None
        except OSError:
            raise self._fail(self._gone(phase)) from None
        try:
            return self._await_reply(phase, self._calls, clock, seconds)
        finally:
            self._compile_left = clock.compilers_left()

    def _await_reply(self, phase: Phase, number: int, clock: Clock, seconds: float) -> dict[str, Any]:
        fds = [self._channel.fileno(), self._control.fileno()]
        while True:
            try:
                reply = self._reader.poll()
            except WireError as error:
                raise self._fail(ChildFailure("rejected", "protocol", str(error), phase)) from None
            if reply is not None and type(reply.get("compiling")) is bool:
                clock.switch(reply["compiling"])
            elif reply is not None:
                if type(reply.get("id")) is not int or reply["id"] != number:
                    raise self._fail(ChildFailure("rejected", "protocol", "an answer that was not asked for", phase))
                return reply
            if self._reader.closed or self._exit is not None:
                raise self._fail(self._gone(phase))
            ready = process.wait_readable(fds, clock.deadline)
            if not ready or time.monotonic() > clock.deadline:
                limit = (
                    f"compilers took more than {self._compile_s:g} s"
                    if clock.compiling
                    else f"no answer within {seconds:g} s"
                )
                raise self._fail(ChildFailure("timeout", phase, limit, phase))
            if self._control.fileno() in ready:
                self._take_events()

    def _take_events(self) -> None:
        """Read what the supervisor says; its silence for good (end of file) is an exit without a report."""
        while True:
            try:
                data, fds, _flags, _address = socket.recv_fds(self._control, 1 << 18, 1)
            except BlockingIOError:
                return
            except OSError:
                data, fds = b"", []
            if fds:
                self._pidfd = fds[0]
            if not data:
                self._exit = self._exit or {"event": "lost"}
                return
            event = parse_object(data)
            if event["event"] in ("exit", "failed"):
                self._exit = event
            elif event["event"] == "output":
                self._output = str(event["output"])

    def waits(self) -> bool:
        """Whether the child is there and has said nothing that was not asked for; false also once it is closed."""
        if self.closed:
            return False
        self._take_events()
        return self._exit is None and not process.wait_readable([self._channel.fileno()], 0.0)

    def expect(self, shared: int) -> None:
        """Tell the supervisor how many bytes of shared memory are ours and so not the candidate's."""
        with contextlib.suppress(OSError):  # its end is noticed at the next reply
            self._control.send(b"buffers %d" % shared)

    def _gone(self, phase: Phase) -> ChildFailure:
        """Why the channel ended: wait a moment for the supervisor's report."""
        self._wait_exit(time.monotonic() + GONE_S)
        return death(self._exit, phase)

    def _wait_exit(self, deadline: float) -> bool:
        while self._exit is None:
            if not process.wait_readable([self._control.fileno()], deadline):
                return False
            self._take_events()
        return True

    def _fail(self, failure: ChildFailure) -> ChildFailure:
        """End the session and complete the failure with what the candidate printed."""
        self.close()
        if not failure.output and self._exit is not None:
            failure.output = str(self._exit.get("output", ""))
        return failure

    def output(self) -> str:
        """What the candidate has printed so far (bounded: its beginning and its end)."""
        if self.closed or self._exit is not None:
            return str((self._exit or {}).get("output", ""))
        self._output = None
        with contextlib.suppress(OSError):
            self._control.send(b"output")
            deadline = time.monotonic() + 1.0
            while self._output is None and self._exit is None:
                if not process.wait_readable([self._control.fileno()], deadline):
                    break
                self._take_events()
        return self._output or ""

    def close(self) -> None:
        """End the candidate and everything it started; returns when it is gone."""
        if self.closed:
            return
        self.closed = True
        self._channel.close()
        with contextlib.suppress(OSError):  # it may have ended by itself
            self._control.send(b"end")
        deadline = time.monotonic() + END_S
        if not self._wait_exit(deadline) and self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            deadline += END_S
        if self._pidfd >= 0:
            process.wait_readable([self._pidfd], deadline)
            os.close(self._pidfd)
            self._pidfd = -1
        self._control.close()
