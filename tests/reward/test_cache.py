"""Verdicts that are known already."""

import math
import multiprocessing
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from kernelward.reward.cache import VerdictCache, engine_fingerprint, verdict_key
from kernelward.reward.store import RunStore, run_store_path
from kernelward.reward.task import JudgeConfig, Task
from kernelward.reward.verdict import EntryResult, Outcome, Verdict
from kernelward.suites.problem import Problem

TASK = Task("class ModelNew: ...", Problem("p", "class Model: ..."), run_key=b"key")
CORRECT = Verdict(
    Outcome.CORRECT, entry="own-1", err=math.inf, seed=2**62, entries=(EntryResult("own-1", Outcome.CORRECT),)
)


def key(task: Task = TASK, protocol: str = "hash", engine: str = "engine", suite: str | None = None) -> str:
    return verdict_key(task, protocol, suite, engine)


def test_a_verdict_comes_back_marked_as_cached() -> None:
    cache = VerdictCache(4)
    assert cache.get("k") is None
    cache.put("k", CORRECT)
    assert cache.get("k") == replace(CORRECT, cached=True)


@pytest.mark.parametrize(
    "change",
    [
        {"candidate": "other"},
        {"problem": Problem("p", "class Model: pass")},
        {"run_key": b"other"},
        {"epoch": 1},
        {"all_entries": True},
        {"only_entry": "own-1"},
        {"seed": 1},
        {"speed": True},
        {"audit": True},
    ],
)
def test_whatever_can_change_a_verdict_changes_its_key(change: dict) -> None:
    assert key(replace(TASK, **change)) != key()


def test_a_verdict_that_turned_out_wrong_is_dropped_everywhere(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "run.sqlite", b"key")
    cache = VerdictCache(8, store)
    wrong = replace(CORRECT, candidate="c", problem_hash="p")
    cache.put("epoch 0", wrong)
    cache.put("epoch 1", wrong)
    cache.put("other candidate", replace(wrong, candidate="d"))
    cache.put("other problem", replace(wrong, problem_hash="q"))
    cache.drop("c", "p")
    for reader in (cache, VerdictCache(8, store)):
        kept = [k for k in ("epoch 0", "epoch 1", "other candidate", "other problem") if reader.get(k) is not None]
        assert kept == ["other candidate", "other problem"]


def test_protocol_suite_and_engine_are_part_of_the_key() -> None:
    assert len({key(), key(protocol="x"), key(suite="x"), key(engine="x")}) == 4
    assert key(replace(TASK, problem=Problem("renamed", "class Model: ..."))) == key()


def test_what_only_costs_time_is_no_part_of_the_engine() -> None:
    plain = engine_fingerprint(JudgeConfig())
    assert engine_fingerprint(JudgeConfig(workers=7, threads=1, truth_bytes=5, suite_cache="x")) == plain
    assert engine_fingerprint(JudgeConfig(precision="bf16")) != plain
    assert engine_fingerprint(JudgeConfig(device="cuda:0")) != plain
    assert engine_fingerprint(JudgeConfig(device="cuda:0")) == engine_fingerprint(JudgeConfig(device="cuda:3"))


@pytest.mark.parametrize("outcome", [Outcome.INFRA_ERROR, Outcome.UNREFEREEABLE])
def test_no_verdict_is_never_kept(outcome: Outcome, tmp_path: Path) -> None:
    cache = VerdictCache(4, RunStore(tmp_path / "s.sqlite", b"k"))
    cache.put("k", Verdict(outcome))
    assert cache.get("k") is None


def test_memory_is_bounded_and_the_least_recently_used_goes_first() -> None:
    cache = VerdictCache(2)
    cache.put("a", CORRECT)
    cache.put("b", CORRECT)
    cache.get("a")
    cache.put("c", CORRECT)
    assert len(cache) == 2
    assert cache.get("a") is not None
    assert cache.get("b") is None


def test_threads_share_a_cache(tmp_path: Path) -> None:
    cache = VerdictCache(16, RunStore(tmp_path / "s.sqlite", b"k"))
    wrong = []

    def work(number: int) -> None:
        for i in range(50):
            cache.put(f"{i % 20}", replace(CORRECT, seed=i % 20))
            found = cache.get(f"{i % 20}")
            if found is None or found.seed != i % 20:
                wrong.append((number, i))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def _put(path: Path, number: int) -> None:
    store = RunStore(path, b"k")
    for i in range(20):
        store.put_verdict(f"{i}", CORRECT.to_json())
        store.add_metrics({"process": float(number)})


def test_processes_share_a_store(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "s.sqlite"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_put, args=(path, n)) for n in range(2)]
    for p in processes:
        p.start()
    for p in processes:
        p.join()
    assert [p.exitcode for p in processes] == [0, 0]
    store = RunStore(path, b"k")
    assert VerdictCache(1, store).get("7") == replace(CORRECT, cached=True)
    assert len(store.metrics_after(0)[1]) == 40


def test_a_row_that_the_run_key_does_not_vouch_for_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    RunStore(path, b"k").put_verdict("key", Verdict(Outcome.INCORRECT).to_json())
    assert RunStore(path, b"k").get_verdict("key") is not None
    assert RunStore(path, b"another run").get_verdict("key") is None
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE verdicts SET body = replace(body, 'incorrect', 'correct')")
    assert RunStore(path, b"k").get_verdict("key") is None


def test_a_verdict_moved_to_another_key_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    RunStore(path, b"k").put_verdict("honest", CORRECT.to_json())
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO verdicts SELECT 'cheat', body, mac FROM verdicts")
    assert RunStore(path, b"k").get_verdict("cheat") is None


def test_a_store_that_cannot_be_used_is_switched_off_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "s.sqlite"
    path.write_bytes(b"this is no database" * 100)
    cache = VerdictCache(2, RunStore(path, b"k"))
    for _ in range(3):
        cache.put("k", CORRECT)
    assert cache.get("k") is not None
    assert cache.get("other") is None
    assert len(caplog.records) == 1
    assert "going on without it" in caplog.text


def test_metrics_are_read_once_and_in_order(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "s.sqlite", b"k")
    store.add_metrics({"a": 1.0})
    store.add_metrics({"a": 2.0})
    last, rows = store.metrics_after(0)
    assert rows == [{"a": 1.0}, {"a": 2.0}]
    store.add_metrics({"a": 3.0})
    assert store.metrics_after(last)[1] == [{"a": 3.0}]


def test_a_run_has_its_own_store_that_the_key_does_not_show_in() -> None:
    assert run_store_path(b"a") == run_store_path(b"a") != run_store_path(b"b")
    assert "secret" not in str(run_store_path(b"secret"))
