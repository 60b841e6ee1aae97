"""The demonstration of `make demo`: known-bad kernels under the official checks and ours, then a short training run.

    python examples/demo.py

Everything runs on a CPU: the CUDA candidates on an emulator, the Triton ones in Triton's interpreter.
"""

import secrets
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelward.reward.client import JudgeClient
from kernelward.reward.task import JudgeConfig, Task
from kernelward.reward.verdict import Outcome, Verdict
from kernelward.suites.problem import find_problem
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

HERE = Path(__file__).parent
PROTOCOLS = ("kernelbench", "kernelbench-head", "kernelbench-verified", "kernelward")


@dataclass(frozen=True, slots=True)
class Case:
    """One candidate of the demonstration: its file, its problem, and what is the matter with it."""

    file: str
    problem: str
    what: str
    right: bool = False


CASES = (
    Case("softmax_wide_zeros.py", "softmax_wide.py", "all zeros for a softmax of 393,216 columns"),
    Case("softmax_wide.py", "softmax_wide.py", "its honest twin", right=True),
    Case("relu_identity.py", "relu.py", "a copy of the input for ReLU"),
    Case("relu.py", "relu.py", "its honest twin", right=True),
    Case("mse_loss_half.py", "mse_loss.py", "a mean loss over half of the elements"),
    Case("mse_loss.py", "mse_loss.py", "its honest twin", right=True),
    Case("softmax_cuda_missing_barrier.py", "softmax.py", "CUDA softmax with one __syncthreads() removed"),
    Case("cuda/softmax.py", "softmax.py", "its honest twin", right=True),
)


def judge(cases: Sequence[Case]) -> list[dict[str, Verdict]]:
    """Every case under every protocol, on this machine's CPU."""
    key = secrets.token_bytes(16)
    tasks = [
        Task((HERE / "kernels" / c.file).read_text(), find_problem(str(HERE / "problems" / c.problem)), p, run_key=key)
        for c in cases
        for p in PROTOCOLS
    ]
    with JudgeClient(JudgeConfig(device="cpu", workers=2)) as client, Progress(transient=True) as progress:
        bar = progress.add_task("judging", total=len(tasks))
        verdicts = client.judge_many(tasks, on_verdict=lambda *_: progress.advance(bar))
    rows = [verdicts[i : i + len(PROTOCOLS)] for i in range(0, len(verdicts), len(PROTOCOLS))]
    return [dict(zip(PROTOCOLS, row, strict=True)) for row in rows]


def shown(verdict: Verdict, right: bool) -> str:
    """A verdict as a cell: red where it is the wrong one."""
    accepted = verdict.verdict is Outcome.CORRECT
    colour = "yellow" if not verdict.verdict.decided else "green" if accepted == right else "bold red"
    text = "accepted" if accepted else verdict.verdict.value + (f" ({verdict.reason})" if verdict.reason else "")
    return f"[{colour}]{text}[/]"


def as_expected(results: Sequence[dict[str, Verdict]]) -> bool:
    """Whether `kernelward` got every case right, the honest ones included."""
    return all(
        (r["kernelward"].verdict is Outcome.CORRECT) == c.right and r["kernelward"].verdict.decided
        for c, r in zip(CASES, results, strict=True)
    )


def main() -> int:
    console = Console()
    console.print("Known-bad kernels and their honest twins, on this machine's CPU:\n")
    results = judge(CASES)
    table = Table(show_lines=False)
    table.add_column("candidate")
    for protocol in PROTOCOLS:
        table.add_column(protocol)
    for case, row in zip(CASES, results, strict=True):
        table.add_row(case.what, *(shown(row[p], case.right) for p in PROTOCOLS), end_section=case.right)
    console.print(table)
    for case, row in zip(CASES, results, strict=True):
        verdict = row["kernelward"]
        if not case.right and verdict.message:
            console.print(f"  {case.file}: {verdict.message.splitlines()[0]}")
    console.print("\nA short training run (a toy policy; see examples/grpo_train.py):\n")
    train = [sys.executable, str(HERE / "grpo_train.py"), "--steps", "25", "--out", "build/demo"]
    trained = subprocess.run(train, check=False).returncode
    if not as_expected(results):
        console.print("[bold red]kernelward got a case wrong: please report the table above[/]")
        return 1
    return trained


if __name__ == "__main__":
    sys.exit(main())
