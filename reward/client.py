"""The trainer's side of the judge: starts the judge process when it is first needed and survives its death.

Imports no torch. Safe to use from several threads, from a daemon process and after a fork; the judge is an exec'd
process, never a fork of this one, and ends when this process does.
"""

import collections
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Self

from ..suites.errors import InputError
from .framing import FrameError, receive_frame, send_frame
from .task import JudgeConfig, Task
from .verdict import Outcome, Verdict

START_S = 300.0  # importing torch on a busy machine with a cold disk
STALL_S = 900.0  # no verdict for this long with work pending: the judge itself hangs
_STDERR_LINES = 200


class JudgeLost(Exception):
    """The judge process died or hangs; the message says what is known."""


class _Judge:
    """One running judge process and the connection to it."""

    def __init__(self, config: JudgeConfig, environment: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", "kernelward.reward.service", "--fd", str(theirs.fileno())]
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(theirs.fileno(),),
                env=dict(environment),
                start_new_session=True,  # Ctrl-C reaches the client, which then closes the judge
            )
        except OSError as error:
            ours.close()
            raise JudgeLost(f"cannot start the judge: {error}") from error
        finally:
            theirs.close()
        self.sock = ours
        self.ready: Future[dict[str, Any]] = Future()
        self._pending: dict[int, Future[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._send_lock = threading.Lock()
        self._next = 0
        self._lost: str | None = None
        self.last_message = time.monotonic()
        self._stderr: collections.deque[str] = collections.deque(maxlen=_STDERR_LINES)
        self._stderr_reader = threading.Thread(target=self._drain_stderr, name="kernelward-stderr", daemon=True)
        self._stderr_reader.start()
        threading.Thread(target=self._read, name="kernelward-client", daemon=True).start()
        try:
            send_frame(ours, {"op": "hello", "config": config.to_wire()})
        except FrameError as error:
            self._lose(str(error))

    @property
    def lost(self) -> bool:
        return self._lost is not None

    def submit(self, op: str, payload: dict[str, Any]) -> Future[dict[str, Any]]:
        """Send a request; its future gets the reply, or JudgeLost."""
        future: Future[dict[str, Any]] = Future()
        with self._lock:
            if self._lost is not None:
                future.set_exception(JudgeLost(self._lost))
                return future
            self._next += 1
            number = self._next
            if not self._pending:
                self.last_message = time.monotonic()
            self._pending[number] = future
        try:
            with self._send_lock:
                send_frame(self.sock, {"op": op, "id": number} | payload)
        except FrameError as error:
            self._lose(str(error))
        return future

    def _read(self) -> None:
        try:
            while True:
                message = receive_frame(self.sock)
                self.last_message = time.monotonic()
                if message["op"] == "ready":
                    self.ready.set_result(message)
                elif message["op"] == "failed":
                    self.ready.set_exception(InputError(message["message"]))
                else:
                    with self._lock:
                        future = self._pending.pop(message["id"], None)
                    if future is not None:
                        future.set_result(message)
        except FrameError as error:
            self._lose(str(error))

    def _lose(self, why: str) -> None:
        with self._lock:
            if self._lost is not None:
                return
            self._lost = why
            pending, self._pending = self._pending, {}
        stop(self.process)
        self._stderr_reader.join(timeout=2.0)
        self._lost = f"{self._exit_text()} ({why})"
        error = JudgeLost(self._lost)
        if not self.ready.done():
            self.ready.set_exception(error)
        for future in pending.values():
            future.set_exception(error)

    def _exit_text(self) -> str:
        code = self.process.poll()
        how = "is hanging" if code is None else f"exited with code {code}"
        if code is not None and code < 0:
            how = f"was ended by {signal.Signals(-code).name}"
        tail = "\n".join(list(self._stderr)[-15:])
        return f"the judge process {how}" + (f"; its last output:\n{tail}\n" if tail else "")

    def _drain_stderr(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            for line in iter(lambda: stream.readline(4096), b""):
                self._stderr.append(line.decode(errors="replace").rstrip())

    def give_up(self, why: str) -> None:
        """Treat the judge as dead."""
        self._lose(why)

    def close(self) -> None:
        """Close the connection (the judge then ends by itself) and make sure that it ended."""
        with self._lock:
            self._lost = self._lost or "closed"
            pending, self._pending = self._pending, {}
        for future in pending.values():
            future.set_exception(JudgeLost("the judge was closed"))
        self.sock.close()
        stop(self.process)


def stop(process: "subprocess.Popen[bytes]", grace_s: float = 5.0) -> None:
    """Wait for a judge whose connection is closed; kill it after the grace period."""
    try:
        process.wait(timeout=0.0 if process.poll() is not None else 0.05)
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            process.wait(timeout=grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class JudgeClient:
    """Judges candidates in a process of its own, per device.

    Args:
        config: how the judge is set up.

    A judge that dies is started again once per request: the requests it held are retried one by one in the new one,
    and those that end that one too get the verdict `infra_error`.
    """

    def __init__(self, config: JudgeConfig | None = None) -> None:
        self.config = config or JudgeConfig()
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._retry_lock = threading.Lock()
        self._judge: _Judge | None = None
        self._pid = os.getpid()
        self._finalizer: weakref.finalize | None = None

    def __reduce__(self) -> tuple[type[Self], tuple[JudgeConfig]]:
        return type(self), (self.config,)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the judge in the background, so that it imports torch while the caller does something else."""
        self._current()

    def describe(self) -> dict[str, Any]:
        """What the judge says of itself: versions, device, isolation. Waits until it is ready.

        Raises:
            InputError: the configuration asks for something this machine does not have.
            JudgeLost: it cannot be started.
        """
        return self._current().ready.result(timeout=START_S)

    def judge(self, task: Task) -> Verdict:
        """Judge one candidate.

        Raises:
            InputError: the problem, protocol, suite or configuration is wrong.
        """
        return self.judge_many([task])[0]

    def submit(self, task: Task) -> "Future[dict[str, Any]]":
        """Send a task and do not wait: `read_reply` reads what the future gets. Nothing is tried again.

        Raises:
            InputError: the task cannot be sent, or the configuration asks for what this machine does not have.
            JudgeLost: the judge cannot be started (its loss afterwards is raised by the future).
        """
        return self._current().submit("judge", {"task": task.to_wire()})

    def judge_many(
        self, tasks: Sequence[Task], on_verdict: Callable[[int, Verdict], None] | None = None
    ) -> list[Verdict]:
        """Judge candidates at the same time; the verdicts come back in the order of the tasks.

        Args:
            on_verdict: called with (index, verdict) as each one arrives, on a thread of the client.

        Raises:
            InputError: the problem, protocol, suite or configuration of some task is wrong (after all tasks ended).
        """
        verdicts: list[Verdict] = []
        for result in self.judge_each(tasks, on_verdict):
            if isinstance(result, InputError):
                raise result
            verdicts.append(result)
        return verdicts

    def judge_each(
        self, tasks: Sequence[Task], on_verdict: Callable[[int, Verdict], None] | None = None
    ) -> list[Verdict | InputError]:
        """Like `judge_many`, with the user's error in place of the verdict of a task that has one."""
        payloads: list[dict[str, Any] | InputError] = []
        for task in tasks:
            try:
                payloads.append({"task": task.to_wire()})
            except InputError as error:
                payloads.append(error)
        try:
            judge = self._current()
        except JudgeLost:
            judge = None  # the retry below tries once more, and words the failure
        futures: list[Future[dict[str, Any]] | None] = []
        for i, payload in enumerate(payloads):
            future = judge.submit("judge", payload) if judge and not isinstance(payload, InputError) else None
            futures.append(future)
            if future is not None and on_verdict is not None:
                future.add_done_callback(lambda f, i=i: _announce(f, i, on_verdict))  # type: ignore[misc]
        results: list[Verdict | InputError] = []
        for i, (task, payload, future) in enumerate(zip(tasks, payloads, futures, strict=True)):
            if isinstance(payload, InputError):
                results.append(payload)
                continue
            try:
                if judge is None or future is None:
                    raise JudgeLost("the judge could not be started")
                results.append(read_reply(self._wait(judge, future)))
            except JudgeLost:
                result = self._again(task, payload)
                if on_verdict is not None and isinstance(result, Verdict):
                    on_verdict(i, result)
                results.append(result)
        return results

    def _again(self, task: Task, payload: dict[str, Any]) -> Verdict | InputError:
        """Second and last attempt, alone in its judge among the retried, so that the culprit takes down only itself."""
        with self._retry_lock:
            try:
                judge = self._current()
                return read_reply(self._wait(judge, judge.submit("judge", payload)))
            except JudgeLost as error:
                return Verdict(
                    Outcome.INFRA_ERROR,
                    "judge-lost",
                    str(error),
                    problem=task.problem.id,
                    problem_hash=task.problem.hash,
                    protocol=str(payload["task"]["protocol"]),
                    device=self.config.device,
                    epoch=task.epoch,
                )

    def _wait(self, judge: _Judge, future: "Future[dict[str, Any]]") -> dict[str, Any]:
        while True:
            try:
                return future.result(timeout=5.0)
            except TimeoutError:
                if future.done():
                    raise
                if time.monotonic() - judge.last_message > STALL_S:
                    judge.give_up(f"no verdict for {STALL_S:.0f} s")

    def _current(self) -> _Judge:
        if os.getpid() != self._pid:  # a fork inherited this object: its judge belongs to the parent
            self._reset()
        with self._lock:
            if self._judge is not None and self._judge.lost:
                self._finish()
            if self._judge is None:
                judge = _Judge(self.config, judge_environment(self.config.device, os.environ))
                self._judge = judge
                self._finalizer = weakref.finalize(self, judge.close)
            judge = self._judge
        failure = judge.ready.exception(timeout=0) if judge.ready.done() else None
        if isinstance(failure, InputError):
            raise failure
        return judge

    def _finish(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
        self._judge = None

    def close(self) -> None:
        """End the judge and everything it started. The next request would start a new one."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._finish()


def _announce(future: "Future[dict[str, Any]]", index: int, on_verdict: Callable[[int, Verdict], None]) -> None:
    if future.exception() is None:
        result = read_reply(future.result())
        if isinstance(result, Verdict):
            on_verdict(index, result)


def read_reply(message: Mapping[str, Any]) -> Verdict | InputError:
    """What the judge answered to a task."""
    if message["op"] == "verdict":
        return Verdict.from_json(message["verdict"])
    return InputError(message["message"])


def judge_environment(device: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The judge's environment: GPU visibility is set from the configuration, not inherited.

    TRL's asynchronous trainer runs rewards in a process with CUDA_VISIBLE_DEVICES="", where `cuda:1` can only mean
    the machine's own numbering; where GPUs are visible, N counts those.
    """
    result = dict(environment)
    result.pop("TRITON_INTERPRET", None)  # chosen per zygote
    if not device.startswith("cuda"):
        return result | {"CUDA_VISIBLE_DEVICES": ""}
    index = int(device.partition(":")[2] or 0)
    visible = [v.strip() for v in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if v.strip()]
    if visible and index >= len(visible):
        raise InputError(f"device {device} was asked for, but CUDA_VISIBLE_DEVICES shows only {','.join(visible)}")
    return result | {"CUDA_VISIBLE_DEVICES": visible[index] if visible else str(index)}
