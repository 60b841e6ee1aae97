"""A child that is made ahead, so that a candidate need not wait for it."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from kernelward.reward.sandbox.limits import Limits
from kernelward.reward.sandbox.session import ChildSession, Zygote

SOURCE = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    pass\n"


def descendants(pid: int) -> set[int]:
    found = set[int]()
    waiting = [pid]
    while waiting:
        each = waiting.pop()
        try:
            with open(f"/proc/{each}/task/{each}/children") as file:
                children = [int(word) for word in file.read().split()]
        except OSError:
            continue
        found.update(children)
        waiting += children
    return found


def within(seconds: float, question: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not question():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def settled(zygote: Zygote) -> set[int]:
    """The zygote's processes, once no further one has come for a while."""
    found = descendants(zygote.pid)
    quiet_since = time.monotonic()
    while time.monotonic() < quiet_since + 0.5:
        time.sleep(0.02)
        now = descendants(zygote.pid)
        if now != found:
            found, quiet_since = now, time.monotonic()
    return found


class Ahead:
    """A zygote that keeps a spare, and what of its processes are the child that waits."""

    def __init__(self) -> None:
        self.zygote = Zygote("torch", spare=True)
        self.zygote.report  # noqa: B018 - wait until it is warm
        self._own = settled(self.zygote)

    def waiting(self) -> set[int]:
        return settled(self.zygote) - self._own


@pytest.fixture(scope="module")
def ahead() -> Iterator[Ahead]:
    made = Ahead()
    with made.zygote:
        made.zygote.spawn().close()
        yield made


def test_the_child_that_waits_gets_the_next_candidate_and_another_one_takes_its_place(ahead: Ahead) -> None:
    waiting = ahead.waiting()
    before = settled(ahead.zygote)
    assert waiting
    with ahead.zygote.spawn() as child:
        child.load(SOURCE)
        assert waiting < settled(ahead.zygote)
    after = settled(ahead.zygote)
    assert not waiting & after
    assert len(after) == len(before)


def test_one_that_died_while_it_waited_is_replaced(ahead: Ahead) -> None:
    waiting = ahead.waiting()
    for pid in waiting:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert within(5.0, lambda: not waiting & descendants(ahead.zygote.pid))
    with ahead.zygote.spawn() as child:
        child.load(SOURCE)


def test_another_limit_gets_a_child_of_its_own(ahead: Ahead) -> None:
    ahead.zygote.spawn(Limits(run_s=1.0)).close()
    settled(ahead.zygote)
    with ahead.zygote.spawn(Limits(run_s=2.0)) as child:
        assert child.limits.run_s == 2.0
        child.load(SOURCE)


def test_one_that_is_being_made_is_waited_for_by_the_first_who_asks(
    ahead: Ahead, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh, began = ahead.zygote._fresh, []
    may_go_on = threading.Event()

    def slowly(limits: Limits) -> ChildSession:
        began.append(threading.current_thread().name)
        if began[-1] == "spare child":
            may_go_on.wait(20)
        return fresh(limits)

    ahead.zygote.spawn().close()  # what waits now has these limits
    settled(ahead.zygote)
    monkeypatch.setattr(ahead.zygote, "_fresh", slowly)
    with ahead.zygote.spawn(), ThreadPoolExecutor(1) as later:  # the spare; another one is being made now
        waits = later.submit(ahead.zygote.spawn)
        assert within(5.0, lambda: ahead.zygote._promised)
        with ahead.zygote.spawn() as beside:  # the second who asks does not wait
            beside.load(SOURCE)
        assert not waits.done()
        may_go_on.set()
        with waits.result(20) as child:
            child.load(SOURCE)
    settled(ahead.zygote)
    assert began == ["spare child", "MainThread", "spare child"]


def test_a_spare_ends_with_its_zygote(ahead: Ahead) -> None:
    waiting = ahead.waiting()
    assert waiting
    ahead.zygote.close()
    assert within(5.0, lambda: not any(os.path.exists(f"/proc/{pid}") for pid in waiting))


def test_without_a_spare_nothing_waits(zygote: Zygote) -> None:
    before = settled(zygote)
    zygote.spawn().close()
    assert settled(zygote) == before


@pytest.mark.parametrize(("queues", "told"), [(1, "1"), (None, "None")])
def test_how_many_hardware_queues_a_child_has_is_ours_to_say(
    monkeypatch: pytest.MonkeyPatch, queues: int | None, told: str
) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "4")  # the trainer's
    with Zygote("torch", queues=queues) as zygote, zygote.spawn(Limits()) as child:
        child.load(f"import os\nprint(os.environ.get('CUDA_DEVICE_MAX_CONNECTIONS'))\n{SOURCE}")
        assert child.output().split() == [told]
