"""What a forward call costs on the CPU emulator, by schedule, for some of our kernels at the shape of a small entry.

    python benchmarks/emulator.py [--calls 7] [KERNEL ...]

Each kernel has a warm child of its own; the least of so many calls is shown, in milliseconds, what the sandbox adds
included. To compare two builds, run it in both checkouts by turns.
"""

import argparse
import os
import platform
import time
from pathlib import Path

import torch
from kernelward.reward.cuda.emulator import PLAIN_VARIANT, RACE_VARIANT, STRICT_VARIANTS
from kernelward.reward.sandbox.buffers import OutputSpec
from kernelward.reward.sandbox.session import Zygote
from kernelward.suites.draw import draw_entry
from kernelward.suites.entry import Entry
from kernelward.suites.oracle import reference_outputs
from kernelward.suites.problem import find_problem
from kernelward.suites.shapes import ragged_variants
from kernelward.suites.traits import inspect_problem
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
KERNELS = (
    "relu__vec4",
    "softmax__exp2_block",
    "layernorm__vec4",
    "layernorm__welford_warp",
    "cumsum__blelloch",
    "matmul__naive",
    "matmul__tiled32",
    "matmul__async_copy",
    "matmul__wmma_3xtf32",
    "conv2d__direct",
    "conv2d__shared_tile",
    "conv2d__implicit_gemm",
)
SMALL = 1 << 20  # bytes of the entry, at most


def measure(zygote: Zygote, name: str, calls: int) -> list[float]:
    """Milliseconds of a forward call under the strict schedules together, the race check, and the plain one."""
    problem = find_problem(name.partition("__")[0], ROOT / "examples" / "problems")
    shape = next(iter(ragged_variants(problem, inspect_problem(problem), max_bytes=SMALL)))
    drawn = draw_entry(problem, Entry.make("own", constants=shape), 1)
    specs = [OutputSpec(tuple(t.shape), t.dtype) for t in reference_outputs(drawn)]
    source = (ROOT / "mutants" / "substrates" / "cuda" / f"{name}.py").read_text()
    with zygote.spawn() as child:
        child.load(source)
        child.build(drawn.init_inputs, drawn.build_model().state_dict(), drawn.model_seed)

        def least(variants: tuple[dict[str, object], ...]) -> float:
            took = []
            for _ in range(calls):
                began = time.perf_counter()
                for variant in variants:
                    child.run(drawn.inputs, specs, drawn.seed, variant)
                took.append(time.perf_counter() - began)
            return 1000 * min(took)

        groups = STRICT_VARIANTS, (RACE_VARIANT,), (PLAIN_VARIANT,)
        return [least(tuple(v.to_json() for v in group)) for group in groups]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", nargs="*", default=KERNELS, metavar="KERNEL")
    parser.add_argument("--calls", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = Table("kernel", f"{len(STRICT_VARIANTS)} strict schedules, ms", "race check, ms", "plain, ms")
    with Zygote("cuda-emulator") as zygote:
        for name in options.kernels:
            table.add_row(name, *(f"{ms:.1f}" for ms in measure(zygote, name, options.calls)))
    load = os.getloadavg()[0]
    Console().print(
        table, f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}, load {load:.2f}"
    )


if __name__ == "__main__":
    main()
