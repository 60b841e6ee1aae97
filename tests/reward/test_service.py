"""Frames between client and judge, and the judge process's answers to what is wrong with a request."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from kernelward.reward.framing import MAX_FRAME, FrameError, receive_frame, send_frame
from kernelward.reward.task import JudgeConfig, Task


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def test_a_message_arrives_as_it_was_sent(pair: tuple[socket.socket, socket.socket]) -> None:
    message = {"op": "judge", "text": "a\ud800\n€" * 100_000, "nested": {"x": [1, 2.5, None, True]}}
    sender = threading.Thread(target=send_frame, args=(pair[0], message))
    sender.start()
    assert receive_frame(pair[1]) == message
    sender.join()


def test_a_closed_connection_is_an_error_and_not_an_empty_message(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[0].sendall(b"\0\0")
    pair[0].close()
    with pytest.raises(FrameError, match="closed"):
        receive_frame(pair[1])


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\0\0\0\2[]", b"\0\0\0\3{]}"], ids=["length", "list", "json"])
def test_what_is_no_frame_is_refused(pair: tuple[socket.socket, socket.socket], data: bytes) -> None:
    pair[0].sendall(data)
    with pytest.raises(FrameError):
        receive_frame(pair[1])


def test_a_message_that_is_too_long_is_not_sent(pair: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(FrameError, match="too long"):
        send_frame(pair[0], {"x": "a" * (MAX_FRAME + 1)})


class Process:
    """A judge process spoken to by hand."""

    def __init__(self) -> None:
        self.sock, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "kernelward.reward.service", "--fd", str(theirs.fileno())]
            self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.DEVNULL)
        self.sock.settimeout(120)


@pytest.fixture
def process() -> Iterator[Process]:
    running = Process()
    yield running
    running.sock.close()
    running.process.kill()
    running.process.wait()


def test_a_wrong_setting_is_reported_and_not_a_crash(process: Process) -> None:
    send_frame(process.sock, {"op": "hello", "config": {"device": "cpu", "no_such": 1}})
    reply = receive_frame(process.sock)
    assert reply["op"] == "failed"
    assert "no_such" in reply["message"]
    process.sock.close()
    assert process.process.wait(timeout=60) == 0


def test_requests_are_answered_and_faults_of_ours_are_infra_errors(
    process: Process, quick: Callable[..., Task]
) -> None:
    send_frame(process.sock, {"op": "hello", "config": JudgeConfig(workers=1).to_wire()})
    good = quick().to_wire()
    broken_request = dict(good)
    del broken_request["candidate"]
    broken_problem = good | {"problem": {"id": "p", "source": "def get_inputs(: pass"}}
    for number, task in enumerate((broken_request, broken_problem, good | {"protocol": "nope"}, good)):
        send_frame(process.sock, {"op": "judge", "id": number, "task": task})
    assert receive_frame(process.sock)["op"] == "ready"
    replies = {}
    for _ in range(4):
        reply = receive_frame(process.sock)
        replies[reply["id"]] = reply
    assert replies[0]["verdict"]["verdict"] == "infra_error"
    assert replies[0]["verdict"]["reason"] == "internal-error"
    assert replies[1]["op"] == "input-error"
    assert "line 1" in replies[1]["message"]
    assert replies[2]["op"] == "input-error"
    assert replies[3]["verdict"]["verdict"] == "correct"


def test_the_judge_ends_with_its_connection_even_in_the_middle_of_a_candidate(
    process: Process, quick: Callable[..., Task]
) -> None:
    send_frame(process.sock, {"op": "hello", "config": JudgeConfig(workers=1).to_wire()})
    assert receive_frame(process.sock)["op"] == "ready"
    send_frame(process.sock, {"op": "judge", "id": 1, "task": quick("while True: pass").to_wire()})
    deadline = time.monotonic() + 120
    # The zygote's two processes have imported torch; below them, only a candidate that runs uses much of a core.
    while not any(_seconds(pid) > 0.5 for pid, depth in _descendants(process.process.pid).items() if depth > 2):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    children = _descendants(process.process.pid)
    process.sock.close()
    assert process.process.wait(timeout=60) == 0
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and any(map(_exists, children)):
        time.sleep(0.05)
    assert not any(map(_exists, children))


def _descendants(root: int) -> dict[int, int]:
    """Processes below one, with the number of generations between."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found: dict[int, int] = {}
    for pid in parents:
        ancestor, depth = pid, 0
        while ancestor in parents and ancestor != root:
            ancestor, depth = parents[ancestor], depth + 1
        if ancestor == root and pid != root:
            found[pid] = depth
    return found


def _seconds(pid: int) -> float:
    """CPU time of a process."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _exists(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
