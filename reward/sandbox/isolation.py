"""Which layers of isolation this machine offers, and putting a candidate behind them.

A layer is a name in `LAYERS`. The zygote finds out once what works (`choose`), enters a user namespace, and gives each
candidate the rest: `enter_namespaces` in its supervisor, `lock_down` in the candidate's own process. What a machine
does not offer is left out and reported (`best-effort`) or refused (`strict`).
"""

import contextlib
import errno
import functools
import importlib.util
import json
import os
import resource
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from . import landlock, linux, seccomp
from .landlock import READ, READ_DIR, READ_FILE, Rule
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
PRIVATE_MOUNT: Final = "/dev/shm"  # becomes the candidate's own, and holds its temporary directory
ROOM: Final = __package__.rsplit(".", 2)[0]  # `kernelward`


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


def _attempt(user: bool, pid: bool, flags: int) -> str:
    """Try a combination of namespaces in a throw-away process; "" if it works, else why not."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        os.close(read_end)
        try:
            if user:
                enter_user_namespace()
            if pid:
                linux.unshare(linux.CLONE_NEWPID)
            if _forked(lambda: _trial(pid, flags), write_end):
                os.write(write_end, b"a process in the namespaces failed")
        except OSError as error:
            os.write(write_end, str(error).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as file:
        told = file.read().decode()
    os.waitpid(child, 0)
    return told


def _trial(pid: bool, flags: int) -> None:
    if pid:
        own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        linux.unshare(linux.CLONE_NEWPID)
        if _forked(lambda: None, 2):
            raise OSError(errno.EIO, "a process in a nested pid namespace failed")
        linux.setns(own, linux.CLONE_NEWPID)
    if flags:
        linux.unshare(flags)
    if flags & linux.CLONE_NEWNS:
        _private_mounts(1 << 20, pid, [])


def _forked(work: Any, report: int) -> int:
    """Run something in a fork; its exit status. An OSError goes to the descriptor `report`."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except OSError as error:
            os.write(report, str(error).encode() + b"; ")
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
        failed = _attempt(user, pid, flags)
        if not failed:
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


def enter_namespaces(report: IsolationReport, limits: Limits, hidden: Iterable[Path]) -> tuple[str, ...]:
    """Mount, network and IPC namespaces of its own for a supervisor that is pid 1 of its pid namespace (if any).

    Returns:
        Notes on what could be done only in part.

    Raises:
        OSError: what worked when the zygote started does not work now.
    """
    flags = sum(flag for layer, flag in _NAMESPACES.items() if layer in report)
    if flags:
        linux.unshare(flags)
    if "mount-namespace" in report:
        return _private_mounts(limits.tmp_bytes, "pid-namespace" in report, hidden)
    return ()


def _private_mounts(size: int, own_proc: bool, hidden: Iterable[Path]) -> tuple[str, ...]:
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


# -- the candidate's part ----------------------------------------------------------------------------------------------


def room_folders() -> list[Path]:
    """Folders of this project's code, wherever it is installed: nothing a candidate should read."""
    folders = []
    for name in ("suites", "mutants", "configs", "reward"):
        with contextlib.suppress(ModuleNotFoundError):
            spec = importlib.util.find_spec(f"{ROOM}.{name}")
            if spec is not None and spec.submodule_search_locations:
                folders += [Path(os.path.realpath(p)) for p in spec.submodule_search_locations]
    return folders


def python_folders() -> list[Path]:
    """Folders that importing needs: the interpreter, the standard library, site-packages."""
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib", "include", "scripts")]
    paths += [sys.base_prefix, sys.base_exec_prefix, os.path.join(sys.prefix, "pyvenv.cfg"), sys.executable]
    paths += [os.path.join(sys.prefix, "lib"), os.path.realpath(sys.executable)]
    paths += [p for p in sys.path if p and not _is_project(Path(os.path.realpath(p)))]
    return _distinct(Path(p) for p in paths if p and p != "/")


def _is_project(path: Path) -> bool:
    """Whether a folder on the import path is a checkout or a tree of this project, and not a place for packages."""
    if path.name in ("site-packages", "dist-packages"):
        return False  # an installed copy: only its own folder is left out
    return (path / ROOM).exists() or any(path in room.parents for room in room_folders())


def _distinct(paths: Iterable[Path]) -> list[Path]:
    found: dict[Path, None] = {}
    for path in paths:
        for form in (Path(os.path.abspath(path)), Path(os.path.realpath(path))):
            if form.exists():
                found[form] = None
    return list(found)


def readable(device: str, own_proc: bool, extra: Iterable[Path]) -> list[Rule]:
    """Rules for everything that a candidate may read; its temporary directory is added later.

    Args:
        device: `cpu` or `cuda...`; the driver needs its devices and /sys.
        own_proc: /proc shows the candidate's own processes alone, so all of it may be read.
        extra: what the engine needs beside (headers of ours).
    """
    system = [
        Path(p) for p in ("/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin", "/opt/nvidia", "/nix/store")
    ]
    configured = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    configured += [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    system += [Path(p) for p in configured if p and os.path.realpath(p) != "/"]
    hidden = room_folders()
    rules: list[Rule] = []
    for root in _distinct([*system, *python_folders()]):
        rules += landlock.expand(root, READ, hidden)
    rules += [Rule(str(path), READ) for path in extra]
    etc = "ld.so.cache ld.so.conf ld.so.conf.d localtime passwd group nsswitch.conf alternatives os-release OpenCL"
    rules += [Rule(f"/etc/{name}", READ) for name in etc.split()]
    rules += [Rule(f"/dev/{name}", READ_FILE) for name in ("zero", "full", "random", "urandom")]
    rules.append(Rule("/dev/null", READ_FILE | landlock.WRITE_FILE))
    if device.startswith("cuda"):
        nodes = [str(p) for p in Path("/dev").glob("nvidia*")] + ["/dev/dri"]
        rules += [Rule(p, READ_FILE | READ_DIR | landlock.WRITE_FILE | landlock.IOCTL_DEV) for p in nodes]
        rules.append(Rule("/sys", READ_FILE | READ_DIR))
    rules += [
        Rule(f"/sys/{name}", READ_FILE | READ_DIR) for name in ("devices/system", "kernel/mm/transparent_hugepage")
    ]
    if not own_proc:
        names = "self cpuinfo meminfo stat version filesystems loadavg sys/vm sys/kernel driver"
        rules += [Rule(f"/proc/{name}", READ_FILE | READ_DIR) for name in names.split()]
    unique: dict[str, int] = {}
    for rule in rules:
        unique[rule.path] = unique.get(rule.path, 0) | rule.access
    return [Rule(path, access) for path, access in unique.items()]


def overmounted(extra: Iterable[Path]) -> list[Path]:
    """Folders to cover with an empty mount: other programs' sockets and files, and this project's code.

    A second wall behind Landlock, which does not stop connecting to a Unix socket by its path. Folders that the
    interpreter, loaded libraries or what the engine needs (`extra`) live in stay as they are.
    """
    needed = [Path(os.path.realpath(path)) for path in extra]
    needed += [*python_folders(), *(Path(os.path.realpath(p)) for p in sys.path if p), *_mapped_files()]
    needed.append(Path(os.path.realpath(sys.prefix)))
    rooms = room_folders()
    candidates = [Path(p) for p in ("/run", "/var/run", "/tmp", "/var/tmp", "/home", "/root", "/mnt", "/media", "/srv")]
    candidates += [room for room in rooms if room.name != "reward"]  # engines read headers under reward
    chosen = []
    for path in candidates:
        if not path.is_dir() or path.is_symlink():
            continue
        if path not in rooms and any(path == n or path in n.parents for n in needed):
            continue
        chosen.append(path)
    return chosen


def _mapped_files() -> list[Path]:
    with open("/proc/self/maps") as file:
        return list({Path(line.split(maxsplit=5)[5].strip()) for line in file if " /" in line})


def set_rlimits(limits: Limits, device: str) -> None:
    """Bounds that the kernel enforces for each process; the supervisor bounds their sum."""

    def bound(what: int, value: int) -> None:
        _soft, hard = resource.getrlimit(what)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (value, value))

    bound(resource.RLIMIT_CORE, 0)
    bound(resource.RLIMIT_NOFILE, 4096)
    bound(resource.RLIMIT_FSIZE, limits.tmp_bytes)
    bound(resource.RLIMIT_MSGQUEUE, 0)
    if device == "cpu":  # the CUDA driver maps more than it uses
        with open("/proc/self/statm") as file:
            data_pages = int(file.read().split()[5])
        bound(resource.RLIMIT_DATA, data_pages * resource.getpagesize() + limits.memory_bytes)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def lock_down(report: IsolationReport, rules: Iterable[Rule], directory: Path, limits: Limits, device: str) -> None:
    """Confine this process, and all that it starts, for good. The order matters: each step needs the ones before.

    Raises:
        OSError: a layer that worked when the zygote started does not work now.
    """
    kind = "cpu" if device == "cpu" else "cuda"
    set_rlimits(limits, kind)
    if "no-new-privileges" in report:
        linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    if "no-capabilities" in report:
        linux.drop_capabilities()
    if "landlock" in report:
        own = [Rule(str(directory), ~0)]
        if "pid-namespace" in report:
            own.append(Rule("/proc", READ_FILE | READ_DIR))
        if "mount-namespace" in report:
            own.append(Rule(PRIVATE_MOUNT, ~0))
        landlock.restrict([*rules, *own], report.landlock_abi)
    if "not-dumpable" in report:
        linux.prctl(linux.PR_SET_DUMPABLE, 0)
    if "pid-namespace" not in report:
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    if "seccomp" in report:
        confined = "pid-namespace" in report or report.landlock_abi >= 6
        seccomp.install(kind, None if confined else os.getpid())


def main() -> None:
    """Print the report as JSON."""
    print(json.dumps(choose().to_dict()))


if __name__ == "__main__":
    main()
