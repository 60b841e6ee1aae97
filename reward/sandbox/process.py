"""The judge's one place for starting and ending sandbox processes."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection

from .limits import Limits

PASSED_ON = (
    "PATH",
    "LD_LIBRARY_PATH",
    "LANG",
    "CUDA_HOME",
    "CUDA_PATH",
    "PYTHONPATH",
    "TMPDIR",
    "HOME",
    "XDG_CACHE_HOME",
    "KERNELWARD_CACHE",
)
ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def environment(mode: str, device: str, queues: int | None = None) -> dict[str, str]:
    """A zygote's environment: what finding libraries needs, nothing of the user's session."""
    env = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    env |= dict.fromkeys(ONE_THREAD, "1")
    env |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", "CUDA_VISIBLE_DEVICES": visible_device(device)}
    # One heap on huge pages: a fork copies 512 times fewer page-table entries (measured: 25 ms of CPU become 10).
    env |= {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    if mode == "triton-interpreter":
        env["TRITON_INTERPRET"] = "1"
    if queues is not None:
        env["CUDA_DEVICE_MAX_CONNECTIONS"] = str(queues)
    return env


def visible_device(device: str) -> str:
    """What CUDA_VISIBLE_DEVICES must be so that the child sees the judge's device alone, as `cuda:0`."""
    kind, _, index = device.partition(":")
    if kind != "cuda":
        return ""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    number = int(index or 0)
    return visible.split(",")[number].strip() if visible else str(number)


def start_zygote(
    mode: str, device: str, without: Collection[str] = (), queues: int | None = None
) -> tuple[subprocess.Popen[bytes], socket.socket, int]:
    """Start a zygote; returns it, the judge's end of its control socket, and a memfd with its stderr.

    Raises:
        OSError: no process or descriptor left.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    errors = os.memfd_create("zygote-stderr", os.MFD_CLOEXEC)
    child_device = "cuda:0" if device.startswith("cuda") else "cpu"
    command = [sys.executable, "-P", "-m", f"{__package__}.zygote"]
    command += ["--mode", mode, "--device", child_device, "--control", str(theirs.fileno())]
    command += ["--without", ",".join(without)]
    try:
        process = subprocess.Popen(
            command,
            env=environment(mode, device, queues),
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
            cwd="/",
        )
    except BaseException:
        ours.close()
        os.close(errors)
        raise
    finally:
        theirs.close()
    return process, ours, errors


def end_zygote(process: subprocess.Popen[bytes], control: socket.socket, grace_s: float) -> None:
    """Close its control socket, which ends it and its supervisors; SIGKILL if it takes too long."""
    control.close()
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_readable(fds: list[int], deadline: float) -> list[int]:
    """Which of the descriptors can be read, or [] when the monotonic deadline has passed."""
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    left = max(0.0, deadline - time.monotonic())
    return [fd for fd, _ in poller.poll(left * 1000)]


def signal_name(number: int) -> str:
    """`SIGSEGV` for 11."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def spawn_message(limits: Limits) -> bytes:
    """The request for one child; its two sockets travel with it."""
    return json.dumps({"limits": limits.to_dict()}).encode()
