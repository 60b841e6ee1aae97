"""An allow-list view of the file system for one process and everything it starts (Landlock, Linux 5.13)."""

import contextlib
import ctypes
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from . import linux

EXECUTE: Final = 1 << 0
WRITE_FILE: Final = 1 << 1
READ_FILE: Final = 1 << 2
READ_DIR: Final = 1 << 3
REFER: Final = 1 << 13
TRUNCATE: Final = 1 << 14
IOCTL_DEV: Final = 1 << 15
READ: Final = EXECUTE | READ_FILE | READ_DIR
FILE_ONLY: Final = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV

_NET_TCP: Final = 0b11  # bind and connect, ABI 4
_SCOPES: Final = 0b11  # abstract Unix sockets and signals stay within the domain, ABI 6


class _RulesetAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("fs", "net", "scoped")]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


@dataclass(frozen=True, slots=True)
class Rule:
    """What may be done at a path and below it (bits of this module)."""

    path: str
    access: int


def abi() -> int:
    """The Landlock version of this kernel; 0 if there is none."""
    try:
        return linux.syscall(linux.SYS_LANDLOCK_CREATE_RULESET, "landlock_create_ruleset", None, 0, 1)
    except OSError:
        return 0


def handled(version: int) -> int:
    """Every file-system access that this version can deny."""
    count = 13 if version < 2 else 14 if version < 3 else 15 if version < 5 else 16
    return (1 << count) - 1


def expand(root: Path, access: int, hidden: Sequence[Path]) -> list[Rule]:
    """Rules that allow a tree without some of its branches (Landlock itself can only allow).

    Folders on the way to a hidden branch may be listed, so that importing from them keeps working.
    """
    if any(root == h or h in root.parents for h in hidden):
        return []
    if not any(root in h.parents for h in hidden):
        return [Rule(str(root), access)]
    rules = [Rule(str(root), READ_DIR)]
    with contextlib.suppress(OSError):
        for child in sorted(root.iterdir()):
            if not child.is_symlink():
                rules += expand(child, access, hidden)
    return rules


def restrict(rules: Iterable[Rule], version: int) -> None:
    """Confine this thread to the rules; paths that do not exist are left out.

    Needs no_new_privs. What the kernel's version does not know is left alone.

    Raises:
        OSError: the kernel refused.
    """
    everything = handled(version)
    attributes = _RulesetAttr(everything, _NET_TCP if version >= 4 else 0, _SCOPES if version >= 6 else 0)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = linux.syscall(linux.SYS_LANDLOCK_CREATE_RULESET, "landlock_create_ruleset", attributes, size, 0)
    try:
        for rule in rules:
            _add(ruleset, rule, everything)
        linux.syscall(linux.SYS_LANDLOCK_RESTRICT_SELF, "landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)


def _add(ruleset: int, rule: Rule, everything: int) -> None:
    try:
        fd = os.open(rule.path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        access = rule.access & everything
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            access &= FILE_ONLY
        if access:
            beneath = _PathBeneath(access, fd)
            linux.syscall(linux.SYS_LANDLOCK_ADD_RULE, "landlock_add_rule", ruleset, 1, beneath, 0)
    finally:
        os.close(fd)
