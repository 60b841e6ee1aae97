"""Re-score a file of generations: what the official check accepts, what kernelward accepts, and who disagrees.

    python examples/score_generations.py [OUT]

Writes eight completions as a model would give them (two per problem: an honest kernel and a wrong one) as JSONL,
then does what `kernelward score FILE --out OUT --protocol kernelbench --protocol kernelward` does. Run it again with
the same OUT and nothing is judged twice; kill it at any moment and start it again and nothing is lost.
"""

import json
import sys
import tempfile
from pathlib import Path

from kernelward.reward.score import run_score

HERE = Path(__file__).resolve().parent
KERNELS = {
    "relu": ("relu.py", "relu_identity.py"),
    "argmax": ("argmax.py", "argmax_last.py"),
    "mse_loss": ("mse_loss.py", "mse_loss_half.py"),
    "matmul": ("matmul.py", "matmul_whole_tiles.py"),
}


def write_generations(path: Path) -> None:
    """One row per completion; every column but `problem` and `completion` is carried through to the output."""
    with path.open("w", encoding="utf-8") as file:
        for problem, kernels in KERNELS.items():
            for sample, kernel in enumerate(kernels):
                source = (HERE / "kernels" / kernel).read_text(encoding="utf-8")
                row = {
                    "problem": str(HERE / "problems" / f"{problem}.py"),
                    "completion": f"Here is the kernel:\n\n```python\n{source}```\n",
                    "sample": sample,
                    "file": kernel,
                }
                file.write(json.dumps(row) + "\n")


def main() -> int:
    """Write the generations, score them, print the summary."""
    folder = Path(tempfile.mkdtemp(prefix="generations-"))
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else folder / "scored.jsonl"
    write_generations(folder / "generations.jsonl")
    code = run_score(folder / "generations.jsonl", out, protocols=["kernelbench", "kernelward"])
    print(f"\none line per row and protocol: {out}")
    return code


if __name__ == "__main__":
    sys.exit(main())
