"""The few Linux calls that Python's standard library lacks, through ctypes."""

import ctypes
import os
from typing import Final

CLONE_NEWNS: Final = 0x00020000
CLONE_NEWIPC: Final = 0x08000000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWPID: Final = 0x20000000
CLONE_NEWNET: Final = 0x40000000

PR_SET_PDEATHSIG: Final = 1
PR_SET_DUMPABLE: Final = 4
PR_CAPBSET_DROP: Final = 24
PR_SET_CHILD_SUBREAPER: Final = 36
PR_SET_NO_NEW_PRIVS: Final = 38
PR_SET_SECCOMP: Final = 22

_libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> int:
    """The result, or OSError with errno and the name of the call.

    Raises:
        OSError: the call failed.
    """
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def prctl(option: int, value: int = 0, third: int = 0) -> None:
    """prctl(2).

    Raises:
        OSError: the call failed.
    """
    long = ctypes.c_ulong
    check(_libc.prctl(ctypes.c_int(option), long(value), long(third), long(0), long(0)), f"prctl({option})")


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
