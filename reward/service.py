"""The judge process: `python -m kernelward.reward.service --fd N`, started by `client.JudgeClient`.

It holds references, truth, suites and the run key, and drives the candidates' processes from worker threads. It ends
when its client does.
"""

import argparse
import contextlib
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from ..suites.errors import InputError
from .framing import FrameError, receive_frame, send_frame
from .lease import DeviceLease
from .task import JudgeConfig, Task
from .verdict import Outcome, Verdict

if TYPE_CHECKING:
    from .checker import Checker

_NICENESS = 10


class Service:
    """Answers one client's requests until it goes away."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._send_lock = threading.Lock()
        self._waiting = 0  # requests that are not from the background
        self._idle = threading.Condition()
        self._in_use: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext

    def send(self, message: dict[str, Any]) -> None:
        """Send a reply; a client that is gone is noticed by the reading side."""
        try:
            with self._send_lock:
                send_frame(self._sock, message)
        except FrameError as error:
            print(f"reply lost: {error}", file=sys.stderr)

    def serve(self) -> None:
        """Read requests until the client closes the connection."""
        hello = receive_frame(self._sock)
        try:
            config = JudgeConfig.from_wire(hello["config"])
            import torch  # only once the request to do so is there

            from .checker import Checker

            torch.set_num_threads(config.threads or max(1, len(os.sched_getaffinity(0)) // config.workers))
            checker = Checker(config)
            if config.device.startswith("cuda"):
                self._in_use = DeviceLease(config.device).held  # what measures in the background waits
        except InputError as error:
            self.send({"op": "failed", "message": str(error)})
            receive_until_closed(self._sock)
            return
        with (
            checker,
            ThreadPoolExecutor(config.workers, thread_name_prefix="judge") as pool,
            ThreadPoolExecutor(1, thread_name_prefix="background", initializer=_be_nice) as background,
        ):
            self.send({"op": "ready"} | checker.describe())
            try:
                while True:
                    message = receive_frame(self._sock)
                    if message["task"]["background"]:
                        background.submit(self._answer_when_idle, checker, message)
                    else:
                        self._count(1)
                        pool.submit(self._answer, checker, message).add_done_callback(lambda _: self._count(-1))
            except FrameError:
                pool.shutdown(wait=False, cancel_futures=True)
                checker.close()
                # Workers may be in the middle of a candidate or of a long truth: nobody waits for their verdicts.
                leave(0)

    def _count(self, change: int) -> None:
        with self._idle:
            self._waiting += change
            if not self._waiting:
                self._idle.notify_all()

    def _answer_when_idle(self, checker: "Checker", message: dict[str, Any]) -> None:
        """Begin only while nobody waits for a verdict; a request that comes later has its own threads."""
        with self._idle:
            self._idle.wait_for(lambda: not self._waiting)
        self._answer(checker, message)

    def _answer(self, checker: "Checker", message: dict[str, Any]) -> None:
        number = message["id"]
        started = time.monotonic()
        try:
            with self._in_use():
                verdict = checker.judge(Task.from_wire(message["task"]))
        except InputError as error:
            self.send({"op": "input-error", "id": number, "message": str(error)})
            return
        except Exception as error:  # a bug of ours must not look like a wrong kernel, nor stop the other workers
            traceback.print_exc()
            verdict = Verdict(
                Outcome.INFRA_ERROR,
                "internal-error",
                f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-4)}",
                seconds=time.monotonic() - started,
            )
        self.send({"op": "verdict", "id": number, "verdict": verdict.to_json()})


def _be_nice() -> None:
    """Give this thread, and those that torch starts for it, what the others leave over."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def receive_until_closed(sock: socket.socket) -> None:
    """Ignore messages until the other side closes the connection."""
    try:
        while True:
            receive_frame(sock)
    except FrameError:
        return


def leave(code: int) -> None:
    """End now, without waiting for threads."""
    sys.stderr.flush()
    os._exit(code)


def _watch_parent(parent: int, checker_ended: threading.Event) -> None:
    """End when the client's process is gone even where a fork of it still holds the connection open."""
    while not checker_ended.wait(1.0):
        if os.getppid() != parent:
            leave(0)


def main(arguments: list[str] | None = None) -> int:
    """Entry point of the judge process."""
    parser = argparse.ArgumentParser(prog="kernelward.reward.service")
    parser.add_argument("--fd", type=int, required=True)
    options = parser.parse_args(arguments)
    ended = threading.Event()
    threading.Thread(target=_watch_parent, args=(os.getppid(), ended), daemon=True).start()
    with socket.socket(fileno=options.fd) as sock:
        sock.set_inheritable(False)
        try:
            Service(sock).serve()
        except FrameError:
            return 0
        finally:
            ended.set()
    return 0


if __name__ == "__main__":
    sys.exit(main())
