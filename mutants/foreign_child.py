"""Supervises one call of a foreign checker: `python -m kernelward.mutants.foreign_child`, with a request on its stdin.

The checker runs the candidate with the rights of whoever started it, as it does everywhere else. What is done here: a
session of its own, a directory of its own for temporary files and caches of compiled code (two mutants of one kernel
build extensions of the same name), limits of time, memory and processes, and at the end the end of everything that it
started, also of what has left its session.
"""

import argparse
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ..reward.sandbox import linux
from ..reward.sandbox.limits import Limits
from ..reward.sandbox.supervisor import Supervisor


def arguments_of(command: Sequence[str], problem: Path, candidate: Path) -> list[str]:
    """The command with the paths in place of `{problem}` and `{candidate}`."""
    paths = {"{problem}": str(problem), "{candidate}": str(candidate)}
    found = list(command)
    for mark, path in paths.items():
        found = [argument.replace(mark, path) for argument in found]
    return found


def main() -> None:
    """Run the command of one request."""
    parser = argparse.ArgumentParser()
    for name in ("control", "lifeline"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    for fd in (options.control, options.lifeline):
        os.set_inheritable(fd, False)
    request = json.loads(sys.stdin.buffer.read())
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
    control = socket.socket(fileno=options.control)
    with tempfile.TemporaryDirectory(prefix="kernelward-checker-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        problem, candidate = directory / "problem.py", directory / "candidate.py"
        problem.write_text(request["problem"], "utf-8", "surrogatepass")
        candidate.write_text(request["candidate"], "utf-8", "surrogatepass")
        (directory / "tmp").mkdir()
        command = arguments_of(request["command"], problem, candidate)

        def start(output: int) -> None:
            os.setsid()
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and what is executed would inherit that
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.environ |= {
                "TMPDIR": f"{name}/tmp",
                "TORCH_EXTENSIONS_DIR": f"{name}/extensions",
                "TRITON_CACHE_DIR": f"{name}/triton",
                "PYTHONUNBUFFERED": "1",  # what it prints last is what it says last
            }
            os.execvp(command[0], command)

        Supervisor(control, options.lifeline, Limits.from_dict(request["limits"]), start, directory, alone=False).run()


if __name__ == "__main__":
    main()
