"""The few Linux calls that Python's standard library lacks, through ctypes."""

import ctypes
import errno
import os
import platform
import signal
import time
from typing import Final

CLONE_NEWNS: Final = 0x00020000
CLONE_NEWCGROUP: Final = 0x02000000
CLONE_NEWUTS: Final = 0x04000000
CLONE_NEWIPC: Final = 0x08000000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWPID: Final = 0x20000000
CLONE_NEWNET: Final = 0x40000000
CLONE_NEW_ANY: Final = (
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET
)

PR_SET_PDEATHSIG: Final = 1
PR_SET_DUMPABLE: Final = 4
PR_SET_SECCOMP: Final = 22
PR_CAPBSET_DROP: Final = 24
PR_SET_CHILD_SUBREAPER: Final = 36
PR_SET_NO_NEW_PRIVS: Final = 38

MS_RDONLY: Final = 0x1
MS_NOSUID: Final = 0x2
MS_NODEV: Final = 0x4
MS_NOEXEC: Final = 0x8
MS_REC: Final = 0x4000
MS_PRIVATE: Final = 0x40000

# These have the same number on every architecture (they came after the tables were unified).
SYS_MOUNT_SETATTR: Final = 442
SYS_LANDLOCK_CREATE_RULESET: Final = 444
SYS_LANDLOCK_ADD_RULE: Final = 445
SYS_LANDLOCK_RESTRICT_SELF: Final = 446
SYS_CAPSET: Final = {"x86_64": 126, "aarch64": 91}

AT_FDCWD: Final = -100
AT_RECURSIVE: Final = 0x8000
MOUNT_ATTR_RDONLY: Final = 0x1

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def check(result: int, what: str) -> int:
    """The result, or OSError with errno and the name of the call.

    Raises:
        OSError: the call failed.
    """
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(number: int, what: str, *arguments: int | ctypes.Array[ctypes.c_char] | ctypes.Structure | None) -> int:
    """A raw system call; structures are passed by reference.

    Raises:
        OSError: the call failed.
    """
    converted: list[object] = []
    for argument in arguments:
        if argument is None:
            converted.append(ctypes.c_void_p(None))
        elif isinstance(argument, int):
            converted.append(ctypes.c_long(argument))
        else:
            converted.append(ctypes.byref(argument))
    return check(_libc.syscall(ctypes.c_long(number), *converted), what)


def prctl(option: int, value: int = 0, third: int = 0) -> None:
    """prctl(2).

    Raises:
        OSError: the call failed.
    """
    long = ctypes.c_ulong
    check(_libc.prctl(ctypes.c_int(option), long(value), long(third), long(0), long(0)), f"prctl({option})")


def end_with(parent: int) -> None:
    """Have this process killed when its parent ends, and at once where it has ended already.

    For a child of a process with one thread: the signal is sent when the parent's *thread* that started it ends (and
    not at all by a parent that was killed while its child still started).

    Args:
        parent: the process id of the one that started this one.
    """
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def unshare(flags: int) -> None:
    """unshare(2).

    Raises:
        OSError: the call failed.
    """
    check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def setns(fd: int, kind: int) -> None:
    """setns(2).

    Raises:
        OSError: the call failed.
    """
    check(_libc.setns(ctypes.c_int(fd), ctypes.c_int(kind)), "setns")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """mount(2).

    Raises:
        OSError: the call failed.
    """
    flags_ = ctypes.c_ulong(flags)
    result = _libc.mount(source.encode(), target.encode(), kind.encode(), flags_, options.encode())
    check(result, f"mount {target}")


class _MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


def make_readonly(target: str) -> None:
    """Every mount at and below the target becomes read-only (Linux 5.12).

    Raises:
        OSError: the call failed.
    """
    attributes = _MountAttr(attr_set=MOUNT_ATTR_RDONLY)
    path = ctypes.create_string_buffer(target.encode())
    size = ctypes.sizeof(attributes)
    syscall(SYS_MOUNT_SETATTR, "mount_setattr", AT_FDCWD, path, AT_RECURSIVE, attributes, size)


class _CapHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _CapData(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in "abcdef"]


def drop_capabilities() -> None:
    """Give up every capability, for good.

    Raises:
        OSError: the call failed, or the architecture is not known.
    """
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError as error:
            if error.errno == errno.EINVAL:  # past the last one that this kernel knows
                break
            if error.errno != errno.EPERM:  # an ordinary user has none to drop
                raise
    number = SYS_CAPSET.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"capset: unknown architecture {platform.machine()}")
    syscall(number, "capset", _CapHeader(version=0x20080522), _CapData())


def new_session() -> None:
    """setsid; a process that gives way to others (SCHED_BATCH) only leaves its process group.

    Where autogrouping is on, the kernel shares the CPU between sessions before it looks at processes, so no priority of
    a process reaches across them, and every new session starts at full weight. A process that gives way stays in a
    session that does (`lighten_session`).
    """
    if os.sched_getscheduler(0) == os.SCHED_BATCH:
        os.setpgid(0, 0)
    else:
        os.setsid()


def lighten_session() -> bool:
    """Give the session of a process that gives way (SCHED_BATCH, which children inherit) the process's own niceness.

    Returns:
        Whether it has it now. False for other processes, and where the kernel has no autogroups.
    """
    if os.sched_getscheduler(os.getpid()) != os.SCHED_BATCH:  # of its first thread, whichever one asks
        return False
    try:
        group = os.open("/proc/self/autogroup", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    nice = str(os.getpriority(os.PRIO_PROCESS, os.getpid())).encode()
    try:
        for _ in range(4):
            try:
                os.write(group, nice)
                return True
            except BlockingIOError:  # without privileges, once in 100 ms on the whole machine
                time.sleep(0.04)
        return False
    except OSError:
        return False
    finally:
        os.close(group)
