"""The adapter that asks a KernelBench checkout, as `kernelward measure` calls it; a stand-in plays the checkout."""

import importlib.util
import sys
from pathlib import Path

import pytest
from kernelward.mutants.foreign_checker import ForeignChecker, Said

ADAPTER = Path(__file__).parents[2] / "examples" / "checkers" / "kernelbench_checkout.py"
PROBLEM = "class Model: pass\n"
EVAL = """
class Result:
    def __init__(self, correctness, metadata):
        self.compiled, self.correctness, self.metadata = True, correctness, metadata

def eval_kernel_against_ref(original_model_src, custom_model_src, num_correct_trials=1, hidden_test_path=None):
    assert num_correct_trials == 5
    wanted = open(hidden_test_path).read() if hidden_test_path else "nothing"
    return eval(custom_model_src, {"Result": Result, "wanted": wanted})
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for folder in ("src", "KernelBench/level1", "hidden_tests/level1"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "src" / "eval.py").write_text(EVAL)
    (tmp_path / "KernelBench" / "level1" / "1_Other.py").write_text("class Model: x = 1\n")
    (tmp_path / "KernelBench" / "level1" / "19_ReLU.py").write_text("# a licence\n" + PROBLEM)
    (tmp_path / "hidden_tests" / "level1" / "19_hidden.py").write_text("four scalings")
    return tmp_path


def ask(checkout: Path, candidate: str, *options: str) -> Said:
    command = f"{sys.executable} {ADAPTER} {checkout} {{problem}} {{candidate}} {' '.join(options)}"
    return ForeignChecker(command, 60.0).ask(PROBLEM, candidate)


def test_the_hidden_test_is_that_of_the_problem_with_the_same_code(checkout: Path) -> None:
    said = ask(checkout, "Result(wanted == 'four scalings', {})", "--hidden")
    assert said.passes is True, said.detail


def test_what_the_checkout_refuses_fails(checkout: Path) -> None:
    said = ask(checkout, "Result(False, {'correctness_issue': 'Output mismatch for ' + wanted})")
    assert said.passes is False
    assert "Output mismatch for nothing" in said.detail


def test_a_problem_that_is_not_the_checkouts_has_no_hidden_test(checkout: Path) -> None:
    spec = importlib.util.spec_from_file_location("kernelbench_checkout", ADAPTER)
    assert spec is not None
    assert spec.loader is not None
    adapter = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(adapter)
    with pytest.raises(FileNotFoundError, match="no hidden test for this problem"):
        adapter.hidden_test(checkout, "class Model: x = 2\n")


def test_what_escapes_from_the_checkout_is_no_verdict(checkout: Path) -> None:
    said = ask(checkout, "nobody")
    assert said.passes is None
    assert "NameError" in said.detail
