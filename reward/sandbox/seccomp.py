"""A system-call filter: calls that no kernel needs and that reach outside the sandbox fail with EPERM."""

import ctypes
import errno
import platform
import struct
from typing import Final

from . import linux

# name: (x86_64, aarch64); -1 where an architecture lacks it.
DENIED: Final[dict[str, tuple[int, int]]] = {
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    # namespaces and mounts
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    # large or rarely audited parts of the kernel
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "fanotify_init": (300, 262),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # the machine
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, -1),
    "ioperm": (173, -1),
    # memory that belongs to no process and so escapes the memory limit
    "shmget": (29, 194),
    "memfd_secret": (447, 447),
}
# On a CPU nothing honest needs these; the CUDA driver may.
DENIED_ON_CPU: Final = {"memfd_create": (319, 279)}
SOCKET: Final = (41, 198)
CLONE: Final = (56, 220)
CLONE3: Final = (435, 435)
KILL: Final = (62, 129)
TGKILL: Final = (234, 131)
# Without a pid namespace and without Landlock's signal scope, signals go to the own process alone.
SIGNALS: Final = {
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
}

_ARCHITECTURES: Final = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000
_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_JEQ: Final = 0x15
_JGE: Final = 0x35
_JSET: Final = 0x45
_RETURN: Final = 0x06
_NR, _ARCH, _ARG0 = 0, 4, 16
_X32_BIT: Final = 0x40000000
_AF_UNIX: Final = 1


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def supported() -> bool:
    """Whether this module knows the architecture's call numbers."""
    return platform.machine() in _ARCHITECTURES


def _instruction(code: int, value: int, on_true: int = 0, on_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, on_true, on_false, value & 0xFFFFFFFF)


def _deny(number: int, error: int = errno.EPERM) -> list[bytes]:
    return [_instruction(_JEQ, number, 0, 1), _instruction(_RETURN, _ERRNO | error)]


def program(device: str, own_pid: int | None) -> bytes:
    """The filter's instructions.

    Args:
        device: `cpu` or `cuda`; the CUDA driver needs Unix sockets and memfds.
        own_pid: where signals must be confined to the process by number, its process id.

    Raises:
        KeyError: an unknown architecture.
    """
    column, audit = _ARCHITECTURES[platform.machine()]
    code = [
        _instruction(_LOAD, _ARCH),
        _instruction(_JEQ, audit, 1, 0),
        _instruction(_RETURN, _ERRNO | errno.ENOSYS),
        _instruction(_LOAD, _NR),
    ]
    if column == 0:
        code += [_instruction(_JGE, _X32_BIT, 0, 1), _instruction(_RETURN, _ERRNO | errno.ENOSYS)]
    denied = dict(DENIED)
    if device == "cpu":
        denied |= DENIED_ON_CPU
        code += _deny(SOCKET[column], errno.EACCES)
    if own_pid is not None:
        denied |= SIGNALS
    for numbers in denied.values():
        if numbers[column] >= 0:
            code += _deny(numbers[column])
    code += _deny(CLONE3[column], errno.ENOSYS)  # its flags are behind a pointer; libc falls back to clone
    # From here on the accumulator holds an argument: each block ends by loading the number again.
    code += _when(CLONE[column], [_instruction(_JSET, linux.CLONE_NEW_ANY, 0, 1), _refuse(errno.EPERM)])
    if device != "cpu":
        code += _when(SOCKET[column], [_instruction(_JEQ, _AF_UNIX, 1, 0), _refuse(errno.EACCES)])
    if own_pid is not None:
        for number in (KILL[column], TGKILL[column]):
            own = [_instruction(_JEQ, own_pid, 2, 0), _instruction(_JEQ, 0, 1, 0), _refuse(errno.EPERM)]
            code += _when(number, own)
    return b"".join([*code, _instruction(_RETURN, _ALLOW)])


def _refuse(error: int) -> bytes:
    return _instruction(_RETURN, _ERRNO | error)


def _when(number: int, body: list[bytes]) -> list[bytes]:
    """For one call: load its first argument, run the body, load the number again."""
    inner = [_instruction(_LOAD, _ARG0), *body, _instruction(_LOAD, _NR)]
    return [_instruction(_JEQ, number, 0, len(inner)), *inner]


def install(device: str, own_pid: int | None) -> None:
    """Filter this thread and everything it starts. Needs no_new_privs.

    Raises:
        OSError: the kernel has no filters.
        KeyError: an unknown architecture.
    """
    instructions = program(device, own_pid)
    storage = ctypes.create_string_buffer(instructions, len(instructions))
    filter_ = _Program(len(instructions) // 8, ctypes.cast(storage, ctypes.c_void_p))
    linux.prctl(linux.PR_SET_SECCOMP, 2, ctypes.addressof(filter_))
