"""The warm process that candidates are forked from: `python -m kernelward.reward.sandbox.zygote`.

It has imported torch, runs one thread, never touches CUDA, and holds nothing that a candidate may not see. The judge
asks for a candidate by sending two sockets: `control` (for its supervisor) and `channel` (for the candidate itself).

Where the machine allows it the zygote is pid 1 of a pid namespace in a user namespace of its own, so it can give each
candidate a nested pid namespace, and everything ends when it ends. Torch is imported after that.
"""

import argparse
import contextlib
import dataclasses
import fcntl
import gc
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import confinement, isolation, linux
from .isolation import IsolationReport
from .landlock import Rule
from .limits import Limits
from .supervisor import Supervisor, report_failure

if TYPE_CHECKING:
    from .engine import Engine

TRIAL_S = 60.0
CHANNEL = 3  # the candidate's descriptor to the judge
INHERITED = (
    *("PATH", "LD_LIBRARY_PATH", "LANG", "CC", "CXX", "CUDA_HOME", "CUDA_PATH"),
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_MAX_CONNECTIONS", "TRITON_INTERPRET"),
)


@dataclass(frozen=True)
class Host:
    """What every fork of this zygote needs, worked out once.

    Attributes:
        engine: warm.
        device: torch device string of the candidates.
        report: the layers in force.
        rules: what a candidate may read.
        covered: folders that are mounted over.
        device_first: CUDA starts before the confinement, because it does not start behind it.
    """

    engine: "Engine"
    device: str
    report: IsolationReport
    rules: tuple[Rule, ...]
    covered: tuple[Path, ...]
    device_first: bool = False


def reserve_channel(control: int) -> socket.socket:
    """The judge's socket, moved; the number of a candidate's channel is kept free of what engines open."""
    moved = fcntl.fcntl(control, fcntl.F_DUPFD_CLOEXEC, CHANNEL + 1)
    os.close(control)
    null = os.open(os.devnull, os.O_RDONLY)
    if null != CHANNEL:
        os.dup2(null, CHANNEL, inheritable=False)
        os.close(null)
    return socket.socket(fileno=moved)


def become_init(report: IsolationReport) -> None:
    """Enter the zygote's own namespaces; returns in the process that serves. Single-threaded callers only.

    Raises:
        OSError: what `isolation.choose` tried does not work any more.
    """
    if "user-namespace" in report:
        isolation.enter_user_namespace()
    if "pid-namespace" not in report:
        return
    linux.unshare(linux.CLONE_NEWPID)
    pid = os.fork()
    if pid:
        os.closerange(3, 1 << 16)  # only the serving process may hold the judge's socket open
        _, status = os.waitpid(pid, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)


class Nursery:
    """Forks candidates' supervisors."""

    def __init__(self, report: IsolationReport) -> None:
        self._lifeline, self._lifeline_end = os.pipe2(os.O_CLOEXEC)
        nested = "pid-namespace" in report
        self._own_pids = os.open("/proc/self/ns/pid" if nested else os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def spawn(
        self, request: dict[str, Any], control: socket.socket, channel: socket.socket, host: Host, ours: socket.socket
    ) -> None:
        """Fork one supervisor with its two sockets, which are closed here.

        Args:
            ours: this process's own socket, which the fork must not keep.
        """
        try:
            pid = fork_into_namespace(self._own_pids, host.report)
        except OSError as error:
            report_failure(control, error)
            pid = -1
        if pid == 0:
            ours.close()
            os.close(self._lifeline_end)
            os.close(self._own_pids)
            try:
                supervise(request, control, channel, self._lifeline, host)
            except BaseException as error:
                report_failure(control, error)
            finally:
                os._exit(0)
        control.close()
        channel.close()


def serve(judge: socket.socket, host: Host, nursery: Nursery) -> None:
    """Fork one supervisor per request until the judge is gone."""
    signal.signal(signal.SIGCHLD, lambda *_: reap())
    judge.send(json.dumps({"event": "ready", "isolation": host.report.to_dict()}).encode())
    while True:
        data, fds, _flags, _address = socket.recv_fds(judge, 1 << 16, 2)
        if not data:
            return
        control, channel = (socket.socket(fileno=fd) for fd in fds)
        nursery.spawn(json.loads(data), control, channel, host, judge)


def ordered_for_device(host: Host, nursery: Nursery) -> Host:
    """Confinement first and CUDA behind it, where that works: threads of the driver are then confined as well.

    Found out with an empty candidate. Where it does not work the report says so.
    """
    if not host.device.startswith("cuda"):
        return host
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel, far_channel = socket.socketpair()
    with control, channel:
        nursery.spawn({"limits": Limits().to_dict()}, theirs, far_channel, host, control)
        channel.settimeout(TRIAL_S)
        try:
            started = bool(channel.recv(1))  # a candidate says hello once it is confined and has its device
        except OSError:
            started = False
    if started:
        return host
    note = "CUDA does not start behind the confinement, so it starts before it, and its own threads are not confined"
    report = dataclasses.replace(host.report, notes=(*host.report.notes, note))
    return dataclasses.replace(host, report=report, device_first=True)


def fork_into_namespace(own_pids: int, report: IsolationReport) -> int:
    """fork(), with the child as pid 1 of a new pid namespace where there are such.

    Raises:
        OSError: no process or namespace left.
    """
    if "pid-namespace" not in report:
        return os.fork()
    linux.unshare(linux.CLONE_NEWPID)
    try:
        pid = os.fork()
    except OSError:
        linux.setns(own_pids, linux.CLONE_NEWPID)
        raise
    if pid:
        linux.setns(own_pids, linux.CLONE_NEWPID)
    return pid


def supervise(
    request: dict[str, Any], control: socket.socket, channel: socket.socket, lifeline: int, host: Host
) -> None:
    """In the fork: become the candidate's supervisor, until the candidate has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    limits = Limits.from_dict(request["limits"])
    report = host.report
    alone = "pid-namespace" in report
    if not alone:
        linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
    isolation.enter_namespaces(report, limits, host.covered)
    if "not-dumpable" in report:
        linux.prctl(linux.PR_SET_DUMPABLE, 0)
    if alone:
        isolation.limit_pids(limits.processes)
    own_mount = "mount-namespace" in report
    directory = Path(tempfile.mkdtemp(prefix="kernelward-", dir=isolation.PRIVATE_MOUNT if own_mount else None))

    def start(output: int) -> None:
        become_candidate(channel, output, directory, limits, host)

    supervisor = Supervisor(control, lifeline, limits, start, None if own_mount else directory, alone, (channel,))
    try:
        supervisor.announce()
        supervisor.run()
    finally:
        if not own_mount:
            shutil.rmtree(directory, ignore_errors=True)


def become_candidate(channel: socket.socket, output: int, directory: Path, limits: Limits, host: Host) -> None:
    """In the second fork: give up everything, then serve the judge."""
    from . import child

    linux.new_session()
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.dup2(channel.detach(), CHANNEL)
    first = CHANNEL + 1
    for fd in sorted(getattr(host.engine, "descriptors", ())):  # the engine closes them before candidate code runs
        os.closerange(first, fd)
        first = fd + 1
    os.closerange(first, 1 << 16)
    os.chdir(directory)
    scrub_environment(directory)
    sys.argv = ["candidate"]
    if host.device_first:
        child.open_device(host.device)
    confinement.lock_down(host.report, host.rules, directory, limits, host.device)
    if not host.device_first:
        child.open_device(host.device)
    child.main(socket.socket(fileno=CHANNEL), host.engine, directory, host.device)
    os._exit(0)


def scrub_environment(directory: Path) -> None:
    """An environment with nothing of the user's in it; every cache goes to the temporary directory."""
    own = str(directory)
    kept = {name: os.environ[name] for name in INHERITED if name in os.environ}
    os.environ.clear()
    os.environ.update(kept)
    os.environ.update(
        dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME"), own)
        | dict.fromkeys(("USER", "LOGNAME"), "candidate")
        | dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"), "1")
        | {
            "TRITON_CACHE_DIR": f"{own}/triton",
            "TORCHINDUCTOR_CACHE_DIR": f"{own}/inductor",
            "TORCH_EXTENSIONS_DIR": f"{own}/extensions",
            "CUDA_CACHE_PATH": f"{own}/cuda",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
    )
    tempfile.tempdir = None


def reap() -> None:
    """Collect supervisors that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main() -> None:
    """Enter the namespaces, warm the engine, say so, serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--control", required=True, type=int)
    parser.add_argument("--without", default="")
    arguments = parser.parse_args()
    linux.lighten_session()
    control = reserve_channel(arguments.control)
    report = isolation.choose([name for name in arguments.without.split(",") if name])
    become_init(report)
    # Libraries ask torch whether there is a GPU while they are imported (torch.utils.cpp_extension is one). Answered
    # through the CUDA runtime, that would spoil CUDA for every fork; through the management library it does not.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"

    from .engine import ENGINES

    engine = ENGINES[arguments.mode]()
    engine.warm()
    from . import child

    child.warm(arguments.device)
    rules = confinement.readable(arguments.device, "pid-namespace" in report, engine.paths())
    host = Host(engine, arguments.device, report, tuple(rules), tuple(confinement.overmounted(engine.paths())))
    gc.collect()
    gc.freeze()
    nursery = Nursery(report)
    serve(control, ordered_for_device(host, nursery), nursery)
    sys.exit(0)


if __name__ == "__main__":
    main()
