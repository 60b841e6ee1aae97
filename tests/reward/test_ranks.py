"""What ranks agree on without a collective operation."""

import threading
from typing import Any

import pytest
import torch.distributed as dist
from kernelward.reward import ranks


@pytest.fixture
def several(monkeypatch: pytest.MonkeyPatch) -> threading.local:
    """A process group of threads: `rank` of a thread's own."""
    store, here = dist.HashStore(), threading.local()
    monkeypatch.setattr(ranks, "_process_group_store", lambda: store)
    monkeypatch.setattr(dist, "get_rank", lambda: here.rank)
    return here


def as_ranks(here: threading.local, count: int, ask: Any) -> list[str]:
    found = [""] * count

    def work(rank: int) -> None:
        here.rank = rank
        found[rank] = ask(rank)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in reversed(range(count))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


def test_the_first_rank_that_asks_decides(several: threading.local) -> None:
    found = as_ranks(several, 4, lambda rank: ranks.agreed("suites/0/1", f"rank {rank}"))
    assert len(set(found)) == 1
    assert ranks.agreed("suites/0/2", "later") == "later"


def test_rank_zero_decides_and_the_others_wait_for_it(several: threading.local) -> None:
    assert as_ranks(several, 4, lambda rank: ranks.from_rank_zero("stop/1", f"rank {rank}")) == ["rank 0"] * 4


def test_alone_there_is_nobody_to_ask() -> None:
    assert ranks.agreed("a", "mine") == ranks.from_rank_zero("b", "mine") == "mine"
