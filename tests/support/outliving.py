"""Whether a child goes on after its parent."""

import subprocess
import sys
from pathlib import Path

CODE = """
import importlib, os, sys, time
module, _, name = sys.argv[3].partition(":")
ends = getattr(importlib.import_module(module), name)

parent = os.getpid()
if os.fork() == 0:
    if sys.argv[2] == "late":
        while os.getppid() == parent:
            time.sleep(0.01)
        ends(parent)
    else:
        ends(parent)
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
    """Whether a child goes on after its parent, which ends before or after it asked to end with it.

    Args:
        place: a file that the child makes if it does.
        when: `late` or `early`.
        how: `module:function` that it asks with.
    """
    code = [sys.executable, "-c", CODE, str(place), when, how]
    with subprocess.Popen(code, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        said = process.stdout.read()  # ends when the child has ended too: it holds the pipe
    assert said == b"gone\n"
    return place.exists()
