"""The build cache: shared safely, bounded, and out of candidates' reach."""

import multiprocessing
import os
import time
from pathlib import Path

import pytest
from kernelward.reward.cuda.cache import BuildCache, build_key

A, B, C = (build_key({"source": name}) for name in "abc")


@pytest.fixture
def cache(tmp_path: Path) -> BuildCache:
    return BuildCache(tmp_path / "cache", max_bytes=10_000)


def test_keys_depend_on_every_part_and_not_on_their_order() -> None:
    assert build_key({"a": 1, "b": [2]}) == build_key({"b": [2], "a": 1})
    assert len({build_key({"a": 1}), build_key({"a": 2}), build_key({"a": "1"}), build_key({"b": 1})}) == 4


def test_files_come_back_as_they_were_kept(cache: BuildCache) -> None:
    assert cache.get(A) is None
    cache.put(A, {"library": b"x" * 100, "image": b""})
    assert cache.get(A) == {"library": b"x" * 100, "image": b""}
    assert BuildCache(cache.root).get(A) == cache.get(A)


def test_the_first_build_under_a_key_stays(cache: BuildCache) -> None:
    cache.put(A, {"f": b"first"})
    cache.put(A, {"f": b"second"})
    assert cache.get(A) == {"f": b"first"}


def test_a_damaged_entry_is_not_served_and_can_be_replaced(cache: BuildCache) -> None:
    cache.put(A, {"f": b"good"})
    (cache.root / A / "f").write_bytes(b"evil")
    assert cache.get(A) is None
    cache.put(A, {"f": b"good"})
    assert cache.get(A) == {"f": b"good"}


def test_the_least_recently_used_entries_go_when_it_is_full(cache: BuildCache) -> None:
    cache.put(A, {"f": b"a" * 4000})
    cache.put(B, {"f": b"b" * 4000})
    for number, key in enumerate((A, B)):
        os.utime(cache.root / key, (1000 + number, 1000 + number))
    assert cache.get(A) is not None  # used again, so B is the oldest now
    cache.put(C, {"f": b"c" * 4000})
    assert (cache.get(A) is None, cache.get(B) is None, cache.get(C) is None) == (False, True, False)
    assert cache.size() <= 10_000


def test_an_entry_larger_than_the_cache_is_kept_alone(cache: BuildCache) -> None:
    cache.put(A, {"f": b"a" * 100})
    cache.put(B, {"f": b"b" * 20_000})
    assert cache.get(B) is not None
    assert cache.get(A) is None


@pytest.mark.parametrize("key", ["", "../../etc/passwd", "A" * 64, "0" * 63, "0" * 64 + "/x"])
def test_keys_that_are_no_hashes_are_refused(cache: BuildCache, key: str) -> None:
    with pytest.raises(ValueError, match="not a key"):
        cache.get(key)
    with pytest.raises(ValueError, match="not a key"):
        cache.put(key, {"f": b""})


@pytest.mark.parametrize("name", ["../x", "manifest.json", "", "a/b", "x" * 65])
def test_file_names_that_lead_elsewhere_are_refused(cache: BuildCache, name: str) -> None:
    with pytest.raises(ValueError, match="names"):
        cache.put(A, {name: b""})


def _write(root: str, worker: int) -> None:
    cache = BuildCache(Path(root), max_bytes=20_000)
    for step in range(15):
        cache.put(build_key({"n": (worker + step) % 10}), {"f": b"%d" % ((worker + step) % 10) * 1000})
        found = cache.get(build_key({"n": step % 10}))
        assert found is None or found == {"f": b"%d" % (step % 10) * 1000}


def test_workers_that_write_at_the_same_time_never_see_half_an_entry(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_write, args=(str(tmp_path / "c"), n)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert BuildCache(tmp_path / "c").size() <= 20_000 + 1200


def test_what_writers_that_died_left_behind_is_swept_after_an_hour(cache: BuildCache) -> None:
    for name, age in (("writing-x", 7200), ("compiling-x", 7200), ("compiling-y", 10)):
        (cache.root / name).mkdir()
        then = time.time() - age
        os.utime(cache.root / name, (then, then))
    cache.put(A, {"f": b""})
    left = {path.name for path in cache.root.iterdir() if path.is_dir()}
    assert left == {A, "compiling-y"}
