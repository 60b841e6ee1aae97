"""Precision on CUDA: the small constants that keep divisors and logarithms from zero, scaled or dropped."""

import re
from collections.abc import Callable, Iterator

from ...cuda import CudaTree
from ...cuda_roles import (
    excerpt,
    extreme,
    is_epsilon,
)
from ...cuda_syntax import Change, Node
from ...cuda_types import call_name, number, type_of
from ...mutant import Example, Operator, Site

REPLACES = {
    "epsilon-halved": ("groupnorm-epsilon-halved",),
    "epsilon-small-bias": ("batchnorm-epsilon-small-bias",),
}


def _epsilon_terms(tree: CudaTree) -> Iterator[tuple[Node, Node]]:
    """Sums with an epsilon as their right term, and the epsilon."""
    for node in tree.nodes("binary_expression"):
        small = node.operator == "+" and node.has("left", "right") and is_epsilon(tree, node.at("right"))
        if small and type_of(tree, node.at("left")) not in ("int", "pointer"):
            yield node, node.at("right")


def _scaled_epsilon(factor: str, word: str) -> Callable[[CudaTree], Iterator[Site | None]]:
    def find(tree: CudaTree) -> Iterator[Site | None]:
        for node, epsilon in _epsilon_terms(tree):
            yield tree.site(f"`{epsilon.text}` {word} in `{excerpt(node)}`", epsilon.before(f"{factor} * "))

    return find


def _root_of(node: Node) -> str:
    """`rsqrt` or `sqrt` where an expression is the whole argument of such a call; else empty."""
    above = node.parent
    while above is not None and above.type in ("parenthesized_expression", "argument_list"):
        above = above.parent
    name = call_name(above) if above is not None else ""
    match = re.fullmatch(r"(?:__f)?(rsqrt|sqrt)(?:f|_r[ndzu])?", name)
    return match.group(1) if match else ""


def _epsilon_remove(root: str) -> Callable[[CudaTree], Iterator[Site | None]]:
    """Drops an epsilon inside a root; with an empty name, one that stands elsewhere."""

    def find(tree: CudaTree) -> Iterator[Site | None]:
        for node, epsilon in _epsilon_terms(tree):
            inside = _root_of(node)
            if inside == root and (inside or number(epsilon) is not None):
                left = node.at("left")
                gone = Change(node.home, left.end, node.end, "")
                yield tree.site(f"`{epsilon.text}` dropped from `{excerpt(node)}`", gone)
        if root:
            return
        for node in tree.nodes("call_expression"):
            found = extreme(node)
            if found is not None and found.kind == "max":
                for value, other in ((found.first, found.second), (found.second, found.first)):
                    if is_epsilon(tree, other) and number(other) is not None:
                        yield tree.site(f"`{excerpt(node)}` without its floor", node.replaced(f"({value.text})"))

    return find


OPERATORS = (
    Operator(
        name="epsilon-halved",
        family="precision",
        backend="cuda",
        summary="The epsilon of a normalisation is halved.",
        escapes="The variance of random inputs is ten thousand times the epsilon.",
        examples=(Example("float r = rsqrtf(var + eps);", "float r = rsqrtf(var + 0.5f * eps);"),),
        find=_scaled_epsilon("0.5f", "halved"),
    ),
    Operator(
        name="epsilon-small-bias",
        family="precision",
        backend="cuda",
        summary="The epsilon of a normalisation is a tenth too large.",
        escapes="The variance of random inputs is ten thousand times the epsilon.",
        examples=(Example("float r = rsqrtf(var + 1e-5f);", "float r = rsqrtf(var + 1.1f * 1e-5f);"),),
        find=_scaled_epsilon("1.1f", "times 1.1"),
    ),
    Operator(
        name="rsqrt-epsilon-remove",
        family="precision",
        backend="cuda",
        summary="The epsilon under a reciprocal square root is dropped.",
        escapes="No row of random inputs is constant, so the variance is never near zero.",
        examples=(Example("float r = rsqrtf(var / n + eps);", "float r = rsqrtf(var / n);"),),
        find=_epsilon_remove("rsqrt"),
    ),
    Operator(
        name="sqrt-epsilon-remove",
        family="precision",
        backend="cuda",
        summary="The epsilon under a square root is dropped.",
        escapes="No row of random inputs is constant, so the variance is never near zero.",
        examples=(Example("float r = 1.0f / sqrtf(var + eps);", "float r = 1.0f / sqrtf(var);"),),
        find=_epsilon_remove("sqrt"),
    ),
    Operator(
        name="literal-epsilon-remove",
        family="precision",
        backend="cuda",
        summary="A small constant that keeps a divisor or a logarithm from zero is dropped.",
        escapes="Random inputs have no zero rows, so the constant never matters.",
        examples=(
            Example("float r = v / (norm + 1e-12f);", "float r = v / (norm);"),
            Example("float r = v / fmaxf(norm, 1e-12f);", "float r = v / (norm);"),
        ),
        find=_epsilon_remove(""),
    ),
)
