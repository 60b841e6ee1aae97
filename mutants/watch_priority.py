"""Give way to everything else on the machine: what the watcher's passes do to themselves and to all that they start.

Measured on one core of a kernel with autogrouping (6.18), a spinning process in a session of its own against another in
its own: nice 19 gets 50 % of the core, SCHED_BATCH 50 %, SCHED_IDLE 50 %, niceness 19 of its session 2 % and niceness
11 8 %. So both the process and its session get the niceness, and SCHED_BATCH marks the process: children inherit it,
and those that would start a session of their own stay in one of that weight (`reward.sandbox.linux.new_session`).

Niceness 11 weighs 87 against the 1024 of a process that is not nice: at most 8 % of a core that somebody else could use
all of; 19 weighs 15, 1.5 %. A pass that answers an edit, and the first of all, takes stock at niceness 4 (29 %), which
is five seconds of computing, so that its first publication comes within a minute where all cores are busy, and measures
what the edit made stale at 11. Kernels that the reward accepted are verified at 11; mutants that were never measured,
which nobody waits for, run at 19.
"""

import os
import platform
from dataclasses import dataclass

from ..reward.sandbox import linux

NICE = 11
EAGER = 4
BACKLOG = 19
EAGER_S = 30.0  # for so long at most, by the clock on the wall
_SYS_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_IOPRIO_WHO_PROCESS = 1
_IOPRIO_IDLE = 3 << 13


@dataclass(frozen=True, slots=True)
class Priority:
    """What took effect.

    Attributes:
        nice: of this process.
        session: its session is as nice; False also where the kernel has no autogroups, and then `nice` reaches every
            other process.
        io: its reads and writes wait for those of others.
    """

    nice: int
    session: bool
    io: bool


def niceness(nice: int, awaited: bool, banked: bool) -> tuple[int, int]:
    """Of a pass, until its mutants begin (for `EAGER_S` at most), and afterwards.

    Args:
        nice: of a pass that answers something; 0 changes nothing, whoever waits.
        awaited: whether it is the first, or answers an edit.
        banked: whether the reward accepted kernels since the last one, which are verified before the mutants begin.
    """
    if awaited:
        return min(EAGER, nice), nice
    later = max(BACKLOG, nice) if nice else 0
    return nice if banked else later, later


def give_way(nice: int = NICE) -> Priority:
    """Lower this process for good, in a session of its own: the weight is that of all processes in it.

    From any thread; threads and processes that the first one starts from now on inherit what it has.

    Args:
        nice: 1 to 19; 0 changes nothing.

    Raises:
        OSError: it leads a process group in somebody else's session.
    """
    if nice <= 0:
        return Priority(os.getpriority(os.PRIO_PROCESS, 0), session=False, io=False)
    me = os.getpid()
    if os.getsid(0) != me:
        os.setsid()
    os.setpriority(os.PRIO_PROCESS, me, max(nice, os.getpriority(os.PRIO_PROCESS, me)))
    os.sched_setscheduler(me, os.SCHED_BATCH, os.sched_param(0))
    return Priority(os.getpriority(os.PRIO_PROCESS, me), linux.lighten_session(), _idle_io())


def _idle_io() -> bool:
    number = _SYS_IOPRIO_SET.get(platform.machine())
    if number is None:
        return False
    try:
        linux.syscall(number, "ioprio_set", _IOPRIO_WHO_PROCESS, 0, _IOPRIO_IDLE)
    except OSError:
        return False
    return True
