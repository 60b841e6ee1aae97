import ast
import textwrap
from pathlib import Path

import pytest
import torch
from kernelward.suites.constants import rewrite_constants
from kernelward.suites.problem import Problem, find_problem, problem_from_source
from kernelward.suites.sizes import change, shrunken, sizes
from kernelward.suites.static import static_problem

EXAMPLES = Path(__file__).parents[2] / "examples" / "problems"


def example(name: str) -> Problem:
    return find_problem(name, EXAMPLES)


def enlarged(name: str, **constants: int) -> Problem:
    """An example with larger declared constants."""
    return problem_from_source(ast.unparse(rewrite_constants(example(name).tree, constants)), name)


def by_name(problem: Problem) -> dict[str, str]:
    """What each constant was found to be."""
    return {
        s.name: "batch" if s.batch else "fixed" if s.fixed else "size" if s.places else "model" for s in sizes(problem)
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("matmul", {"M": "batch", "K": "size", "N": "size"}),
        ("softmax", {"batch_size": "batch", "dim": "size"}),
        ("argmax", {"batch_size": "batch", "dim1": "size", "dim2": "size"}),
        ("mse_loss", {"batch_size": "batch", "input_shape": "size"}),
        ("layernorm", {"batch_size": "batch", "sequence_length": "size", "dim": "fixed"}),
        ("tril_matmul", {"N": "size"}),
    ],
)
def test_sizes_are_told_from_the_model(name: str, expected: dict[str, str]) -> None:
    assert by_name(example(name)) == expected


def test_channels_and_kernels_are_not_batch_or_spatial() -> None:
    found = by_name(example("conv2d"))
    assert found["batch_size"] == "batch"
    assert found["height"] == found["width"] == "size"
    assert found["in_channels"] == found["out_channels"] == found["kernel_size"] == "fixed"


def test_the_inner_dimension_of_a_transposed_product_is_no_batch() -> None:
    problem = problem_from_source(
        "import torch\nfrom torch import nn\nclass Model(nn.Module):\n    def forward(self, A, B): return A.T @ B\n"
        "M, K, N = 8, 12, 10\ndef get_inputs(): return [torch.rand(K, M), torch.rand(K, N)]\n"
        "def get_init_inputs(): return []\n"
    )
    assert by_name(problem) == {"M": "size", "K": "size", "N": "size"}


def test_constants_that_must_change_together_are_partners() -> None:
    problem = problem_from_source(
        textwrap.dedent(
            """\
            import torch
            from torch import nn
            class Model(nn.Module):
                def forward(self, x, y): return (x * y).mean()
            batch_size = 64
            input_shape = (64,)
            def get_inputs(): return [torch.rand(batch_size, *input_shape), torch.rand(batch_size)]
            def get_init_inputs(): return []
            """
        )
    )
    (size,) = sizes(problem)
    assert size.at(5) == {("batch_size", None): 5, ("input_shape", 0): 5}
    assert change(problem, size.at(5)) == (("batch_size", 5), ("input_shape", (5,)))


def test_a_change_to_the_declared_value_is_no_change() -> None:
    problem = example("mse_loss")
    assert change(problem, {("batch_size", None): problem.constants["batch_size"]}) == ()


def test_a_problem_with_fixed_shapes_has_no_sizes() -> None:
    problem = problem_from_source(
        "import torch\nModel = torch.nn.ReLU\ndef get_inputs(): return [torch.rand(3, 4)]\n"
        "def get_init_inputs(): return []\n"
    )
    assert sizes(problem) == ()


def test_a_small_problem_is_left_as_it_is() -> None:
    assert shrunken(example("embedding_sum")) == ()


@pytest.mark.parametrize(
    ("name", "constants"),
    [
        ("relu", {"batch_size": 4096, "dim": 393216}),
        ("linear_gelu_scale", {"in_features": 16384, "out_features": 16384}),
        ("groupnorm", {"batch_size": 4096}),
    ],
)
def test_a_huge_problem_is_made_small_and_still_runs(name: str, constants: dict[str, int]) -> None:
    problem = enlarged(name, **constants)
    assert static_problem(problem).bytes_as(torch.float32) > 1 << 27
    smaller = shrunken(problem)
    assert smaller
    assert static_problem(problem, smaller).bytes_as(torch.float32) <= 8 << 20


def test_a_problem_that_cannot_be_made_small_says_so() -> None:
    problem = problem_from_source(
        "import torch\nModel = torch.nn.ReLU\ndef get_inputs(): return [torch.rand(1 << 32)]\n"
        "def get_init_inputs(): return []\n"
    )
    assert shrunken(problem) is None
