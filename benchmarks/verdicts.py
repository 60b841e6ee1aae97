"""Verdicts per minute on this machine, and where the milliseconds of a verdict go.

    python benchmarks/verdicts.py [--device cpu] [--workers 2] [--protocol kernelward] [--json FILE]

The candidates are tests/honest (all right, so nothing stops early) and examples/kernels. They are judged once to warm
truth and suites, as in training, and then once more with every seed changed; the second pass is the figure.
"""

import argparse
import json
import platform
import secrets
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from kernelward.reward.client import JudgeClient
from kernelward.reward.task import JudgeConfig, Task
from kernelward.reward.verdict import Verdict
from kernelward.suites.problem import find_problem
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]


def candidates() -> list[tuple[str, str, Path]]:
    """(name, source, problem file) of every candidate, grouped by backend in the name."""
    honest = sorted((ROOT / "tests" / "honest").glob("*/*.py"))
    rows = [(f"{f.parent.name}/{f.stem}", f.read_text(), f.parent.name) for f in honest]
    return [(name, source, ROOT / "examples" / "problems" / f"{problem}.py") for name, source, problem in rows]


def one_pass(client: JudgeClient, protocol: str, epoch: int, key: bytes) -> tuple[list[Verdict], float]:
    """Judge every candidate at one epoch; verdicts and wall-clock seconds."""
    tasks = [
        Task(source, find_problem(str(problem)), protocol, run_key=key, epoch=epoch)
        for _, source, problem in candidates()
    ]
    with Progress(transient=True) as progress:
        bar = progress.add_task(f"epoch {epoch}", total=len(tasks))
        started = time.perf_counter()
        verdicts = client.judge_many(tasks, on_verdict=lambda *_: progress.advance(bar))
    return verdicts, time.perf_counter() - started


def summary(verdicts: list[Verdict], seconds: float) -> dict[str, Any]:
    """Counts, rate, and medians per backend."""
    by_engine: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        by_engine[verdict.engine].append(verdict)
    phases: dict[str, float] = defaultdict(float)
    for verdict in verdicts:
        for phase, spent in verdict.phases.items():
            phases[phase] += spent
    return {
        "verdicts": len(verdicts),
        "seconds": seconds,
        "per_minute": 60 * len(verdicts) / seconds,
        "outcomes": {
            o: sum(v.verdict.value == o for v in verdicts) for o in sorted({v.verdict.value for v in verdicts})
        },
        "median_s": {engine: statistics.median(v.seconds for v in group) for engine, group in by_engine.items()},
        "n": {engine: len(group) for engine, group in by_engine.items()},
        "phase_share": {p: s / sum(phases.values()) for p, s in sorted(phases.items(), key=lambda i: -i[1])},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--protocol", default="kernelward")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    key = secrets.token_bytes(16)
    with JudgeClient(JudgeConfig(device=options.device, workers=options.workers)) as client:
        started = time.perf_counter()
        judge = client.describe()
        ready = time.perf_counter() - started
        first = summary(*one_pass(client, options.protocol, 0, key))
        warm = summary(*one_pass(client, options.protocol, 1, key))
    machine = f"{platform.machine()}, {platform.python_version()}, torch {torch.__version__}, {judge['device_name']}"
    console = Console()
    console.print(f"{machine}; {options.workers} workers; judge ready after {ready:.1f} s")
    table = Table(title=f"{options.protocol}: {warm['verdicts']} verdicts per pass")
    for column in ("pass", "seconds", "verdicts per minute", "outcomes", "median seconds by engine"):
        table.add_column(column)
    for name, result in (("first (suites and truth are made)", first), ("warm", warm)):
        medians = ", ".join(f"{e} {m:.3f} (n {result['n'][e]})" for e, m in sorted(result["median_s"].items()))
        rate = f"{result['per_minute']:.0f}"
        table.add_row(name, f"{result['seconds']:.1f}", rate, str(result["outcomes"]), medians)
    console.print(table)
    shares = ", ".join(f"{phase} {share:.0%}" for phase, share in warm["phase_share"].items() if share >= 0.005)
    console.print(f"where a warm verdict's time goes: {shares}")
    if options.json:
        options.json.write_text(
            json.dumps({"machine": machine, "ready_s": ready, "first": first, "warm": warm}, indent=1)
        )


if __name__ == "__main__":
    main()
