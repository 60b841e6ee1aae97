"""Seconds per verdict, ours beside the real KernelBench checker, problem by problem on the same GPU.

    python benchmarks/paired.py --checkout KERNELBENCH --out paired.jsonl [--only level1_1__triton ...]

Needs an NVIDIA GPU and a KernelBench checkout. Candidates are benchmarks/candidates (their names say the problem), and
with `--cuda` the package's own CUDA substrates for level 1, which the real checker builds with `load_inline`.
Ours is timed with a warm pool and the problem's suite at hand, on a source and on seeds that were never used: once for
the first candidate of an epoch (which pays for drawing the inputs and for truth) and once for a later one of its group.
The real checker runs as its scripts run it: five trials, one process per candidate. Finished rows are kept in the
output file and not repeated.
"""

import argparse
import json
import secrets
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from kernelward.mutants.substrates import list_substrates
from kernelward.reward.client import JudgeClient
from kernelward.reward.kernelbench import OfficialChecker
from kernelward.reward.task import JudgeConfig, Task
from kernelward.suites.problem import find_problem
from rich.console import Console
from rich.table import Table

CANDIDATES = Path(__file__).parent / "candidates"
SUBSTRATES = {s.name: s for s in list_substrates() if s.backend == "cuda" and s.problem.startswith("level1/")}


def candidate(name: str) -> tuple[str, str]:
    """(source, problem id) of a candidate: `level1_23__triton` is for `level1/23`; substrates say it themselves."""
    if name in SUBSTRATES:
        return SUBSTRATES[name].source, SUBSTRATES[name].problem
    return (CANDIDATES / f"{name}.py").read_text(), name.partition("__")[0].replace("_", "/")


def unseen(source: str) -> str:
    """The same candidate with other text, also in its CUDA sources, so that no build of it is kept anywhere."""
    tag = secrets.token_hex(8)
    return source.replace("#include <torch/extension.h>", f"// {tag}\n#include <torch/extension.h>") + f"\n# {tag}\n"


def measure(name: str, client: JudgeClient, official: OfficialChecker, checkout: Path) -> dict[str, Any]:
    """One row: both verdicts, and the seconds of each."""
    source, id = candidate(name)
    problem = find_problem(id, checkout)
    task = Task(source, problem, run_key=secrets.token_bytes(16))
    prepared = client.judge(task)  # builds or finds the suite, starts the zygote of this mode
    first = client.judge(replace(task, epoch=1, candidate=unseen(source)))
    later = client.judge(replace(task, epoch=1, candidate=unseen(source)))
    theirs = official.judge(problem, unseen(source))
    return {
        "candidate": name,
        "problem": problem.id,
        "backend": first.backend,
        "engine": first.engine,
        "ours": first.verdict.value,
        "ours_reason": first.reason,
        "official": theirs.verdict.value,
        "official_reason": theirs.reason,
        "prepare_s": prepared.seconds,
        "first_s": first.seconds,
        "later_s": later.seconds,
        "official_s": theirs.seconds,
        "phases": first.phases,
        "notes": list(first.notes),
        "message": first.message[:300],
        "official_message": theirs.message[:300],
    }


def show(rows: list[dict[str, Any]], console: Console) -> None:
    """The rows as a table, and the median over problems of each problem's median ratio."""
    table = Table(title="seconds per verdict")
    for column in ("candidate", "ours", "official", "first of an epoch", "later", "official s", "ratio (first)"):
        table.add_column(column, justify="left" if column in ("candidate", "ours", "official") else "right")
    by_problem: dict[str, list[float]] = {}
    for row in rows:
        ratio = row["official_s"] / row["first_s"]
        by_problem.setdefault(row["problem"], []).append(ratio)
        seconds = [f"{row[key]:.2f}" for key in ("first_s", "later_s", "official_s")]
        table.add_row(row["candidate"], row["ours"], row["official"], *seconds, f"{ratio:.0f}")
    console.print(table)
    medians = sorted(statistics.median(ratios) for ratios in by_problem.values())
    if medians:
        console.print(
            f"{len(medians)} problems: official / ours, median {statistics.median(medians):.1f}, "
            f"from {medians[0]:.1f} to {medians[-1]:.1f}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cuda", action="store_true", help="the CUDA substrates in place of the candidates")
    parser.add_argument("--only", nargs="+")
    options = parser.parse_args()
    options.only = options.only or sorted(SUBSTRATES if options.cuda else (f.stem for f in CANDIDATES.glob("*.py")))
    done = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    wanted = [name for name in options.only if name not in {row["candidate"] for row in done}]
    official = OfficialChecker(options.checkout)
    console = Console()
    console.print(f"torch {torch.__version__}, {torch.cuda.get_device_name(0)}, {len(wanted)} candidates to go")
    with JudgeClient(JudgeConfig(device="cuda:0", workers=1)) as client, options.out.open("a") as out:
        for name in wanted:
            row = measure(name, client, official, options.checkout)
            done.append(row)
            out.write(json.dumps(row) + "\n")
            out.flush()
            console.print(f"{name}: ours {row['first_s']:.2f} s, official {row['official_s']:.1f} s")
    show([row for row in done if row["candidate"] in options.only], console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
