"""The Python beside kernels: positions in the file, and operators that change it and nothing else."""

import ast

import pytest
from kernelward.mutants.cuda import CudaTree
from kernelward.mutants.host_python import HostPython
from kernelward.mutants.operators import OPERATORS

SOURCE = '''"""Ünïcode — before everything."""
NAME = "größe"; WIDTH = 3


class ModelNew(nn.Module):
    def __init__(self, stride, padding):
        super().__init__()
        self.name = "ü"; self.window = (stride, padding)
        self.conv = nn.Conv2d(3, 4, 5, stride, padding)

    def forward(self, x, y):
        if self.training: x = x * 2
        return extension.f(x.contiguous(), y.contiguous(), self.norm.weight, self.norm.bias, self.norm.eps)
'''


def mutated(name: str, source: str = SOURCE) -> list[str]:
    operator, tree = OPERATORS[name], CudaTree(source)
    return [operator.apply(tree, site) for site in operator.sites(tree)]


def test_positions_count_characters_not_bytes() -> None:
    host = HostPython.of(SOURCE)
    assert host is not None
    for node in ast.walk(host.module):
        if isinstance(node, (ast.Attribute, ast.Name)):
            assert host.text(node) == ast.unparse(node)


def test_c_plus_plus_is_no_python() -> None:
    assert HostPython.of("__global__ void k() {}") is None


def test_geometry_of_layers_is_left_alone() -> None:
    found = mutated("geometry-argument-ignored")
    assert len(found) == 2
    assert all("nn.Conv2d(3, 4, 5, stride, padding)" in text for text in found)
    assert "self.window = (1, padding)" in found[0]
    assert "self.window = (stride, 0)" in found[1]


def test_no_tensor_is_made_contiguous() -> None:
    (found,) = mutated("contiguous-drop")
    assert "extension.f(x, y, self.norm.weight" in found


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("running-statistics", "if False: x = x * 2"),
        ("norm-weight-one", "torch.ones_like(self.norm.weight)"),
        ("bias-argument-zero", "(None if self.norm.bias is None else torch.zeros_like(self.norm.bias))"),
        ("epsilon-other-default", "self.norm.bias, 1e-3)"),
        ("call-operands-swap", "extension.f(y.contiguous(), x.contiguous(), self"),
        ("output-dtype-half", "self.norm.eps)).half()"),
    ],
)
def test_one_place_changes(name: str, expected: str) -> None:
    (found,) = mutated(name)
    assert expected in found
    compile(found, "mutant.py", "exec")


def test_a_weight_of_another_layer_is_no_normalisation() -> None:
    assert mutated("norm-weight-one", SOURCE.replace("norm.", "conv.")) == []
