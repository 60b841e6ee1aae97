"""Whether a pass really gives way, also to processes of other sessions."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kernelward.mutants import watch_priority
from kernelward.mutants.watch_priority import Pace
from kernelward.reward.cuda.toolchain import run_tool

GIVE_WAY = "from kernelward.mutants.watch_priority import give_way; print(give_way({nice}), flush=True)\n"
SPIN = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
time.sleep(max(0.0, float(sys.argv[2]) - time.time()))
before, end = time.process_time(), float(sys.argv[2]) + 1.5
while time.time() < end:
    pass
print(time.process_time() - before)
"""
AUTOGROUPS = Path("/proc/self/autogroup").is_file() and Path("/proc/sys/kernel/sched_autogroup_enabled").read_text()


def start(code: str, *arguments: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)


def seconds(process: subprocess.Popen[str]) -> float:
    return float(process.communicate(timeout=60)[0].splitlines()[-1])


def test_a_process_that_gives_way_leaves_a_core_to_another_session() -> None:
    cpu, begin = min(os.sched_getaffinity(0)), time.time() + 3.0
    low, high = start(GIVE_WAY.format(nice=11) + SPIN, cpu, begin), start(SPIN, cpu, begin)
    assert seconds(low) < 0.25 * seconds(high)  # 0.08, on a machine with nothing else to do


@pytest.mark.skipif(str(AUTOGROUPS).strip() != "1", reason="this kernel shares the CPU between processes alone")
def test_its_session_is_as_nice_and_so_are_those_that_its_children_would_start() -> None:
    code = GIVE_WAY.format(nice=11) + (
        "import os\n"
        "from kernelward.reward.sandbox import linux\n"
        "if os.fork() == 0:\n"
        "    linux.new_session()\n"
        "    print(open('/proc/self/autogroup').read().split()[-1], os.getpgrp() == os.getpid(), flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    lines = start(code).communicate(timeout=60)[0].splitlines()
    assert lines[0].startswith("Priority(nice=11, session=True")
    assert lines[1] == "11 True"


def test_others_get_a_session_of_their_own(tmp_path: Path) -> None:
    result = run_tool([sys.executable, "-c", "import os; print(os.getsid(0) == os.getpid())"], tmp_path)
    assert result.output.strip() == "True"


def test_a_pace_rests_in_proportion_to_the_work_since_the_last_rest_until_it_is_ended() -> None:
    pace = Pace(1 / 4)
    began = time.monotonic()
    pace()
    assert time.monotonic() - began < 0.05  # nothing was done before
    time.sleep(0.1)
    pace()
    assert 0.4 <= time.monotonic() - began < 0.8
    time.sleep(0.1)
    pace.end()
    began = time.monotonic()
    pace()
    assert time.monotonic() - began < 0.05


def test_what_one_rest_does_not_make_up_for_is_rested_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_priority, "_LONGEST_REST_S", 0.1)
    pace = Pace(1 / 4)
    pace()
    worked = time.monotonic()
    time.sleep(0.1)  # owes 0.3 s
    began = time.monotonic()
    for _ in range(5):  # of cells that take no time
        pace()
    assert 0.28 <= time.monotonic() - began < 0.28 + 3 * (began - worked)


def test_niceness_zero_changes_nothing() -> None:
    code = GIVE_WAY.format(nice=0) + "import os; print(os.sched_getscheduler(0) == os.SCHED_OTHER)"
    lines = start(code).communicate(timeout=60)[0].splitlines()
    assert lines[0].endswith("session=False, io=False)")
    assert lines[1] == "True"
