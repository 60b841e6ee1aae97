import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from kernelward.reward.lease import DeviceLease


def test_a_lease_is_shared_by_those_that_judge_and_seen_by_those_that_wait(tmp_path: Path) -> None:
    lease, other = DeviceLease("cuda:0", tmp_path), DeviceLease("cuda:1", tmp_path)
    assert lease.idle()
    with lease.held(), DeviceLease("cuda:0", tmp_path).held():
        assert not lease.idle()
        assert other.idle()
    assert lease.idle()


def test_a_killed_judge_leaves_no_lease_behind(tmp_path: Path) -> None:
    lease = DeviceLease("cuda", tmp_path)
    code = (
        "import sys, time; from pathlib import Path; from kernelward.reward.lease import DeviceLease\n"
        "with DeviceLease('cuda:0', Path(sys.argv[1])).held(): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert not lease.idle()
        process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 30
    while not lease.idle() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert lease.idle()


def test_devices_are_named_as_the_machine_numbers_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = DeviceLease("cuda:3", tmp_path).path
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert DeviceLease("cuda:1", tmp_path).path == plain


def test_a_folder_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    lease = DeviceLease("cuda:0", tmp_path / "file" / "below")
    (tmp_path / "file").write_text("")
    with lease.held():
        assert lease.idle()


def test_one_at_a_time_is_alone_and_the_next_one_waits(tmp_path: Path) -> None:
    first, second = (DeviceLease("cuda:0", tmp_path) for _ in range(2))
    order: list[str] = []
    waits = threading.Event()

    def follow() -> None:
        waits.set()
        with second.alone():
            order.append("second")

    with first.alone():
        assert not second.idle()
        thread = threading.Thread(target=follow)
        thread.start()
        waits.wait()
        time.sleep(0.2)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
    assert second.idle()
