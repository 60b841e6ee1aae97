"""A candidate's own confinement: what it may read, and giving up everything else for good.

Runs in the zygote (working out the rules, once) and in the candidate's process before its code (`lock_down`).
"""

import contextlib
import importlib.util
import os
import resource
import shutil
import signal
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from . import landlock, linux, seccomp
from .isolation import PRIVATE_MOUNT, IsolationReport
from .landlock import READ, READ_DIR, READ_FILE, Rule
from .limits import Limits

ROOM: Final = __package__.rsplit(".", 2)[0]  # `kernelward`


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


def toolchain_folders() -> list[Path]:
    """Folders of the compilers on the search path, wherever they are: Triton and load_inline run them."""
    names = ("cc", "gcc", "g++", "c++", "clang", "clang++", "ld", "as", "nvcc", "ninja")
    found = [shutil.which(name) for name in (*names, os.environ.get("CC", ""), os.environ.get("CXX", "")) if name]
    folders = []
    for program in {Path(os.path.realpath(p)) for p in found if p}:
        folders.append(program)
        if program.parent.name == "bin":
            parts = ("bin", "lib", "lib64", "libexec", "include", "share/gcc")
            folders += [program.parent.parent / part for part in parts]
    return _distinct(folders)


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
    for root in _distinct([*system, *python_folders(), *toolchain_folders()]):
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
        names = "self cpuinfo meminfo stat version filesystems loadavg devices modules sys/vm sys/kernel driver"
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
