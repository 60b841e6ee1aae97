"""Which of a Triton candidate's functions its compiled code speaks for, in every call."""

from pathlib import Path

import pytest
from kernelward.mutants.triton_code import call_of, compiled_functions
from kernelward.suites.problem import find_problem, problem_from_source

HEAD = "import triton\nimport triton.language as tl\n\n"
HELPER = "@triton.jit\ndef helper(v):\n    return v + 1\n\n"
KERNEL = "@triton.jit\ndef kernel(x, n, B: tl.constexpr):\n    tl.store(x, helper(n))\n\n"


def spoken_for(launch: str, kernel: str = KERNEL, head: str = "", launched: tuple[str, ...] = ("kernel",)) -> set[str]:
    host = f"\n\ndef host(x, n, size, more):\n    {launch}\n"
    return set(compiled_functions(HEAD + head + HELPER + kernel + host, launched))


@pytest.mark.parametrize(
    ("launch", "head"),
    [
        ("kernel[(n,)](x, n, B=64)", ""),
        ("kernel[(n,)](x, n, 64, num_warps=4)", ""),
        ("kernel[(n,)](x, n, B=SIZE)", "SIZE = 64\n"),
        ("kernel[(n,)](x, n, B=64); kernel[(n,)](x, n + 1, B=32)", ""),
    ],
)
def test_constants_that_are_written_out_are_the_same_in_every_call(launch: str, head: str) -> None:
    assert spoken_for(launch, head=head) == {"kernel", "helper"}


@pytest.mark.parametrize(
    ("launch", "head"),
    [
        ("kernel[(n,)](x, n, B=size)", ""),
        ("kernel[(n,)](x, n, B=2 * n)", ""),
        ("kernel[(n,)](x, n, B=64, num_warps=size)", ""),
        ("kernel[(n,)](x, n, **more)", ""),
        ("kernel[(n,)](*more)", ""),
        ("kernel[(n,)](x, n, B=64); kernel[(n,)](x, n, B=size)", ""),
        ("kernel[(n,)](x, n, B=64); kernel.run(x, n, size)", ""),
        ("kernel[(n,)](x, n, B=SIZE)", "SIZE = 64\nSIZE = 32\n"),
        ("kernel[(n,)](x, n, B=SIZE)", "SIZE = triton.cdiv(1, 2)\n"),
    ],
)
def test_constants_that_may_differ_leave_the_text(launch: str, head: str) -> None:
    assert spoken_for(launch, head=head) == set()


def test_a_tuned_kernel_leaves_its_text() -> None:
    assert spoken_for("kernel[(n,)](x, n)", kernel="@triton.autotune([], key=[])\n" + KERNEL) == set()


def test_a_kernel_that_was_not_launched_leaves_its_text() -> None:
    assert spoken_for("kernel[(n,)](x, n, B=64)", launched=()) == set()


def test_a_helper_that_another_kernel_uses_leaves_its_text() -> None:
    other = KERNEL.replace("def kernel", "def other")
    assert spoken_for("kernel[(n,)](x, n, B=64); other[(n,)](x, n, B=size)", kernel=KERNEL + other) == {"kernel"}


def test_a_call_has_shapes_and_types_and_no_values() -> None:
    problems = Path(__file__).parents[2] / "examples" / "problems"
    assert call_of(find_problem("sum_dim", problems)) == {
        "init": [1],
        "inputs": [{"shape": [16, 256, 255], "dtype": "float32"}],
    }


def test_what_has_no_plain_form_is_said() -> None:
    source = "import torch\nclass Model: pass\ndef get_inputs(): return [object()]\ndef get_init_inputs(): return []\n"
    with pytest.raises(ValueError, match="a object among the inputs"):
        call_of(problem_from_source(source))
