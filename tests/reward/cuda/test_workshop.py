"""Compiling for candidates in processes that they cannot reach, with results that stay theirs."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kernelward.reward.cuda.builder import Builder, Built, request_key
from kernelward.reward.cuda.cache import BuildCache
from kernelward.reward.cuda.frontend import ExtensionSource
from kernelward.reward.cuda.workshop import Confinement, connect, start_workshop
from kernelward.reward.sandbox import confinement, landlock
from kernelward.reward.sandbox.engine import CompileFailure
from kernelward.reward.sandbox.wire import receive_frame, send_frame

VERSIONS = {"test": "1"}


def extension(text: str) -> ExtensionSource:
    return ExtensionSource("e", (text,), (), ("f",), labels=("cpp_sources[0]",))


class Scripted(Builder):
    """A builder that does what the source says, so that the processes around it can be watched."""

    def build(self, extension: ExtensionSource, directory: Path, strict: bool = False) -> Built:
        word, _, rest = extension.cpp[0].partition(" ")
        if word == "crash":
            os.kill(os.getpid(), 11)
        elif word == "raise":
            raise CompileFailure("host-compile", rest)
        elif word == "broken":
            raise ValueError(rest)
        elif word == "sleep":
            time.sleep(60)
        elif word == "daemon":
            code = "import os, time; os.setsid(); os.fork() and os._exit(0); time.sleep(300)"
            subprocess.Popen([sys.executable, "-S", "-E", "-c", code, "kernelward-test-daemon"])
            time.sleep(0.5)
        elif word == "write":
            Path(rest).write_text("x")
        return Built("nvrtc", f"{rest} {os.getpid()}".encode(), extension.name, image=b"i" * 5000)


@pytest.fixture
def cache(tmp_path: Path) -> BuildCache:
    return BuildCache(tmp_path / "cache")


@pytest.fixture
def workshop(cache: BuildCache) -> Iterator[socket.socket]:
    rules = confinement.readable("cpu", False, [])
    limits = Confinement(tuple(rules), landlock.abi())
    with start_workshop(lambda arch: Scripted(None, arch), cache, VERSIONS, limits) as opened:
        yield opened


def test_a_build_is_done_elsewhere_and_kept(workshop: socket.socket, cache: BuildCache) -> None:
    client = connect(workshop, "sm_90")
    first = client.build(extension("echo hello"))
    assert first.library.startswith(b"hello ")
    assert int(first.library.split()[1]) != os.getpid()
    assert not first.cached
    second = client.build(extension("echo hello"))
    assert (second.library, second.image, second.cached) == (first.library, first.image, True)
    assert cache.get(request_key("build", "sm_90", extension("echo hello"), VERSIONS)) is not None


def test_builds_are_told_apart_by_source_architecture_and_whether_strict_runs_follow(workshop: socket.socket) -> None:
    source = extension("echo one")
    old, new = connect(workshop, "sm_80"), connect(workshop, "sm_90")
    builds = [old.build(source), new.build(source), new.build(extension("echo two")), new.build(source, strict=True)]
    assert len({build.library for build in builds}) == 4
    assert not any(build.cached for build in builds)


def test_what_a_candidate_asks_for_fills_only_the_entry_of_its_own_sources(
    workshop: socket.socket, cache: BuildCache
) -> None:
    connect(workshop, "sm_90").build(extension("echo evil"))
    keys = {path.name for path in cache.root.iterdir() if len(path.name) == 64}
    assert keys == {request_key("build", "sm_90", extension("echo evil"), VERSIONS)}


@pytest.mark.parametrize(
    ("text", "reason"),
    [("crash", "compiler-crash"), ("raise the words", "host-compile"), ("broken words", "builder")],
)
def test_failures_come_back_and_nothing_is_kept(
    workshop: socket.socket, cache: BuildCache, text: str, reason: str
) -> None:
    client = connect(workshop, "sm_90")
    with pytest.raises(CompileFailure) as caught:
        client.build(extension(text))
    assert caught.value.reason == reason
    assert [path.name for path in cache.root.iterdir() if path.is_dir()] == []
    assert client.build(extension("echo after")).library.startswith(b"after")


def test_compile_processes_write_only_to_a_folder_of_their_own(workshop: socket.socket, tmp_path: Path) -> None:
    if not landlock.abi():
        pytest.skip("this kernel has no Landlock")
    client = connect(workshop, "sm_90")
    for target in (tmp_path / "outside", tmp_path / "cache" / ("0" * 64)):
        with pytest.raises(CompileFailure, match="PermissionError"):
            client.build(extension(f"write {target}"))
        assert not target.exists()
    assert client.build(extension("write inside")).library.startswith(b"inside")


def _running(word: str) -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        if word.encode() in command:
            found.append(int(name))
    return found


def test_what_a_compiler_leaves_running_is_ended(workshop: socket.socket) -> None:
    connect(workshop, "sm_90").build(extension("daemon x"))
    assert _running("kernelward-test-daemon") == []


def test_a_candidate_that_ends_ends_its_compilation(workshop: socket.socket, cache: BuildCache) -> None:
    if os.fork() == 0:
        try:
            client = connect(workshop, "sm_90")
            client._channel.settimeout(2.0)
            client.build(extension("sleep"))
        finally:
            os._exit(0)
    deadline = time.monotonic() + 40
    seen = False
    while time.monotonic() < deadline:
        working = list(cache.root.glob("compiling-*"))
        seen = seen or bool(working)
        if seen and not working:
            break
        time.sleep(0.05)
    os.wait()
    assert seen
    assert not list(cache.root.glob("compiling-*"))


def test_nonsense_on_one_bench_disturbs_no_other(workshop: socket.socket) -> None:
    rude, polite = connect(workshop, "sm_90"), connect(workshop, "sm_90")
    rude._channel.send(b"\xff\xff\xff\xff nonsense")
    requests = ({"op": "build"}, {"op": "unknown", "extension": {}, "expressions": []}, {"op": "build", "extension": 3})
    for request in requests:
        other: Any = connect(workshop, "sm_90")
        send_frame(other._channel, request)
        reply, _ = receive_frame(other._channel)
        assert reply["reason"] == "builder"
    rude._channel.shutdown(socket.SHUT_RDWR)
    assert polite.build(extension("echo fine")).library.startswith(b"fine")


def test_a_workshop_that_is_gone_is_an_error_of_ours() -> None:
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.close()
    with mine, pytest.raises(OSError, match=r"Broken pipe|Connection refused|reset"):
        connect(mine, "sm_90")
