"""Futures as they end."""

from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any


def as_done(futures: Iterable[Future[Any]]) -> Iterator[Future[Any]]:
    """Futures as they end; the first failure is raised, and cancels those that have not begun."""
    waiting = set(futures)
    try:
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                future.result()
                yield future
    finally:
        for future in waiting:
            future.cancel()
