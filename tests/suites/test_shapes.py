from pathlib import Path
from typing import Any

import pytest
import torch
from kernelward.suites.problem import Problem, find_problem, forward, list_problems, load_problem, problem_from_source
from kernelward.suites.shapes import ragged_variants
from kernelward.suites.static import Static, static_problem
from kernelward.suites.traits import inspect_problem

EXAMPLES = Path(__file__).parents[2] / "examples" / "problems"


def example(name: str) -> Problem:
    return find_problem(name, EXAMPLES)


def variants(problem: Problem, **options: Any) -> list[dict[str, Any]]:
    return ragged_variants(problem, inspect_problem(problem), **options)


def static(problem: Problem, variant: dict[str, Any]) -> Static:
    return static_problem(problem, tuple(sorted(variant.items())))


@pytest.mark.parametrize("problem", list_problems(EXAMPLES), ids=lambda p: p.id)
def test_every_example_has_small_ragged_variants_that_run(problem: Problem) -> None:
    found = variants(problem)
    assert found
    for variant in found:
        loaded = load_problem(problem, variant)
        forward(loaded.build_model(loaded.init_inputs(1), 1), loaded.own_draw(1), 1)
        measured = static(problem, variant)
        assert measured.state == static_problem(problem).state
        assert measured.bytes_as(torch.float32) <= 64 << 20


def test_the_first_variant_has_odd_and_prime_remainders() -> None:
    assert variants(example("softmax"))[0] == {"batch_size": 33, "dim": 1021}


def test_several_kinds_of_variant_are_given() -> None:
    rows = [v["dim"] for v in variants(example("softmax"))]
    assert rows == [1021, 7, 1025, 4099]


def test_the_reduced_dimension_gets_the_longest_length() -> None:
    source = example("argmax").source
    first = variants(example("argmax"))[0]
    assert first["dim1"] > first["dim2"]
    last = variants(problem_from_source(source.replace("return [1]", "return [2]").replace("_dim = 1", "_dim = 2")))[0]
    assert last["dim2"] > last["dim1"]


def test_the_inner_dimension_of_a_product_gets_the_longest_length() -> None:
    first = variants(example("matmul"))[0]
    assert first["K"] > max(first["M"], first["N"])


def test_dimensions_differ_so_that_swapped_ones_show() -> None:
    for name in ("matmul", "bmm", "conv2d", "maxpool2d", "argmax"):
        for variant in variants(example(name)):
            lengths = [v for v in variant.values() if isinstance(v, int)]
            assert len(set(lengths)) == len(lengths), (name, variant)


def test_batch_spatial_keeps_channels_groups_and_kernels() -> None:
    for name in ("conv2d", "groupnorm", "maxpool2d", "attention"):
        for variant in variants(example(name)):
            assert not {k for k in variant if "channel" in k or "kernel" in k or "group" in k or "head" in k}


def test_all_changes_the_model_as_well_but_never_the_algorithm() -> None:
    source = (
        example("conv2d").source.replace("kernel_size = 3", "kernel_size = 9").replace("padding = 1", "padding = 4")
    )
    problem = problem_from_source(source)
    assert (problem.constants["kernel_size"], problem.constants["padding"]) == (9, 4)
    found = variants(problem, policy="all")
    assert found
    assert all("out_channels" in v for v in found)
    assert not any("kernel_size" in v or "padding" in v for v in found)


def test_all_keeps_what_must_divide() -> None:
    problem = example("groupnorm")
    for variant in variants(problem, policy="all"):
        assert variant["features"] % problem.constants["num_groups"] == 0


def test_declared_gives_no_variant() -> None:
    assert variants(example("softmax"), policy="declared") == []


def test_the_number_of_variants_is_limited() -> None:
    assert len(variants(example("softmax"), limit=2)) == 2


def test_variants_stay_within_the_bytes() -> None:
    problem = example("softmax")
    found = variants(problem, max_bytes=100_000)
    assert found
    assert all(static(problem, v).bytes_as(torch.float32) <= 100_000 for v in found)
    assert variants(example("tiny_mlp"), max_bytes=1000) == []


def test_a_kernel_larger_than_the_tiny_shape_gets_a_larger_one() -> None:
    source = (
        example("maxpool2d")
        .source.replace("kernel_size = ", "kernel_size = 9 #")
        .replace("padding = ", "padding = 0 #")
    )
    problem = problem_from_source(source)
    assert problem.constants["kernel_size"] == 9
    for variant in variants(problem):
        assert min(variant["height"], variant["width"]) >= 9


def test_partners_change_together() -> None:
    problem = problem_from_source(
        "import torch\nfrom torch import nn\n"
        "class Model(nn.Module):\n    def forward(self, x, y): return (x * y).mean()\n"
        "batch_size = 64\ninput_shape = (64,)\n"
        "def get_inputs(): return [torch.rand(batch_size, *input_shape), torch.rand(batch_size)]\n"
        "def get_init_inputs(): return []\n"
    )
    found = variants(problem)
    assert found
    assert all((v["batch_size"],) == v["input_shape"] for v in found)


def test_a_size_with_a_divisor_of_its_own_gets_no_value_that_breaks_it() -> None:
    problem = problem_from_source(
        "import torch\nfrom torch import nn\nclass Model(nn.Module):\n"
        "    def forward(self, x): return x.view(x.shape[0], -1, 4).sum(-1)\n"
        "batch_size, length = 8, 64\n"
        "def get_inputs(): return [torch.rand(batch_size, length)]\ndef get_init_inputs(): return []\n"
    )
    for variant in variants(problem):
        assert variant.get("length", 64) % 4 == 0
