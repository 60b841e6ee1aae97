import textwrap
from pathlib import Path

import pytest
import torch
from kernelward.suites.errors import InputError
from kernelward.suites.problem import find_problem, load_problem, problem_from_source
from kernelward.suites.static import Static, TensorSpec, static_problem, static_run

EXAMPLES = Path(__file__).parents[2] / "examples" / "problems"


def static(name: str, **constants: object) -> Static:
    return static_problem(find_problem(name, EXAMPLES), tuple(sorted(constants.items())))


def problem(forward: str, inputs: str, init: str = "pass", extra: str = "") -> object:
    return problem_from_source(
        textwrap.dedent(
            f"""\
            import torch
            from torch import nn
            import torch.nn.functional as F
            {extra}
            class Model(nn.Module):
                def __init__(self):
                    super().__init__()
                    {init}
                def forward(self, *xs):
                    x = xs[0]
                    return {forward}
            def get_inputs():
                return [{inputs}]
            def get_init_inputs():
                return []
            """
        )
    )


def test_sixteen_gibibytes_are_measured_without_allocating_them() -> None:
    measured = static("relu", batch_size=65536, dim=65536)
    assert measured.bytes_as(torch.float32) == 2 * 4 * 65536**2
    assert measured.outputs == (TensorSpec((65536, 65536), torch.float32),)


def test_half_precision_halves_floats_and_leaves_integers() -> None:
    measured = static("embedding_sum")
    integers = sum(s.numel * 8 for s in measured.inputs if s)
    floats = measured.bytes_as(torch.float32) - integers
    assert integers > 0
    assert measured.bytes_as(torch.float16) == integers + floats // 2


def test_parameters_and_buffers_count_and_are_named() -> None:
    measured = static("batchnorm")
    assert measured.state["norm.weight"] == measured.state["norm.running_var"] == (16,)
    assert measured.state["norm.num_batches_tracked"] == ()


@pytest.mark.parametrize(
    ("forward", "inputs", "terms"),
    [
        ("x @ xs[1]", "torch.rand(3, 50), torch.rand(50, 4)", 50),
        ("torch.bmm(x, xs[1])", "torch.rand(2, 3, 50), torch.rand(2, 50, 4)", 50),
        ("F.linear(x, xs[1], xs[2])", "torch.rand(3, 50), torch.rand(4, 50), torch.rand(4)", 50),
        ("F.conv2d(x, xs[1], padding=1)", "torch.rand(1, 8, 9, 9), torch.rand(4, 8, 3, 5)", 120),
        ("F.conv2d(x, xs[1], groups=8)", "torch.rand(1, 8, 9, 9), torch.rand(8, 1, 3, 5)", 15),
        ("F.conv_transpose2d(x, xs[1])", "torch.rand(1, 8, 9, 9), torch.rand(8, 4, 3, 5)", 120),
        ("x.sum()", "torch.rand(7, 9)", 63),
        ("x.mean(dim=1)", "torch.rand(7, 9, 2)", 9),
        ("torch.norm(x, dim=1)", "torch.rand(7, 9)", 9),
        ("torch.cumsum(x, dim=0)", "torch.rand(7, 9)", 7),
        ("F.layer_norm(x, (5, 4))", "torch.rand(7, 5, 4)", 20),
        ("F.group_norm(x, 2)", "torch.rand(3, 8, 5)", 20),
        ("F.batch_norm(x, None, None, training=True)", "torch.rand(3, 8, 5)", 15),
        ("F.avg_pool2d(x, (2, 3))", "torch.rand(1, 2, 8, 9)", 6),
        ("F.mse_loss(x, xs[1])", "torch.rand(7, 9), torch.rand(7, 9)", 63),
        ("F.cross_entropy(x, xs[1])", "torch.rand(7, 9), torch.randint(0, 9, (7,))", 7),
        ("torch.relu(x)", "torch.rand(7, 9)", 1),
        ("torch.softmax(x, dim=1)", "torch.rand(7, 9)", 1),
        ("torch.argmax(x, dim=1)", "torch.rand(7, 9)", 1),
    ],
)
def test_the_longest_linear_sum_is_found(forward: str, inputs: str, terms: int) -> None:
    assert static_problem(problem(forward, inputs)).accumulation == terms


@pytest.mark.parametrize(
    ("forward", "dim"),
    [
        ("x.sum(dim=1)", -2),
        ("torch.argmax(x, dim=-1)", -1),
        ("torch.cumsum(x, dim=0)", -3),
        ("torch.softmax(x, dim=1)", -2),
        ("x.amax(dim=(0, 1))", None),
        ("torch.relu(x)", None),
        ("x.sum()", None),
        ("(x @ x.mT).sum(dim=1)", None),
    ],
)
def test_the_dimension_a_problem_works_along_is_found(forward: str, dim: int | None) -> None:
    assert static_problem(problem(forward, "torch.rand(3, 4, 5)")).along == dim


def test_transposed_convolutions_are_told_apart() -> None:
    assert static("conv_transpose2d").transposed
    assert not static("conv2d").transposed


def test_several_outputs_are_seen() -> None:
    measured = static("mean_std")
    assert measured.tuple_output
    assert [s.shape for s in measured.outputs] == [measured.inputs[0].shape[:1]] * 2  # type: ignore[union-attr]


def test_work_grows_with_the_inner_dimension_of_a_product() -> None:
    assert static("matmul", K=2048).work > 1.9 * static("matmul", K=1024).work


def test_a_long_recurrence_is_cut_short_and_says_so() -> None:
    unrolled = problem("[x := x + 1 for _ in range(5000)][-1]", "torch.rand(3)")
    measured = static_problem(unrolled)
    assert not measured.complete
    assert measured.inputs == (TensorSpec((3,), torch.float32),)


def test_a_constructor_that_reads_values_is_built_on_the_cpu() -> None:
    reads = problem("x * self.k", "torch.rand(3)", init="self.k = torch.linspace(0, 1, 3)[1].item()")
    assert static_problem(reads).outputs == (TensorSpec((3,), torch.float32),)


def test_a_forward_that_reads_values_is_run_on_the_cpu() -> None:
    reads = problem("x[: 1 + int(x.sum().item() > 0)]", "torch.rand(3)")
    assert static_problem(reads).outputs == (TensorSpec((2,), torch.float32),)


def test_a_forward_that_reads_values_of_huge_inputs_is_not_run() -> None:
    reads = problem("x[: int(x.sum().item())]", "torch.rand(1 << 36)")
    with pytest.raises(InputError, match="meta"):
        static_problem(reads)


def test_a_forward_that_raises_names_the_shapes() -> None:
    with pytest.raises(InputError, match=r"line 11: Model\.forward on inputs of shapes \[\(3, 4\)\] raises Runtime"):
        static_run(load_problem(problem("x @ x", "torch.rand(3, 4)")))
