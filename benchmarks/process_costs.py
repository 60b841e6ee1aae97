"""What a child costs beside its candidate: making one, and a forward call of one addition.

    python benchmarks/process_costs.py [--device cpu] [--at-once 2] [--seconds 4]

On a GPU children are made with the driver's number of hardware queues and with one.
"""

import argparse
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from kernelward.reward.sandbox.buffers import OutputSpec
from kernelward.reward.sandbox.session import Zygote
from kernelward.suites.devices import resolve_device

ADDS = "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x + 1\n"
SIDES, WARM, CALLS = (64, 512), 20, 150


def children(zygote: Zygote, at_once: int, seconds: float) -> list[float]:
    """Seconds that each child took until it was there, of those that were made one after the other in each thread."""
    deadline = time.monotonic() + seconds

    def make(_: int) -> list[float]:
        took = []
        while time.monotonic() < deadline:
            began = time.perf_counter()
            child = zygote.spawn()
            took.append(time.perf_counter() - began)
            child.close()
        return took

    with ThreadPoolExecutor(at_once) as pool:
        return [seconds for took in pool.map(make, range(at_once)) for seconds in took]


def calls(zygote: Zygote, side: int) -> float:
    """Median seconds of a forward call on side x side floats."""
    took = []
    with zygote.spawn() as child:
        child.load(ADDS)
        child.build([])
        x, outputs = torch.ones(side, side, device=zygote.device), [OutputSpec((side, side), torch.float32)]
        for _ in range(WARM + CALLS):
            began = time.perf_counter()
            child.run([x], outputs)
            took.append(time.perf_counter() - began)
    return statistics.median(took[WARM:])


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--at-once", type=int, default=2, help="threads that make children")
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    device = resolve_device(options.device)
    torch.set_num_threads(1)
    for queues in (None, 1) if device.startswith("cuda") else (None,):
        with Zygote("torch", device, queues=queues) as zygote:
            found = children(zygote, options.at_once, options.seconds)
            print(
                f"{len(found) / options.seconds:.1f} children a second, {options.at_once} at once, "
                f"{statistics.median(found):.3f} s each until it is there; hardware queues: {queues or 'as the driver'}"
            )
            for side in SIDES:
                print(f"a forward call on {side} x {side} floats: {1000 * calls(zygote, side):.2f} ms")


if __name__ == "__main__":
    main()
