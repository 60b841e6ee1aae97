"""Where a calibration's kernels are judged side by side: threads of this process, or processes of their own.

Between two forward calls a judge compares tensors, in Python. On a CPU the forward calls take most of the time, and
threads share what was drawn. On a GPU they take milliseconds, and a dozen threads would wait for the interpreter's
lock (37 evaluations a second were read with fourteen of them on an H200); so each lane is a process there, with a
zygote and draws of its own.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Concatenate, ParamSpec, Self, TypeVar

import torch

from ..reward.sandbox.failure import ChildFailure
from ..suites.lifetime import end_with_process
from .evaluate import Evaluator

AGAIN_S = 5.0  # before a lane whose process ended is used again
ENDS = 5  # processes of one lane that end in a row before nothing is tried any more
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
        self._begins = (evaluator.device, count, spare, os.getpid())
        self._ended = [0] * count
        self._lock = threading.Lock()
        self._processes = [self._process() for _ in range(count if apart else 0)]

    def _process(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_begin, initargs=self._begins)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.shutdown(cancel_futures=True)

    def run(
        self, lane: int, function: Callable[Concatenate[Evaluator, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """`function(evaluator, ...)` on a lane, which starts when it is first used. Blocks; from any thread.

        A lane whose process ended, or could not begin on a GPU that was full just then, has another one from then on.

        Raises:
            what the function raises.
            ChildFailure: `infra_error` (`lane`): its process ended meanwhile.
            BrokenProcessPool: so did `ENDS` processes of this lane in a row.
        """
        if self._here is not None:
            return function(self._here, *args, **kwargs)
        process = self._processes[lane]
        try:
            job = process.submit(_call, function, args, kwargs)
            wait([job])
            broken = job.exception()
        except BrokenProcessPool as error:  # before it was given the job
            broken = error
        if not isinstance(broken, BrokenProcessPool):
            self._ended[lane] = 0
            return job.result()
        with self._lock:  # several threads may have waited for it
            if self._processes[lane] is process:
                self._processes[lane] = self._process()
                self._ended[lane] += 1
            ended = self._ended[lane]
        if ended >= ENDS:
            raise broken
        time.sleep(AGAIN_S)
        raise ChildFailure("infra_error", "lane", f"the process of a lane ended: {broken}", "run")


_evaluator: Evaluator | None = None


def _begin(device: str, sharers: int, spare: bool, parent: int) -> None:
    """In a lane's process."""
    global _evaluator
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started the lanes says when they end
    end_with_process(parent)
    _evaluator = Evaluator(device, sharers=sharers, spare=spare)


def _call(function: Callable[..., R], args: tuple[object, ...], kwargs: dict[str, object]) -> R:
    assert _evaluator is not None
    return function(_evaluator, *args, **kwargs)
