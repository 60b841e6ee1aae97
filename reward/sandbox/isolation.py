"""Which layers of isolation this machine offers, and putting a candidate behind them.

A layer is a name in `LAYERS`. The zygote finds out once what works (`choose`), enters a user namespace, and gives each
candidate the rest: `enter_namespaces` in its supervisor, `confinement.lock_down` in the candidate's own process. What a
machine does not offer is left out and reported (`best-effort`) or refused (`strict`).
"""

import contextlib
import errno
import functools
import json
import os
import subprocess
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from . import landlock, linux, seccomp
from .limits import Limits

Strictness = Literal["strict", "best-effort"]

LAYERS: Final = (
    "user-namespace",
    "pid-namespace",
    "mount-namespace",
    "network-namespace",
    "ipc-namespace",
    "landlock",
    "seccomp",
    "no-new-privileges",
    "no-capabilities",
    "not-dumpable",
)
_NAMESPACES: Final = {
    "mount-namespace": linux.CLONE_NEWNS,
    "network-namespace": linux.CLONE_NEWNET,
    "ipc-namespace": linux.CLONE_NEWIPC,
}
INSIDE_ID: Final = 1000
_NOTE: Final = "note: "
PRIVATE_MOUNT: Final = "/dev/shm"  # becomes the candidate's own, and holds its temporary directory


@dataclass(frozen=True, slots=True)
class IsolationReport:
    """What is in force, and why the rest is not.

    Attributes:
        layers: the names in force, in the order of `LAYERS`.
        missing: name -> reason, for the others.
        landlock_abi: 0 without Landlock; 6 and more also confine signals.
        notes: what a layer does only in part (mounts that stay writable).
    """

    layers: tuple[str, ...]
    missing: dict[str, str] = field(default_factory=dict)
    landlock_abi: int = 0
    notes: tuple[str, ...] = ()

    def __contains__(self, layer: str) -> bool:
        return layer in self.layers

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the wire and for `doctor --json`."""
        return {
            "layers": list(self.layers),
            "missing": dict(self.missing),
            "landlock_abi": self.landlock_abi,
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "IsolationReport":
        """Inverse of `to_dict`."""
        return cls(tuple(data["layers"]), dict(data["missing"]), int(data["landlock_abi"]), tuple(data["notes"]))


# -- finding out -------------------------------------------------------------------------------------------------------


def enter_user_namespace() -> None:
    """A user namespace of its own for this single-threaded process: all capabilities inside, none outside.

    Raises:
        OSError: not offered here.
    """
    uid, gid = os.geteuid(), os.getegid()
    linux.unshare(linux.CLONE_NEWUSER)
    with contextlib.suppress(FileNotFoundError):
        Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{INSIDE_ID} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{INSIDE_ID} {gid} 1")


def _attempt(user: bool, pid: bool, flags: int) -> tuple[str, tuple[str, ...]]:
    """Try a combination of namespaces in a throw-away process: why it fails ("" if it works), and notes."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        os.close(read_end)
        try:
            if user:
                enter_user_namespace()
            if pid:
                linux.unshare(linux.CLONE_NEWPID)
            if _forked(lambda: _trial(pid, flags, write_end), write_end):
                os.write(write_end, b"a process in the namespaces failed\n")
        except OSError as error:
            os.write(write_end, f"{error}\n".encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as file:
        told = file.read().decode().splitlines()
    os.waitpid(child, 0)
    notes = tuple(line.removeprefix(_NOTE) for line in told if line.startswith(_NOTE))
    return "; ".join(line for line in told if not line.startswith(_NOTE)), notes


def _trial(pid: bool, flags: int, report: int) -> None:
    if pid:
        own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        linux.unshare(linux.CLONE_NEWPID)
        if _forked(lambda: None, 2):
            raise OSError(errno.EIO, "a process in a nested pid namespace failed")
        linux.setns(own, linux.CLONE_NEWPID)
    if flags:
        linux.unshare(flags)
    if flags & linux.CLONE_NEWNS:
        for note in _private_mounts(1 << 20, pid, []):
            os.write(report, f"{_NOTE}{note}\n".encode())


def _forked(work: Any, report: int) -> int:
    """Run something in a fork; its exit status. An OSError goes to the descriptor `report`."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except OSError as error:
            os.write(report, f"{error}\n".encode())
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


def choose(without: Collection[str] = ()) -> IsolationReport:
    """Find the strongest combination that works here. Forks, so call it before anything starts threads.

    Args:
        without: layers to leave out, for tests and for machines where one of them misbehaves.
    """
    missing = dict.fromkeys(without, "switched off")
    layers: list[str] = []
    notes: list[str] = []
    flags = sum(flag for layer, flag in _NAMESPACES.items() if layer not in missing)
    why = "not tried"
    for user, pid in _combinations(missing, flags):
        failed, told = _attempt(user, pid, flags)
        if not failed:
            notes += told
            layers += ["user-namespace"] * user + ["pid-namespace"] * pid
            layers += [layer for layer, flag in _NAMESPACES.items() if flags & flag]
            break
        why = failed
    for layer in ("user-namespace", "pid-namespace", *_NAMESPACES):
        if layer not in layers:
            missing.setdefault(layer, why)
    version = 0 if "landlock" in missing else landlock.abi()
    if version:
        layers.append("landlock")
        if version < 6:
            notes.append(f"Landlock version {version} does not confine signals")
    else:
        missing.setdefault("landlock", "the kernel does not offer it")
    if "seccomp" not in missing:
        if seccomp.supported() and Path("/proc/sys/kernel/seccomp").is_dir():
            layers.append("seccomp")
        else:
            missing["seccomp"] = "the kernel or this architecture does not offer it"
    layers += [name for name in ("no-new-privileges", "no-capabilities", "not-dumpable") if name not in missing]
    if "no-new-privileges" not in layers:
        for name in ("landlock", "seccomp"):
            if name in layers:
                layers.remove(name)
                missing[name] = "needs no-new-privileges"
    order = tuple(layer for layer in LAYERS if layer in layers)
    return IsolationReport(order, missing, version if "landlock" in order else 0, tuple(notes))


def _combinations(missing: Collection[str], flags: int) -> list[tuple[bool, bool]]:
    """(user, pid) in order of strength. Without a user namespace only root can make the others."""
    users = [True] if "user-namespace" not in missing else []
    if os.geteuid() == 0:
        users.append(False)
    # A pid namespace without its own /proc would show the wrong processes, and breaks CUDA.
    pids = [True, False] if "pid-namespace" not in missing and flags & linux.CLONE_NEWNS else [False]
    return [(user, pid) for pid in pids for user in users if user or pid or flags]


@functools.cache
def probe() -> IsolationReport:
    """What a zygote would put in force here, found in a process of its own; for `doctor`.

    Raises:
        OSError: no process could be started.
    """
    command = [sys.executable, "-P", "-m", __spec__.name]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise OSError(errno.EIO, f"the probe failed: {done.stderr.decode(errors='replace')[-500:]}")
    return IsolationReport.from_dict(json.loads(done.stdout))


def refusal(report: IsolationReport, strictness: Strictness) -> str:
    """Why a strict sandbox cannot be made here; "" if it can, or if best effort is enough."""
    lacking = [f"{layer} ({report.missing.get(layer, 'missing')})" for layer in LAYERS if layer not in report]
    return (
        f"isolation is strict, and this machine lacks {', '.join(lacking)}"
        if lacking and strictness == "strict"
        else ""
    )


# -- the supervisor's part ---------------------------------------------------------------------------------------------


def enter_namespaces(report: IsolationReport, limits: Limits, hidden: Iterable[Path]) -> None:
    """Mount, network and IPC namespaces of its own for a supervisor that is pid 1 of its pid namespace (if any).

    Raises:
        OSError: what worked when the zygote started does not work now.
    """
    flags = sum(flag for layer, flag in _NAMESPACES.items() if layer in report)
    if flags:
        linux.unshare(flags)
    if "mount-namespace" in report:
        _private_mounts(limits.tmp_bytes, "pid-namespace" in report, hidden)


def _private_mounts(size: int, own_proc: bool, hidden: Iterable[Path]) -> tuple[str, ...]:
    """Make the mounts; returns notes on what could be done only in part."""
    notes = []
    linux.mount("none", "/", "", linux.MS_REC | linux.MS_PRIVATE)
    try:
        linux.make_readonly("/")
    except OSError as error:
        notes.append(f"mounts stay writable ({error.strerror})")
    safe = linux.MS_NOSUID | linux.MS_NODEV
    for path in hidden:
        linux.mount("none", str(path), "tmpfs", safe | linux.MS_NOEXEC | linux.MS_RDONLY, "size=4k,mode=755")
    linux.mount("none", PRIVATE_MOUNT, "tmpfs", safe, f"size={size},nr_inodes={max(1024, size >> 12)},mode=700")
    if own_proc:
        linux.mount("proc", "/proc", "proc", safe | linux.MS_NOEXEC)
    return tuple(notes)


def limit_pids(count: int) -> None:
    """Bound the process ids of this pid namespace, where the kernel has a bound for each (Linux 6.14)."""
    with contextlib.suppress(OSError):  # older kernels: the supervisor counts processes instead
        Path("/proc/sys/kernel/pid_max").write_text(str(max(400, count)))


def main() -> None:
    """Print the report as JSON."""
    print(json.dumps(choose().to_dict()))


if __name__ == "__main__":
    main()
