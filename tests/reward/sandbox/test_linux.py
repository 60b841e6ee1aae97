"""What a process that lost its parent does."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

CODE = """
import os, sys, time
from kernelward.reward.sandbox import linux

parent = os.getpid()
if os.fork() == 0:
    if sys.argv[2] == "late":
        while os.getppid() == parent:
            time.sleep(0.01)
        getattr(linux, sys.argv[3])(parent)
    else:
        getattr(linux, sys.argv[3])(parent)
        open(sys.argv[1] + ".ready", "w").close()
        time.sleep(60)
    open(sys.argv[1], "w").close()
    os._exit(0)
while sys.argv[2] != "late" and not os.path.exists(sys.argv[1] + ".ready"):
    time.sleep(0.01)
print("gone", flush=True)
os._exit(0)
"""


def outlives(place: Path, when: str, how: str) -> bool:
    """Whether a child goes on after its parent, which ends before or after it asked to end with it."""
    code = [sys.executable, "-c", CODE, str(place), when, how]
    with subprocess.Popen(code, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        said = process.stdout.read()  # ends when the child has ended too: it holds the pipe
    assert said == b"gone\n"
    return place.exists()


@pytest.mark.parametrize("how", ["end_with", "end_with_process"])
def test_a_process_ends_with_its_parent_also_where_that_ended_before_it_asked(tmp_path: Path, how: str) -> None:
    started = time.monotonic()
    assert not outlives(tmp_path / "late", "late", how)
    assert not outlives(tmp_path / "early", "early", how)
    assert time.monotonic() - started < 45
