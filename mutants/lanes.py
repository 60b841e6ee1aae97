"""Where a calibration's kernels are judged side by side: threads of this process, or processes of their own.

Between two forward calls a judge compares tensors, in Python. On a CPU the forward calls take most of the time, and
threads share what was drawn. On a GPU they take milliseconds, and a dozen threads would wait for the interpreter's
lock (37 evaluations a second were read with fourteen of them on an H200); so each lane is a process there, with a
zygote and draws of its own.
"""

import os
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Concatenate, ParamSpec, Self, TypeVar

import torch

from ..reward.sandbox import linux
from .evaluate import Evaluator

P = ParamSpec("P")
R = TypeVar("R")


class Lanes:
    """Runs functions that need an evaluator; a context manager.

    Args:
        evaluator: of this process.
        count: lanes; one of its own process does one thing at a time.
        apart: whether lanes are processes.
        spare: whether these have the next child made ahead, see `Evaluator`.
    """

    def __init__(self, evaluator: Evaluator, count: int, apart: bool, spare: bool = True) -> None:
        self.count = count
        self._here = None if apart else evaluator
        context = get_context("spawn")
        self._processes = [
            ProcessPoolExecutor(
                1, mp_context=context, initializer=_begin, initargs=(evaluator.device, count, spare, os.getpid())
            )
            for _ in range(count if apart else 0)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.shutdown(cancel_futures=True)

    def run(
        self, lane: int, function: Callable[Concatenate[Evaluator, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """`function(evaluator, ...)` on a lane, which starts when it is first used. Blocks; from any thread.

        Raises:
            what the function raises.
        """
        if self._here is not None:
            return function(self._here, *args, **kwargs)
        return self._processes[lane].submit(_call, function, args, kwargs).result()


_evaluator: Evaluator | None = None


def _begin(device: str, sharers: int, spare: bool, parent: int) -> None:
    """In a lane's process."""
    global _evaluator
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started the lanes says when they end
    linux.end_with_process(parent)
    _evaluator = Evaluator(device, sharers=sharers, spare=spare)


def _call(function: Callable[..., R], args: tuple[object, ...], kwargs: dict[str, object]) -> R:
    assert _evaluator is not None
    return function(_evaluator, *args, **kwargs)
