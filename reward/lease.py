"""Who uses a GPU when: what measures in the background waits while the reward judges, and large work takes turns.

One file per device in the cache folder, and a lock on it that the system releases with the process that holds it. A
judge holds it shared while it judges a candidate, so judges never wait for one another or for anybody. A background
process asks whether anyone holds it, and starts nothing while that is so; what it has begun it finishes.

Entries of a calibration that need gigabytes take shares of the device's memory: as many are under way as fit.
"""

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from ..suites.suite_cache import cache_folder

SHARES = 16
_POLL_S = 0.02


class DeviceLease:
    """The lease of one device.

    Args:
        device: `cuda:N` as this process numbers its devices, so CUDA_VISIBLE_DEVICES counts; processes that name one
            device differently there (by number and by UUID) do not see each other.
        folder: of the files; by default in the cache folder.
    """

    def __init__(self, device: str, folder: Path | None = None) -> None:
        self.path = (folder or cache_folder() / "leases") / f"{_physical(device)}.lease"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """In use, by any number at a time. Where the file cannot be made, nobody is told."""
        fd = self._open()
        try:
            if fd is not None:
                fcntl.flock(fd, fcntl.LOCK_SH)
            yield
        finally:
            if fd is not None:
                os.close(fd)

    def idle(self) -> bool:
        """Whether nobody holds it now."""
        fd = self._open()
        if fd is None:
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False
        finally:
            os.close(fd)

    def _open(self) -> int | None:
        return _opened(self.path)


class DeviceShares:
    """A device's memory in equal shares, which processes take and give back; locks that end with their process.

    Who waits for shares holds back newcomers, so that much is not starved by little.

    Args:
        device: as for `DeviceLease`.
        total: bytes that there are to share.
        folder: of the files; by default in the cache folder.
    """

    def __init__(self, device: str, total: int, folder: Path | None = None) -> None:
        self._folder = (folder or cache_folder() / "shares") / _physical(device)
        self._share = max(1, total // SHARES)

    @contextlib.contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """Wait until so many bytes are free, all of them at most. Where the files cannot be made, nobody waits."""
        wanted = min(SHARES, -(-size // self._share))
        with contextlib.ExitStack() as taken:
            with contextlib.ExitStack() as turn:
                first = _opened(self._folder / "turn")
                if first is not None:
                    turn.callback(os.close, first)
                    with contextlib.suppress(OSError):  # a file system without locks
                        fcntl.flock(first, fcntl.LOCK_EX)
                        self._take(wanted, taken)
            yield

    def _take(self, wanted: int, taken: contextlib.ExitStack) -> None:
        left = list(range(SHARES))
        while wanted > 0:
            for number in list(left):
                fd = _opened(self._folder / str(number))
                if fd is None:
                    return
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(fd)
                    continue
                except OSError:
                    os.close(fd)
                    raise
                taken.callback(os.close, fd)
                left.remove(number)
                wanted -= 1
                if not wanted:
                    return
            time.sleep(_POLL_S)


def _opened(path: Path) -> int | None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError:
        return None


def _physical(device: str) -> str:
    index = int(device.partition(":")[2] or 0)
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    name = visible[index] if index < len(visible) else str(index)
    return "cuda-" + re.sub(r"[^\w-]", "_", name)
