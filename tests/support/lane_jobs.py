"""What the tests of lanes run in other processes, which find it by its name."""

import os
import signal

from kernelward.mutants.cell import CellResult, Question
from kernelward.mutants.evaluate import Evaluator
from kernelward.reward.sandbox.failure import ChildFailure
from kernelward.suites.oracle import OracleError
from kernelward.suites.problem import Problem


def judged(evaluator: Evaluator, source: str, problem: Problem, question: Question) -> tuple[int, CellResult | None]:
    with evaluator.open(source, "torch", problem) as run:
        return os.getpid(), run.cell(question)


def failing(evaluator: Evaluator, which: str) -> None:
    if which == "oracle":
        raise OracleError("float64-raises", "no")
    raise ChildFailure("infra_error", "zygote", "gone", "spawn", exception="OSError", output="text", alive=True)


def process_of(evaluator: Evaluator) -> int:
    """The process that an evaluator is in."""
    return os.getpid()


def ending(_: Evaluator) -> None:
    """Ends its lane's process, as the kernel does where memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)
