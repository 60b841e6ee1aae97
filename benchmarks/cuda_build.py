"""Seconds to build a CUDA candidate's extensions: our fast path and torch's load_inline, paired candidate by candidate.

    python benchmarks/cuda_build.py [CANDIDATE.py ...] [--out results.jsonl] [--fast-only] [--arch sm_90]

Without candidates it takes `examples/kernels/cuda`. Candidates are executed in this process (their module level alone,
with the compiler calls intercepted): give it only files that you trust. Both paths start warm (headers prepared, NVRTC
loaded) and without a cache. Results are appended line by line; candidates that the file has already are skipped, so a
run that was cut short goes on where it stopped. torch's path needs nvcc and takes about a minute each.

    python benchmarks/cuda_build.py --emulator [CANDIDATE.py ...] [--out results.jsonl]

measures the CPU emulator instead, where no GPU is needed: processor seconds (compilers included) and wall-clock seconds
of one build, and milliseconds of each run at the declared shape of the problem in `examples/problems` that has the
candidate's name, if there is one. Processor seconds are the figure to compare on a machine that others use as well.
"""

import argparse
import hashlib
import json
import os
import resource
import statistics
import tempfile
import time
from pathlib import Path

import torch
from kernelward.reward.cuda.builder import Builder
from kernelward.reward.cuda.emulator_build import Toolchain
from kernelward.reward.cuda.emulator_translate import translate
from kernelward.reward.cuda.engine_gpu import gpu_host_compiler
from kernelward.reward.cuda.frontend import ExtensionSource, Unsupported, record
from kernelward.reward.cuda.nvrtc import nvrtc
from kernelward.reward.sandbox.engine import CompileFailure, variants
from kernelward.reward.sandbox.limits import Limits
from kernelward.reward.sandbox.session import OutputSpec, Zygote
from kernelward.suites.compare import flatten_outputs
from kernelward.suites.problem import find_problem, load_problem

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples" / "kernels" / "cuda"


def measured(build: str, builder: Builder, sources: list[ExtensionSource]) -> dict[str, float | str]:
    """Seconds for all extensions of a candidate on one path, or why it failed."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        try:
            for source in sources:
                if build == "fast":
                    builder.fast(source, Path(folder))
                else:
                    builder.slow(source, Path(folder), "benchmark")
        except (CompileFailure, Unsupported) as error:
            return {f"{build}_error": f"{type(error).__name__}: {error}"[:300]}
        return {build: round(time.perf_counter() - started, 4)}


def _processor_seconds() -> float:
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def emulated(path: Path, toolchain: Toolchain, zygote: Zygote) -> dict[str, object]:
    """Seconds to translate and compile a candidate for the emulator, and milliseconds to run it there."""
    text = path.read_text()
    sources, error = record(text)
    if error is not None or not sources:
        return {"error": f"{error!r}" if error else "no extension"}
    with tempfile.TemporaryDirectory() as folder:
        used, started = _processor_seconds(), time.perf_counter()
        for source in sources:
            toolchain.build(translate(source), Path(folder))
        row: dict[str, object] = {
            "cpu": round(_processor_seconds() - used, 3),
            "wall": round(time.perf_counter() - started, 3),
            "load": round(os.getloadavg()[0], 1),
        }
    problem = ROOT / "examples" / "problems" / path.name
    if not problem.exists():
        return row
    loaded = load_problem(find_problem(str(problem)))
    init = loaded.init_inputs(0, "cpu")
    model = loaded.build_model(init, 0, "cpu")
    inputs = loaded.own_draw(0, "cpu")
    with torch.no_grad():
        outputs = flatten_outputs(model(*inputs))
    with zygote.spawn(Limits()) as session:
        session.load(text)
        session.build(init, model.state_dict())
        specs = [OutputSpec(tuple(o.shape), o.dtype) for o in outputs]
        for name, strict in (("plain_ms", False), ("strict_ms", True)):
            replies = [session.run(inputs, specs, 0, variant) for variant in variants("cuda-emulator", strict)]
            row[name] = [round(1000 * reply.seconds, 1) for reply in replies]
    return row


def measure_emulator(candidates: list[Path], out: Path) -> None:
    """Measure every candidate and print the medians."""
    torch.set_num_threads(1)
    toolchain = Toolchain.prepare()
    rows = []
    with Zygote("cuda-emulator") as zygote:
        for path in candidates:
            row = {"candidate": path.name} | emulated(path, toolchain, zygote)
            rows.append(row)
            with out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)
    built = [row for row in rows if "cpu" in row]
    if built:
        cpu, wall = (statistics.median(float(str(row[name])) for row in built) for name in ("cpu", "wall"))
        print(f"emulator: {len(built)} built, median {cpu:.2f} s of processor time, {wall:.2f} s by the clock")


def main() -> None:
    """Measure what the results do not have yet, then print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("candidates", nargs="*", type=Path)
    parser.add_argument("--out", type=Path, default=Path("out/cuda_build.jsonl"))
    parser.add_argument("--fast-only", action="store_true")
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--emulator", action="store_true")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    candidates = options.candidates or sorted(EXAMPLES.glob("*.py"))
    if options.emulator:
        measure_emulator(candidates, options.out)
        return
    rows = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    done = {row["hash"] for row in rows if options.fast_only or "slow" in row or "slow_error" in row}
    nvrtc()
    builder = Builder(gpu_host_compiler().prepare(), options.arch)
    for path in candidates:
        text = path.read_text()
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        if digest in done:
            continue
        sources, error = record(text)
        row: dict[str, object] = {"candidate": path.name, "hash": digest, "extensions": len(sources)}
        if error is not None or not sources:
            row["error"] = f"{error!r}" if error else "no extension"
        else:
            row |= measured("fast", builder, sources)
            if not options.fast_only:
                row |= measured("slow", builder, sources)
        rows.append(row)
        with options.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)
    fast = [row["fast"] for row in rows if "fast" in row]
    pairs = [(row["fast"], row["slow"]) for row in rows if "fast" in row and "slow" in row]
    if fast:
        print(f"fast path: {len(fast)} built, median {statistics.median(fast):.3f} s, slowest {max(fast):.3f} s")
    if pairs:
        ratio = statistics.median(slow / quick for quick, slow in pairs)
        print(f"load_inline: median {statistics.median(s for _, s in pairs):.1f} s; {ratio:.0f} times as long (median)")


if __name__ == "__main__":
    main()
