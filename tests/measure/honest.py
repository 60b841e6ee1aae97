"""False rejections: every honest implementation under many seeds.

    python tests/measure/honest.py [--device cpu] [--workers 2] [--seeds 20] [--backend torch|triton] [--json FILE]

The implementations are tests/honest: the same arithmetic in other orders and other algorithms. Each is judged once per
seed (an epoch draws every entry anew) by `kernelward`, all entries. Prints every verdict that is not `correct`, and the
count with its interval (Clopper-Pearson, 95 %); runs of one implementation are not independent, so n is that of the
implementations. Exit code 0 where all are correct, else 1.
"""

import argparse
import json
import secrets
import sys
from collections import Counter
from pathlib import Path

import torch
from kernelward.reward.client import JudgeClient
from kernelward.reward.screen import detect_backend
from kernelward.reward.task import JudgeConfig, Task
from kernelward.reward.verdict import Outcome
from kernelward.suites.problem import find_problem
from rich.console import Console
from rich.progress import Progress
from scipy.stats import binomtest

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--backend", choices=("torch", "triton"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    files = sorted((ROOT / "tests" / "honest").glob("*/*.py"))
    sources = {f: f.read_text() for f in files}
    files = [f for f in files if options.backend in (None, detect_backend(sources[f]))]
    problems = {f: find_problem(str(ROOT / "examples" / "problems" / f"{f.parent.name}.py")) for f in files}
    key = secrets.token_bytes(16)
    console = Console()
    rows = []
    with JudgeClient(JudgeConfig(device=options.device, workers=options.workers)) as client, Progress() as progress:
        bar = progress.add_task("judging", total=len(files) * options.seeds)
        for epoch in range(options.seeds):
            tasks = [Task(sources[f], problems[f], run_key=key, epoch=epoch, all_entries=True) for f in files]
            verdicts = client.judge_many(tasks, on_verdict=lambda *_: progress.advance(bar))
            for file, verdict in zip(files, verdicts, strict=True):
                worst = max(
                    (e.err / e.tolerance for e in verdict.entries if e.err is not None and e.tolerance), default=0
                )
                rows.append({"file": str(file.relative_to(ROOT)), "epoch": epoch, "worst": worst, **verdict.to_json()})
                if verdict.verdict is not Outcome.CORRECT:
                    name = f"{file.parent.name}/{file.stem}"
                    where = f"{verdict.verdict.value} ({verdict.reason}) at {verdict.entry}, seed {verdict.seed}"
                    console.print(f"{name}: {where}: {verdict.message[:200]}")
    outcomes = Counter(row["verdict"] for row in rows)
    bad = len({row["file"] for row in rows if row["verdict"] != "correct"})
    high = binomtest(bad, len(files)).proportion_ci(0.95, "exact").high
    worst = max(rows, key=lambda row: row["worst"])
    counted = f"{len(files)} implementations of {len({p.id for p in problems.values()})} problems"
    console.print(f"torch {torch.__version__}, {options.device}: {counted}, {options.seeds} seeds each")
    console.print(f"verdicts: {dict(outcomes)}")
    console.print(f"not always correct: {bad} of {len(files)} implementations (95 % upper bound {high:.1%})")
    console.print(f"largest error / tolerance: {worst['worst']:.2f} ({worst['file']})")
    if options.json:
        options.json.write_text(json.dumps(rows))
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
