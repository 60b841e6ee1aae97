"""Do our fast builds of CUDA candidates give the same bytes as torch's own `load_inline`?

    python benchmarks/cuda_identity.py --out identity.jsonl [--problems KERNELBENCH] [--workers 8] [--only NAME ...]

Needs an NVIDIA GPU, nvcc and g++. Candidates are the package's CUDA substrates (our own, trusted code: `load_inline`
runs them outside the sandbox). Each is built twice, by `load_inline` in a process of its own and by our engine in the
sandbox, and given the same inputs (a dense signed draw at a small ragged shape). A row says whether all output bytes
are equal, the largest difference, whether `load_inline`'s own second run gave the same bytes (atomics do not), and the
seconds of both builds. Finished rows are kept in the output file and not repeated.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from kernelward.mutants.mutant import Substrate
from kernelward.mutants.pool import pool_shapes
from kernelward.mutants.substrates import list_substrates
from kernelward.reward.sandbox.buffers import OutputSpec
from kernelward.reward.sandbox.failure import ChildFailure
from kernelward.reward.sandbox.limits import Limits
from kernelward.reward.sandbox.session import Zygote
from kernelward.suites.compare import flatten_outputs
from kernelward.suites.draw import Drawn, draw_entry
from kernelward.suites.entry import Entry
from kernelward.suites.errors import InputError
from kernelward.suites.problem import find_problem
from kernelward.suites.traits import inspect_problem
from rich.console import Console
from rich.progress import Progress

ROOT = Path(__file__).resolve().parents[1]
SEED = 20260101


def drawn_for(substrate: Substrate, problems: Path | None) -> Drawn:
    """The inputs that both builds get, on the GPU."""
    own = ROOT / "examples" / "problems" / f"{substrate.problem}.py"
    problem = find_problem(str(own)) if own.is_file() else find_problem(substrate.problem, problems)
    shapes = pool_shapes(problem, inspect_problem(problem))
    return draw_entry(problem, Entry.make("normal", constants=shapes[0] if shapes else {}), SEED, "cuda:0")


def by_load_inline(substrate: Substrate, problems: Path | None) -> dict[str, Any]:
    """Outputs of two runs, and the seconds of the build, in this process."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCH_EXTENSIONS_DIR"] = folder
        os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "{}.{}".format(*torch.cuda.get_device_capability()))
        drawn = drawn_for(substrate, problems)
        state = drawn.build_model().state_dict()
        started = time.perf_counter()
        scope: dict[str, Any] = {"__name__": "candidate"}
        exec(compile(substrate.source, f"{substrate.name}.py", "exec"), scope)
        torch.manual_seed(drawn.model_seed)
        model = scope["ModelNew"](*drawn.init_inputs).cuda()
        seconds = time.perf_counter() - started
        model.load_state_dict({k: v for k, v in state.items() if k in model.state_dict()}, strict=False)
        runs = []
        with torch.no_grad():
            for _ in range(2):
                copies = [x.clone() if isinstance(x, torch.Tensor) else x for x in drawn.inputs]
                runs.append([t.cpu() for t in flatten_outputs(model(*copies))])
    return {"outputs": [t.numpy().copy() for t in runs[0]], "steady": same(*runs), "build_s": seconds}


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    """Whether all bytes agree."""
    pairs = zip(first, second, strict=True)
    return all(a.dtype == b.dtype and a.numpy().tobytes() == b.numpy().tobytes() for a, b in pairs)


def by_us(substrate: Substrate, problems: Path | None, zygote: Zygote, theirs: dict[str, Any]) -> dict[str, Any]:
    """The row of one candidate."""
    drawn = drawn_for(substrate, problems)
    expected = [torch.from_numpy(a) for a in theirs["outputs"]]
    with zygote.spawn(Limits(load_s=200.0)) as child:
        loaded = child.load(substrate.source)
        child.build(drawn.init_inputs, drawn.build_model().state_dict(), drawn.model_seed, torch.float32)
        reply = child.run(drawn.inputs, [OutputSpec(tuple(t.shape), t.dtype) for t in expected], drawn.seed)
    ours = [t.cpu() for t in reply.outputs]
    worst = max((float((a.double() - b.double()).abs().max()) for a, b in zip(ours, expected, strict=True)), default=0)
    return {"engine": loaded.engine, "identical": same(ours, expected), "difference": worst, "load_s": loaded.seconds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--problems", type=Path)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--only", nargs="*")
    options = parser.parse_args()
    done = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.is_file() else []
    known = {row["name"] for row in done}
    wanted = [s for s in list_substrates() if s.backend == "cuda" and s.name not in known]
    wanted = [s for s in wanted if not options.only or s.name in options.only]
    wanted = [s for s in wanted if "/" not in s.problem or options.problems is not None]
    zygote = Zygote("cuda", "cuda:0")
    console = Console()
    with (
        ProcessPoolExecutor(options.workers, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool,
        Progress(console=console) as progress,
        options.out.open("a") as out,
    ):
        bar = progress.add_task("building", total=len(wanted))
        waiting = {pool.submit(by_load_inline, s, options.problems): s for s in wanted}
        for future in as_completed(waiting):
            substrate = waiting[future]
            try:
                theirs = future.result()
                row = by_us(substrate, options.problems, zygote, theirs)
                row = {"name": substrate.name, **row, "steady": theirs["steady"], "load_inline_s": theirs["build_s"]}
            except (ChildFailure, InputError, RuntimeError, TypeError, ValueError) as error:
                row = {"name": substrate.name, "error": f"{type(error).__name__}: {error}"[:600]}
            done.append(row)
            out.write(json.dumps(row) + "\n")
            out.flush()
            progress.advance(bar)
    zygote.close()
    kinds = Counter(
        "failed" if "error" in r else "identical" if r["identical"] else "differs" if r["steady"] else "not steady"
        for r in done
    )
    name = torch.cuda.get_device_name(0)
    console.print(f"{name}, torch {torch.__version__}: {dict(kinds)} of {len(done)} candidates")
    for row in done:
        if row.get("error") or not row["identical"]:
            console.print(row)
    return int(bool(kinds["differs"] or kinds["failed"]))


if __name__ == "__main__":
    sys.exit(main())
