import textwrap
from pathlib import Path

import pytest
import torch
from kernelward.suites.errors import InputError
from kernelward.suites.problem import Problem, find_problem, list_problems, problem_from_source
from kernelward.suites.traits import Kind, Traits, inspect_problem

EXAMPLES = Path(__file__).parents[2] / "examples" / "problems"

KINDS: dict[str, Kind] = {
    "argmax": "argreduce",
    "attention": "attention",
    "avgpool1d": "pool",
    "batchnorm": "norm",
    "bmm": "matmul",
    "conv2d": "conv",
    "conv2d_relu_bias": "conv",
    "conv_transpose2d": "conv_transpose",
    "cross_entropy": "loss",
    "cumsum": "scan",
    "frobenius_norm": "norm",
    "gelu": "elementwise",
    "hinge_loss": "loss",
    "kl_div": "loss",
    "layernorm": "norm",
    "linear_gelu_scale": "matmul",
    "matmul": "matmul",
    "maxpool2d": "pool",
    "mean_std": "reduction",
    "min_dim": "reduction",
    "mse_loss": "loss",
    "relu": "elementwise",
    "rmsnorm": "norm",
    "softmax": "softmax",
    "sum_dim": "reduction",
    "tiny_mlp": "network",
    "tril_matmul": "matmul",
}


def example(name: str, **constants: object) -> Traits:
    return inspect_problem(find_problem(name, EXAMPLES), constants=constants)


def problem(forward: str, inputs: str = "torch.rand(64, 9)", init: str = "pass") -> Problem:
    return problem_from_source(
        textwrap.dedent(
            f"""\
            import torch
            from torch import nn
            import torch.nn.functional as F
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


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_the_kind_of_operator_is_found(name: str, kind: Kind) -> None:
    assert example(name).kind == kind


@pytest.mark.parametrize("problem", list_problems(EXAMPLES), ids=lambda p: p.id)
def test_no_example_is_random_or_degenerate(problem: Problem) -> None:
    traits = inspect_problem(problem)
    assert not traits.random
    assert not traits.dropout
    assert traits.degenerate == ""
    assert traits.values_at is not None


@pytest.mark.parametrize(
    ("name", "structures"),
    [
        ("matmul", ["", ""]),
        ("tril_matmul", ["lower", "lower"]),
        ("symmetric_matmul", ["symmetric", "symmetric"]),
        ("kl_div", ["probability_rows", "probability_rows"]),
        ("hinge_loss", ["", "labels"]),
        ("cholesky_solve", ["positive_definite", ""]),
    ],
)
def test_structure_of_the_inputs_is_found(name: str, structures: list[str]) -> None:
    assert [i.structure for i in example(name).inputs] == structures


def test_integers_and_masks_are_not_free_to_change() -> None:
    assert [i.kind for i in example("cross_entropy").inputs] == ["float", "integer"]
    assert [i.kind for i in example("masked_cumsum").inputs] == ["float", "bool"]
    assert example("cross_entropy").free_inputs == example("masked_cumsum").free_inputs == (0,)
    assert example("hinge_loss").free_inputs == (0,)
    assert example("embedding_sum").integer_inputs
    assert example("embedding_sum").free_inputs == ()


def test_python_numbers_are_no_tensors() -> None:
    traits = inspect_problem(problem("x * xs[1]", "torch.rand(64, 9), 3.14"))
    assert [i.kind for i in traits.inputs] == ["float", "scalar"]


def test_several_and_integer_outputs_are_seen() -> None:
    assert example("mean_std").tuple_output
    assert example("mean_std").output_count == 2
    assert example("argmax").integer_outputs
    assert not example("mean_std").integer_outputs


@pytest.mark.parametrize(
    ("forward", "domain"),
    [
        ("x - 1", "real"),
        ("torch.log(x)", "positive"),
        ("torch.sqrt(x)", "positive"),
        ("torch.log(x) + torch.log(1 - x)", "unit"),
        ("F.binary_cross_entropy(x, torch.full_like(x, 0.5))", "unit"),
        ("torch.asin(x * 2 - 1)", "unit"),
    ],
)
def test_the_domain_of_an_input_is_measured(forward: str, domain: str) -> None:
    assert inspect_problem(problem(forward)).inputs[0].domain == domain


def test_an_input_that_must_stay_as_drawn_is_left_alone() -> None:
    traits = inspect_problem(problem("torch.log(x - 5)", "10 + torch.rand(64, 9)"))
    assert traits.inputs[0].domain == "own"
    assert traits.free_inputs == ()


@pytest.mark.parametrize("forward", ["F.dropout(x, 0.5)", "x + torch.rand_like(x)"])
def test_random_references_are_recognised(forward: str) -> None:
    assert inspect_problem(problem(forward)).random


def test_dropout_is_named_even_where_it_changes_nothing() -> None:
    traits = inspect_problem(problem("F.dropout(x * 0, 0.5)"))
    assert traits.dropout
    assert not traits.random


@pytest.mark.parametrize(
    ("forward", "degenerate"),
    [
        ("x * 0", "zero"),
        ("torch.ones_like(x)", "constant"),
        ("torch.softmax(x.sum(dim=1, keepdim=True), dim=1)", "constant"),
        ("F.layer_norm(x, (9,)).mean(dim=1)", "noise"),
        ("x + 1", ""),
    ],
)
def test_degenerate_outputs_are_recognised(forward: str, degenerate: str) -> None:
    assert inspect_problem(problem(forward)).degenerate == degenerate


def test_a_reference_that_writes_into_its_input_is_looked_at_on_copies() -> None:
    assert not inspect_problem(problem("x.mul_(2)")).random


def test_sizes_follow_the_constants_and_structure_does_not() -> None:
    small, large = example("tril_matmul", N=64), example("tril_matmul", N=4096)
    assert (small.accumulation, large.accumulation) == (64, 4096)
    assert large.input_bytes == 2 * 4 * 4096**2
    assert small.inputs[0].structure == large.inputs[0].structure == "lower"
    assert large.inputs[0].shape == (4096, 4096)


def test_a_huge_problem_is_inspected_without_allocating_it() -> None:
    traits = example("softmax", batch_size=1 << 20, dim=1 << 20)
    assert traits.input_bytes == 4 << 40
    assert traits.along == -1


def test_overflow_and_saturation_are_told_from_the_operators() -> None:
    assert example("softmax").exponential
    assert example("hardtanh").saturating
    assert not example("matmul").saturating
    assert not example("relu").exponential


def test_values_of_a_problem_that_cannot_be_made_small_stay_unknown() -> None:
    traits = inspect_problem(problem("x + 1", "torch.tril(torch.rand(1 << 20, 1 << 20))"))
    assert traits.values_at is None
    assert traits.input_bytes == 4 << 40


def test_a_model_that_refers_to_itself_in_a_closure_can_be_inspected() -> None:
    closure = problem("self.f(x)", init="self.l = nn.Linear(9, 9); l = self.l; self.f = lambda x: l(x)")
    assert inspect_problem(closure).degenerate == ""


def test_a_reference_that_raises_is_an_input_error() -> None:
    with pytest.raises(InputError, match=r"Model\.forward on inputs .* raises"):
        inspect_problem(problem("x @ x"))


def test_a_reference_that_raises_only_on_values_is_an_input_error() -> None:
    with pytest.raises(InputError, match=r"line 10: Model\.forward raises .*cholesky"):
        inspect_problem(problem("torch.linalg.cholesky(-x)", "torch.eye(4) + torch.rand(4, 4)"))


def test_a_reference_that_insists_on_single_precision_can_be_inspected() -> None:
    insists = problem("x @ torch.ones(9, 2, dtype=torch.float32)")
    assert inspect_problem(insists).degenerate == ""


def test_outputs_whose_shape_depends_on_the_values_can_be_inspected() -> None:
    traits = inspect_problem(problem("x[x > 0.5]"))
    assert traits.inputs[0].kind == "float"


def test_an_input_whose_shape_changes_from_draw_to_draw_is_left_alone() -> None:
    traits = inspect_problem(problem("x + 1", "torch.tril(torch.rand([8, 8 + int(torch.randint(0, 1000, (1,)))]))"))
    assert traits.inputs[0].kind == "other"
    assert traits.free_inputs == ()


def test_inspection_leaves_the_global_stream_usable() -> None:
    torch.manual_seed(3)
    inspect_problem(problem("x + 3"))
    assert torch.rand(1).shape == (1,)


def test_a_shrunken_size_at_which_the_problem_does_not_run_is_no_error_of_the_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = (
        "import torch\nfrom torch import nn\n\n\nclass Model(nn.Module):\n"
        "    def forward(self, x):\n        if x.shape[0] < 4096:\n            raise RuntimeError('too small')\n"
        "        return x + 1\n\n\nn = 4096\n\n\ndef get_inputs():\n    return [torch.rand(n, 4)]\n\n\n"
        "def get_init_inputs():\n    return []\n"
    )
    problem = problem_from_source(source)
    monkeypatch.setattr("kernelward.suites.traits.shrunken", lambda _: (("n", 16),))
    traits = inspect_problem(problem)
    assert (traits.inputs[0].shape, traits.values_at) == ((4096, 4), None)
    monkeypatch.setattr("kernelward.suites.traits.shrunken", lambda _: ())
    broken = problem_from_source(source.replace("n = 4096", "n = 16"))
    with pytest.raises(InputError, match="too small"):
        inspect_problem(broken)
