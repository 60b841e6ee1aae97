"""The warm process that candidates are forked from: `python -m kernelward.reward.sandbox.zygote`.

It has imported torch, runs one thread, never touches CUDA, and holds nothing that a candidate may not see. The judge
asks for a candidate by sending two sockets: `control` (to its supervisor) and `channel` (to the candidate itself).
"""

import argparse
import contextlib
import gc
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

from . import child, linux
from .engine import ENGINES, Engine
from .limits import Limits
from .supervisor import Supervisor, report_failure


def serve(control: socket.socket, engine: Engine, device: str) -> None:
    """Fork one supervisor per request until the judge is gone."""
    wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    lifeline_read, lifeline_write = os.pipe2(os.O_CLOEXEC)
    control.send(json.dumps({"event": "ready", "pid": os.getpid()}).encode())
    while True:
        reap()
        try:
            data, fds, _flags, _address = socket.recv_fds(control, 1 << 16, 2)
        except InterruptedError:
            continue
        if not data:
            return
        request = json.loads(data)
        supervisor_control, channel = (socket.socket(fileno=fd) for fd in fds)
        try:
            pid = os.fork()
        except OSError as error:
            report_failure(supervisor_control, error)
            pid = -1
        if pid == 0:
            control.close()
            os.close(lifeline_write)
            os.close(wake_read)
            os.close(wake_write)
            try:
                supervise(request, supervisor_control, channel, lifeline_read, engine, device)
            except BaseException as error:
                report_failure(supervisor_control, error)
            finally:
                os._exit(0)
        supervisor_control.close()
        channel.close()


def supervise(
    request: dict[str, Any], control: socket.socket, channel: socket.socket, lifeline: int, engine: Engine, device: str
) -> None:
    """In the fork: become the candidate's supervisor."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
    directory = Path(tempfile.mkdtemp(prefix="kernelward-"))

    def start(output: int) -> None:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(directory)
        os.environ["TMPDIR"] = str(directory)
        os.setsid()
        child.main(channel, engine, directory, device)
        os._exit(0)

    supervisor = Supervisor(control, lifeline, Limits.from_dict(request["limits"]), start, directory, alone=False)
    try:
        supervisor.run()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def reap() -> None:
    """Collect supervisors that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main() -> None:
    """Warm the engine, say so, serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", required=True, choices=sorted(ENGINES))
    parser.add_argument("--device", required=True)
    parser.add_argument("--control", required=True, type=int)
    arguments = parser.parse_args()
    control = socket.socket(fileno=arguments.control)
    control.set_inheritable(False)
    engine = ENGINES[arguments.mode]()
    engine.warm()
    import torch

    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()
    serve(control, engine, arguments.device)
    sys.exit(0)


if __name__ == "__main__":
    main()
