"""Default suites of many problems, each built in a process of its own: a crash or a spent device costs one problem."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context

import torch

from .defaults import GPU_SHARE, build_default_suite, short_of_memory
from .draw import entry_bytes
from .entry import Entry
from .errors import InputError
from .lifetime import end_with_process
from .problem import Problem, is_out_of_memory
from .suite import Suite
from .suite_cache import Built, cache_key, cached, stored
from .tolerance import TolerancePolicy
from .validity import Admission

HEADROOM = 1.5  # times its part of a GPU a process may take: fan-in asks for more for a moment, hardly all at once


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one problem.

    Attributes:
        problem_id: whose suite was asked for.
        suite: the suite; None where no entry is admitted (it cannot be refereed), or where `failure` says why not.
        rejected: what the gate rejected.
        failure: why nothing is known: the problem's code is broken, or the process that built it ended.
    """

    problem_id: str
    suite: Suite | None
    rejected: tuple[Admission, ...]
    failure: str = ""


class _Crowded(Exception):
    """Memory was short while others used it as well."""


class Room:
    """Shares of one device's memory: those inside hold at most all of it, or one is there alone. Thread-safe."""

    def __init__(self) -> None:
        self._held = 0.0
        self._inside = 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def share(self, part: float) -> Iterator[None]:
        """Wait until that part, 0 to 1, is free; whoever needs less may go first."""
        with self._changed:
            self._changed.wait_for(lambda: not self._inside or self._held + part <= 1.0)
            self._held, self._inside = self._held + part, self._inside + 1
        try:
            yield
        finally:
            with self._changed:
                self._held, self._inside = self._held - part, self._inside - 1
                self._changed.notify_all()


def build_many(
    problems: Sequence[Problem],
    device: str,
    policy: TolerancePolicy,
    workers: int,
    done: Callable[[Outcome], None],
) -> None:
    """Build default suites several at a time, in no set order; suites in the cache are taken from there.

    On a GPU problems wait for each other where their declared shapes are large. One whose entries found too little
    memory beside the others all the same is built again at the end, alone, before anything is concluded from that.
    What was built stays in the cache, so a run that is ended goes on where it stopped.

    Args:
        device: `cpu` or `cuda:N`.
        workers: processes at one time, at least 1; with more than one, each computes on one thread.
        done: called in this thread with each outcome.
    """
    crowded: list[Problem] = []
    room = Room()

    def build(problem: Problem) -> Outcome:
        part = max(_part(problem, torch.device(device)), 1 / (4 * workers))  # a context takes some in any case
        with room.share(part):
            return _outcome(problem, device, policy, part if workers > 1 else 1.0)

    with ThreadPoolExecutor(workers) as pool:
        try:
            runs = {pool.submit(build, p): p for p in problems}
            for run in as_completed(runs):
                try:
                    outcome = run.result()
                except _Crowded:
                    crowded.append(runs[run])
                else:
                    done(outcome)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    for problem in crowded:
        done(_outcome(problem, device, policy, part=1.0))


def _part(problem: Problem, device: torch.device) -> float:
    """The part of a GPU's memory that a problem's suite may take to build; 0 elsewhere."""
    if device.type != "cuda":
        return 0.0
    try:
        size = entry_bytes(problem, Entry.make("own"))
    except InputError:  # it is told where it is built
        return 0.0
    return min(1.0, GPU_SHARE * size / torch.cuda.get_device_properties(device).total_memory)


def _outcome(problem: Problem, device: str, policy: TolerancePolicy, part: float) -> Outcome:
    found = stored(cache_key(problem, torch.device(device).type, policy.name))
    if found is not None:
        return Outcome(problem.id, *found)
    try:
        with ProcessPoolExecutor(
            1, mp_context=get_context("spawn"), initializer=end_with_process, initargs=(os.getpid(),)
        ) as child:
            return Outcome(problem.id, *child.submit(_build, problem, device, policy, part).result())
    except _Crowded:
        raise
    except InputError as error:
        return Outcome(problem.id, None, (), str(error))
    except BrokenProcessPool:
        return Outcome(problem.id, None, (), "the process that built it was ended (perhaps for lack of memory)")
    except Exception as error:  # whatever it was, it costs this problem alone, and is said
        if part < 1.0 and is_out_of_memory(error):
            raise _Crowded from error
        return Outcome(problem.id, None, (), f"{type(error).__name__}: {error}")


def _build(problem: Problem, device: str, policy: TolerancePolicy, part: float) -> Built:
    """In the child: the suite, stored unless memory was short and the others are to blame."""
    if part < 1.0:
        torch.set_num_threads(1)
        if torch.device(device).type == "cuda":  # what is free is not all its own
            torch.cuda.set_per_process_memory_fraction(min(1.0, HEADROOM * part), torch.device(device))

    def build() -> Built:
        built = build_default_suite(problem, device, policy)
        if part < 1.0 and short_of_memory(built):
            raise _Crowded
        return built

    return cached(cache_key(problem, torch.device(device).type, policy.name), build)
