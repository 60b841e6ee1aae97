"""Compiles for the process that compute-sanitizer watches; `sanitizer.sanitize` starts it outside the tool.

The tool puts itself into the process that it watches: on an H200 a workshop forked there was gone when the candidate
asked for its build. Here nothing is injected and nothing of the candidate's runs; the two meet at a socket with a name,
so it does not matter which descriptors the tool closes or renumbers on the way.
"""

import os
import select
import socket
import sys
from pathlib import Path

from .cache import default_root
from .engine_gpu import open_workshop
from .workshop import admit_one

SOCKET = "workshop.sock"  # relative: a name of a Unix socket has at most 107 bytes


def main() -> None:
    """Serve one process behind a socket in the folder named on the command line, until standard input ends."""
    import torch.utils.cpp_extension  # noqa: F401 - what compiling needs is imported before the fork

    os.chdir(Path(sys.argv[1]))
    with open_workshop(default_root()) as workshop, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.bind(SOCKET)
        door.listen(1)
        print("ready", flush=True)
        readable, _, _ = select.select([door, sys.stdin], [], [])
        if door in readable:
            admit_one(door, workshop)
            sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
