"""Every registered operator does to its examples what it says, and leaves code that still parses."""

import ast

import pytest
from kernelward.mutants.cuda import CudaTree
from kernelward.mutants.mutant import Example, Operator, Tree, parse_tree
from kernelward.mutants.operators import OPERATORS

CASES = [
    pytest.param(operator, example, id=f"{operator.name}-{index}")
    for operator in OPERATORS.values()
    for index, example in enumerate(operator.examples)
]


def snippet(operator: Operator, code: str) -> Tree:
    return CudaTree.of_snippet(code) if operator.backend == "cuda" else parse_tree(code, operator.backend)


def parses(tree: Tree) -> bool:
    if isinstance(tree, CudaTree):
        return tree.errors == 0
    return isinstance(ast.parse(tree.source), ast.Module)


@pytest.mark.parametrize(("operator", "example"), CASES)
def test_the_first_site_gives_what_the_example_shows(operator: Operator, example: Example) -> None:
    tree = snippet(operator, example.before)
    sites = operator.sites(tree)
    assert sites, "the operator does not fire on its own example"
    assert operator.apply(tree, sites[0]) == example.after


@pytest.mark.parametrize(("operator", "example"), CASES)
def test_examples_parse_before_and_after(operator: Operator, example: Example) -> None:
    assert parses(snippet(operator, example.before))
    assert parses(snippet(operator, example.after))


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=lambda operator: operator.name)
def test_an_operator_explains_itself(operator: Operator) -> None:
    assert operator.examples
    for text in (operator.summary, operator.escapes):
        assert text.endswith(".")
        assert len(text) > 10
