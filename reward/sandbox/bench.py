"""How fast candidates get to an answer: `python -m kernelward.reward.sandbox.bench [MODE] [DEVICE] [N]`."""

import itertools
import statistics
import sys
import time
from dataclasses import dataclass

import torch

from .buffers import OutputSpec
from .session import Zygote

PHASES = ("spawn", "load", "build", "run", "close")
TRIVIAL = "class ModelNew:\n    def __call__(self, x):\n        return x + 1\n"


@dataclass(frozen=True, slots=True)
class Figure:
    """Milliseconds of one phase over n candidates: median, and the 10th and 90th percentile."""

    phase: str
    n: int
    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.phase:>14}  n={self.n}  median {self.median:7.2f} ms  (10-90 %: {self.low:.2f}-{self.high:.2f})"


def measure(mode: str = "torch", device: str = "cpu", n: int = 50) -> list[Figure]:
    """Time n trivial candidates one after the other, each in a child of its own, after five that do not count.

    Raises:
        ChildFailure: the sandbox does not work here.
    """
    x = torch.ones(16, device=device)
    rows: list[list[float]] = []
    with Zygote(mode, device) as zygote:
        zygote.report  # noqa: B018 - wait until it is warm
        for _ in range(n + 5):
            marks = [time.perf_counter()]
            with zygote.spawn() as child:
                marks.append(time.perf_counter())
                child.load(TRIVIAL)
                marks.append(time.perf_counter())
                child.build([])
                marks.append(time.perf_counter())
                child.run([x], [OutputSpec((16,), torch.float32)])
                marks.append(time.perf_counter())
            marks.append(time.perf_counter())
            rows.append([(after - before) * 1e3 for before, after in itertools.pairwise(marks)])
    columns = list(zip(*rows[5:], strict=True))
    figures = [figure(phase, list(column)) for phase, column in zip(PHASES, columns, strict=True)]
    figures.append(figure("spawn to loaded", [row[0] + row[1] for row in rows[5:]]))
    figures.append(figure("all", [sum(row) for row in rows[5:]]))
    return figures


def figure(phase: str, values: list[float]) -> Figure:
    """Median and spread of some milliseconds (at least two)."""
    deciles = statistics.quantiles(values, n=10)
    return Figure(phase, len(values), statistics.median(values), deciles[0], deciles[-1])


def main() -> None:
    """Print the figures."""
    mode, device, n = (*sys.argv[1:], *("torch", "cpu", "50")[len(sys.argv) - 1 :])
    for each in measure(mode, device, int(n)):
        print(each)


if __name__ == "__main__":
    main()
