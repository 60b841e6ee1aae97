"""A KernelBench checkout's own check as a checker that `kernelward measure` can ask. It needs a GPU.

    kernelward measure 'python examples/checkers/kernelbench_checkout.py CHECKOUT {problem} {candidate}' \\
        --matrix MATRIX --problems CHECKOUT/KernelBench --workers 4

CHECKOUT is a git checkout of ScalingIntelligence/KernelBench or facebookresearch/kernel_bench_verified; neither has to
be installed. Five trials at the declared shapes, as their scripts have it. With `--hidden`, kernel_bench_verified's
hidden tests (four scalings of the inputs) have to pass as well; there is one for each of its own problems, which are
recognised by their code. It executes CUDA candidates in a way in which Triton cannot find a kernel's source, so
measure that checkout with `--backend cuda`.

Exit code 0 = correct, 1 = not correct, 3 = no verdict: no GPU, out of memory, an error that escapes from the checkout,
or a compiler error that it takes for a lock file's.
"""

import argparse
import ast
import sys
from pathlib import Path

from kernelward.reward.kernelbench import Answer, read_answer
from kernelward.reward.kernelbench_child import answer
from kernelward.reward.screen import detect_backend
from kernelward.reward.verdict import Outcome

CORRECT, WRONG, NO_VERDICT = 0, 1, 3


def hidden_test(checkout: Path, problem: str) -> Path:
    """The hidden test of a problem.

    Raises:
        FileNotFoundError: no problem of the checkout has this code, or it has no hidden test.
    """
    code = ast.dump(ast.parse(problem))
    for path in sorted(checkout.glob("KernelBench/level*/*.py")):
        if ast.dump(ast.parse(path.read_text(encoding="utf-8"))) == code:
            hidden = checkout / "hidden_tests" / path.parent.name / f"{path.name.partition('_')[0]}_hidden.py"
            if hidden.is_file():
                return hidden
    raise FileNotFoundError(f"{checkout} has no hidden test for this problem")


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser()
    for name in ("checkout", "problem", "candidate"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--hidden", action="store_true")
    options = parser.parse_args()
    problem, candidate = (path.read_text(encoding="utf-8") for path in (options.problem, options.candidate))
    request = {
        "op": "evaluate",
        "checkout": str(options.checkout.resolve()),
        "reference": problem,
        "candidate": candidate,
        "trials": 5,
        "precision": "fp32",
        "backend": "triton" if detect_backend(candidate) == "triton" else "cuda",
    }
    if options.hidden:
        try:
            request["hidden_test_path"] = str(hidden_test(options.checkout.resolve(), problem))
        except FileNotFoundError as error:
            print(error)
            return NO_VERDICT
    reply = answer(request)
    if reply["status"] != "result":
        print(reply.get("error", "the checkout gave no result"))
        return NO_VERDICT
    outcome, reason, message = read_answer(Answer(reply, {}, timed_out=False), time_limit=0.0)
    print(f"{outcome} {reason} {message}")
    if not outcome.decided:
        return NO_VERDICT
    return CORRECT if outcome is Outcome.CORRECT else WRONG


if __name__ == "__main__":
    sys.exit(main())
