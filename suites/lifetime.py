"""Processes that do not outlive whoever started them."""

import contextlib
import os
import select
import signal
import threading
import time

_LOOK_S = 1.0


def end_with_process(parent: int) -> None:
    """Have this process killed when its parent ends, and at once where it has ended already.

    For a child of a process with several threads: the kernel's own signal (PR_SET_PDEATHSIG) comes when the *thread*
    ends that started this process. Where the kernel cannot wait for a process (before Linux 5.3), a thread looks now
    and then.

    Args:
        parent: the process id of the one that started this one.
    """
    alive = -1
    with contextlib.suppress(OSError, AttributeError):  # a Python may lack it as well
        alive = os.pidfd_open(parent)
    if os.getppid() != parent:  # the number may be somebody else's by now
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Thread(target=_end_after, args=(parent, alive), name="end-with-parent", daemon=True).start()


def _end_after(parent: int, pidfd: int) -> None:
    if pidfd >= 0:
        ended = select.poll()
        ended.register(pidfd, select.POLLIN)
        ended.poll()
    else:
        while os.getppid() == parent:
            time.sleep(_LOOK_S)
    os.kill(os.getpid(), signal.SIGKILL)
