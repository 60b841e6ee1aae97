"""The build cache: shared safely, bounded, and out of candidates' reach."""

import json
import multiprocessing
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernelward.reward.cuda.build_process import start_builder
from kernelward.reward.cuda.builder import Builder, Built, pack, request_key
from kernelward.reward.cuda.cache import BuildCache, CacheClient, build_key, start_keeper
from kernelward.reward.cuda.frontend import ExtensionSource
from kernelward.reward.sandbox.engine import CompileFailure

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


@pytest.fixture
def keeper(cache: BuildCache) -> Iterator[socket.socket]:
    with start_keeper(cache) as requests:
        yield requests


def test_the_keeper_reads_and_writes_for_whoever_holds_its_socket(cache: BuildCache, keeper: socket.socket) -> None:
    client = CacheClient(keeper)
    assert client.get(A) is None
    client.put(A, {"library": b"l" * 3000, "empty": b""})
    assert client.get(A) == {"library": b"l" * 3000, "empty": b""}
    assert cache.get(A) == client.get(A)


def test_the_keeper_survives_requests_that_make_no_sense(keeper: socket.socket) -> None:
    client = CacheClient(keeper, seconds=5)
    keeper.send(b"no descriptor")
    for request in (b"\xff", b"[]", b'{"op": "get"}', b'{"op":"put","key":"x","names":["../a"]}'):
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with mine, theirs:
            socket.send_fds(keeper, [request], [theirs.fileno()])
    bad = json.dumps({"op": "put", "key": A, "names": ["a", "b"]}).encode()
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with mine, theirs:
        socket.send_fds(keeper, [bad], [theirs.fileno()])  # names without files
    client.put(B, {"f": b"still there"})
    assert client.get(B) == {"f": b"still there"}
    assert client.get(A) is None


def test_no_keeper_means_no_cache_and_no_error() -> None:
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.close()
    client = CacheClient(mine, seconds=1)
    client.put(A, {"f": b""})
    assert client.get(A) is None
    mine.close()


def test_the_builders_process_keeps_the_socket_and_its_client_does_not(tmp_path: Path, cache: BuildCache) -> None:
    requests = start_keeper(cache)
    number = requests.fileno()
    maker = Builder(None, "sm_90", CacheClient(requests), {}, missing="nothing is installed in this test")
    extension = ExtensionSource("e", ("int f();",), (), ("f",), labels=("cpp_sources[0]",))
    # A finished build of the other path waits in the cache; the builder finds it through its own socket.
    key = request_key("load-inline", "sm_90", extension, {})
    cache.put(key, pack(Built("load-inline", b"library", "kernelward_x")))
    client = start_builder(maker, tmp_path, keep=[number])
    requests.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)
    built = client.build(extension)
    assert (built.library, built.cached) == (b"library", True)
    assert built.why.startswith("not-installed: nothing is installed")


def test_a_builder_that_died_is_a_compile_failure_not_a_hang(tmp_path: Path) -> None:
    class Dying(Builder):
        def build(self, extension: ExtensionSource, directory: Path):  # type: ignore[no-untyped-def]
            os._exit(139)

    client = start_builder(Dying(None, "sm_90", None, {}), tmp_path)
    with pytest.raises(CompileFailure) as caught:
        client.build(ExtensionSource("e", ("int f();",), (), ("f",), labels=("cpp_sources[0]",)))
    assert caught.value.reason == "compiler-crash"
