"""Give way to everything else on the machine: what the watcher's passes do to themselves and to all that they start.

Measured on one core of a kernel with autogrouping (6.18), a spinning process in a session of its own against another in
its own: nice 19 gets 50 % of the core, SCHED_BATCH 50 %, SCHED_IDLE 50 %, niceness 19 of its session 2 % and niceness
11 8 %. So both the process and its session get the niceness, and SCHED_BATCH marks the process: children inherit it,
and those that would start a session of their own stay in one of that weight (`reward.sandbox.linux.new_session`).

Niceness 11 weighs 87 against the 1024 of a process that is not nice: at most 8 % of a core that somebody else could use
all of; 19 would be 1.5 %, too little for limits that count seconds on the wall. A pass that answers an edit, and the
first of all, takes stock at niceness 4 (29 %), which is five seconds of computing, so that its first publication comes
within a minute where all cores are busy.

Priority decides who gets a core, and nothing else: of two virtual cores, a loop on one took 15 % longer while anything
computed on the other. So a pass that nobody waits for works a tenth of the time (`Pace`).
"""

import os
import platform
import threading
import time
from dataclasses import dataclass

from ..reward.sandbox import linux

NICE = 11
EAGER = 4
UNAWAITED_SHARE = 1 / 10  # of the time, of a pass that nobody waits for
PATIENCE = 6.0  # times the limits of a kernel's calls: they count seconds on the wall, of which a pass gets a part
EAGER_S = 30.0  # for so long at most, by the clock on the wall
_LONGEST_REST_S = 10.0
_MOST_OWED_S = 300.0
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


class Pace:
    """Rests between two cells, in proportion to the time since the last rest. Each thread has its own.

    A rest is short; what it leaves is rested later, up to five minutes of it. To screen a batch of mutants takes longer
    than many cells, and where that was forgiven a pass worked far more than its share.

    Priority decides who gets a core. It does not reach what cores share: clock, caches, memory, a hardware thread.

    Args:
        share: of the time that is worked.
    """

    def __init__(self, share: float) -> None:
        self._rest = 1.0 / share - 1.0
        self._local = threading.local()
        self._ended = threading.Event()

    def __call__(self) -> None:
        """Rest, if there was work before."""
        began = time.monotonic()
        owed: float = getattr(self._local, "owed", 0.0) + self._rest * (began - getattr(self._local, "resumed", began))
        self._ended.wait(min(_LONGEST_REST_S, owed))
        self._local.resumed = time.monotonic()
        self._local.owed = min(_MOST_OWED_S, max(0.0, owed - (self._local.resumed - began)))

    def end(self) -> None:
        """No more rests. From any thread."""
        self._ended.set()
