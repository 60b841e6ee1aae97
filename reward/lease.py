"""Who uses a GPU first: the reward says while it judges, and what measures in the background waits.

One file per device in the cache folder, and a lock on it that the system releases with the process that holds it. A
judge holds it shared while it judges a candidate, so judges never wait for one another or for anybody. A background
process asks whether anyone holds it, and starts nothing while that is so; what it has begun it finishes.
"""

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path

from ..suites.suite_cache import cache_folder


class DeviceLease:
    """The lease of one device.

    Args:
        device: `cuda:N` as this process numbers its devices, so CUDA_VISIBLE_DEVICES counts; processes that name one
            device differently there (by number and by UUID) do not see each other.
        folder: of the files; by default in the cache folder.
    """

    def __init__(self, device: str, folder: Path | None = None) -> None:
        self.path = (folder or cache_folder() / "leases") / f"{_physical(device)}.lease"

    def held(self) -> contextlib.AbstractContextManager[None]:
        """In use, by any number at a time. Where the file cannot be made, nobody is told."""
        return self._locked(fcntl.LOCK_SH)

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """In use by one at a time: waits for its turn. Where the file cannot be made, nobody waits."""
        return self._locked(fcntl.LOCK_EX)

    @contextlib.contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        fd = self._open()
        try:
            if fd is not None:
                fcntl.flock(fd, how)
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
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError:
            return None


def _physical(device: str) -> str:
    index = int(device.partition(":")[2] or 0)
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    name = visible[index] if index < len(visible) else str(index)
    return "cuda-" + re.sub(r"[^\w-]", "_", name)
