"""Seconds to build a CUDA candidate's extensions: our fast path and torch's load_inline, paired candidate by candidate.

    python benchmarks/cuda_build.py [CANDIDATE.py ...] [--out results.jsonl] [--fast-only] [--arch sm_90]

Without candidates it takes `examples/kernels/cuda`. Candidates are executed in this process (their module level alone,
with the compiler calls intercepted): give it only files that you trust. Both paths start warm (headers prepared, NVRTC
loaded) and without a cache. Results are appended line by line; candidates that the file has already are skipped, so a
run that was cut short goes on where it stopped. torch's path needs nvcc and takes about a minute each.
"""

import argparse
import hashlib
import json
import statistics
import tempfile
import time
from pathlib import Path

from kernelward.reward.cuda.builder import Builder
from kernelward.reward.cuda.engine_gpu import gpu_host_compiler
from kernelward.reward.cuda.frontend import ExtensionSource, Unsupported, record
from kernelward.reward.cuda.nvrtc import nvrtc
from kernelward.reward.sandbox.engine import CompileFailure

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "kernels" / "cuda"


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


def main() -> None:
    """Measure what the results do not have yet, then print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("candidates", nargs="*", type=Path)
    parser.add_argument("--out", type=Path, default=Path("out/cuda_build.jsonl"))
    parser.add_argument("--fast-only", action="store_true")
    parser.add_argument("--arch", default="sm_90")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    done = {row["hash"] for row in rows if options.fast_only or "slow" in row or "slow_error" in row}
    nvrtc()
    builder = Builder(gpu_host_compiler().prepare(), options.arch)
    for path in options.candidates or sorted(EXAMPLES.glob("*.py")):
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
