import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from kernelward.reward.lease import DeviceLease, DeviceShares


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


def test_shares_are_held_by_as_many_as_fit_and_more_wait(tmp_path: Path) -> None:
    def shares() -> DeviceShares:
        return DeviceShares("cuda:0", 1600, tmp_path)

    order: list[str] = []
    waits = threading.Event()

    def follow(size: int) -> None:
        waits.set()
        with shares().hold(size):
            order.append("second")

    with shares().hold(700), shares().hold(800):
        thread = threading.Thread(target=follow, args=(200,))
        thread.start()
        waits.wait()
        time.sleep(0.2)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
    with shares().hold(10_000):  # all there is
        order.append("third")
    assert order[-1] == "third"


def test_who_waits_for_much_is_not_overtaken_by_little(tmp_path: Path) -> None:
    order: list[str] = []

    def take(name: str, size: int) -> threading.Thread:
        def run() -> None:
            with DeviceShares("cuda:0", 1600, tmp_path).hold(size):
                order.append(name)

        thread = threading.Thread(target=run)
        thread.start()
        time.sleep(0.2)
        return thread

    with DeviceShares("cuda:0", 1600, tmp_path).hold(100):
        threads = [take("much", 1600), take("little", 100)]
        assert order == []
    for thread in threads:
        thread.join(10)
    assert order == ["much", "little"]


def test_shares_of_a_process_that_was_killed_are_free(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from kernelward.reward.lease import DeviceShares\n"
        "with DeviceShares('cuda:0', 1600, Path(sys.argv[1])).hold(1600): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        process.kill()
    with DeviceShares("cuda:0", 1600, tmp_path).hold(1600):
        pass


def test_where_no_file_can_be_made_nobody_waits_for_shares(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    shares = DeviceShares("cuda:0", 1600, tmp_path / "file" / "below")
    with shares.hold(1600), shares.hold(1600):
        pass
