"""examples/kernels: what the official protocol accepts and ours does not, and the honest twin that both accept."""

from collections.abc import Callable
from pathlib import Path

import pytest
from kernelward.reward.client import JudgeClient
from kernelward.reward.task import Task
from kernelward.reward.verdict import Outcome, Verdict
from kernelward.suites.entry import Entry
from kernelward.suites.generators import GENERATORS
from kernelward.suites.problem import Problem
from kernelward.suites.shapes import ragged_variants
from kernelward.suites.suite import Suite, SuiteEntry
from kernelward.suites.traits import inspect_problem
from kernelward.suites.validity import admit

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
KERNELS, PROBLEMS = EXAMPLES / "kernels", EXAMPLES / "problems"

#: (problem, known-bad kernel, its honest twin, the reasons that may name the fault)
PAIRS = [
    ("softmax_wide", "softmax_wide_zeros", "softmax_wide", {"value"}),
    ("relu", "relu_identity", "relu", {"value"}),
    ("softmax", "softmax_no_maximum", "softmax", {"nan", "value"}),
    ("mse_loss", "mse_loss_half", "mse_loss", {"value"}),
    ("argmax", "argmax_last", "argmax", {"value"}),
    ("matmul", "matmul_whole_tiles", "matmul", {"shape-specialised"}),
]


@pytest.fixture(scope="module")
def verdicts(judge: JudgeClient, example: Callable[[str], Problem]) -> dict[tuple[str, str], Verdict]:
    """Every kernel under both protocols, by (kernel, protocol)."""
    tasks = {
        (kernel, protocol): Task(
            (KERNELS / f"{kernel}.py").read_text(), example(problem), protocol, run_key=b"examples"
        )
        for problem, bad, honest, _ in PAIRS
        for kernel in (bad, honest)
        for protocol in ("kernelbench", "kernelward")
    }
    return dict(zip(tasks, judge.judge_many(list(tasks.values())), strict=True))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("problem", "bad", "honest", "reasons"), PAIRS, ids=[p[1] for p in PAIRS])
def test_a_known_bad_kernel_passes_the_official_protocol_and_not_ours(
    verdicts: dict[tuple[str, str], Verdict], problem: str, bad: str, honest: str, reasons: set[str]
) -> None:
    assert verdicts[bad, "kernelbench"].verdict is Outcome.CORRECT, verdicts[bad, "kernelbench"]
    ours = verdicts[bad, "kernelward"]
    assert (ours.verdict, ours.reason in reasons) == (Outcome.INCORRECT, True), ours
    for protocol in ("kernelbench", "kernelward"):
        twin = verdicts[honest, protocol]
        assert twin.verdict is Outcome.CORRECT, twin


CUDA = sorted(p.stem for p in (KERNELS / "cuda").glob("*.py") if (PROBLEMS / p.name).exists())


@pytest.mark.parametrize("kernel", CUDA)
def test_a_cuda_example_solves_the_problem_of_its_name(
    judge: JudgeClient, example: Callable[[str], Problem], kernel: str
) -> None:
    """At one small ragged shape and on signed inputs, which also show a forgotten clamp."""
    problem = example(kernel)
    shape = ragged_variants(problem, inspect_problem(problem), max_bytes=1 << 20, limit=1)[0]
    generator = "normal" if GENERATORS["normal"].applies(inspect_problem(problem)) else "own"
    admission = admit(problem, Entry.make(generator, constants=shape), seeds=2)
    assert admission.measured is not None, admission.detail
    suite = Suite(problem.id, problem.hash, (SuiteEntry(admission.entry, (admission.measured,)),))
    source = (KERNELS / "cuda" / f"{kernel}.py").read_text()
    verdict = judge.judge(Task(source, problem, "kernelward", suite, run_key=b"examples"))
    assert verdict.verdict is Outcome.CORRECT, verdict
