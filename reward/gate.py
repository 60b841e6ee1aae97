"""Who may use the device, and how much of its memory: many at once to judge, one alone to measure time."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class DeviceGate:
    """A lock that is shared or exclusive. Whoever waits to be alone holds back newcomers."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._inside = 0
        self._alone = False
        self._waiting = 0

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Use the device together with others."""
        with self._condition:
            self._condition.wait_for(lambda: not self._alone and not self._waiting)
            self._inside += 1
        try:
            yield
        finally:
            with self._condition:
                self._inside -= 1
                self._condition.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Use the device alone."""
        with self._condition:
            self._waiting += 1
            try:
                self._condition.wait_for(lambda: not self._alone and not self._inside)
            finally:
                self._waiting -= 1
            self._alone = True
        try:
            yield
        finally:
            with self._condition:
                self._alone = False
                self._condition.notify_all()


class ByteBudget:
    """Memory that entries under way may use together. One entry alone may always start: that it fits was planned.

    Args:
        limit: the bytes for all of them now, those already in use included.
    """

    def __init__(self, limit: Callable[[int], int]) -> None:
        self._limit = limit
        self._condition = threading.Condition()
        self._used = 0

    @contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """Wait until this many bytes are free, and take them for a while."""
        with self._condition:
            self._condition.wait_for(lambda: not self._used or self._used + size <= self._limit(self._used))
            self._used += size
        try:
            yield
        finally:
            with self._condition:
                self._used -= size
                self._condition.notify_all()
