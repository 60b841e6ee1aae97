"""Meaning on CUDA: activations and clamps, their thresholds and their bounds."""

import re
from collections.abc import Iterator

from ...cuda import CudaTree
from ...cuda_roles import (
    Extreme,
    excerpt,
    extremes,
)
from ...cuda_syntax import Node
from ...cuda_types import arguments, call_name, is_float, number
from ...mutant import Example, Operator, Site

REPLACES = {
    "relu-fmax-zero-remove": ("relu-fmax-zero-remove-first",),
    "upper-clamp-remove": (
        "upper-unit-clamp-remove",
        "upper-unit-clamp-remove-first",
        "nested-unit-clamp-drop-upper",
    ),
    "lower-clamp-remove": ("lower-negunit-clamp-remove",),
    "positive-cutoff-nudge": ("selu-positive-cutoff-nudge", "elu-positive-cutoff-nudge"),
    "fabs-simple-remove": ("softsign-positive-fabs-elide",),
}


def _clamps(tree: CudaTree, kind: str) -> Iterator[tuple[Extreme, Node, Node]]:
    """Maxima or minima of a value and a fixed bound: the whole, the value, the bound."""
    for found in extremes(tree):
        if found.kind == kind:
            for value, bound in ((found.first, found.second), (found.second, found.first)):
                variable = tree.variable(bound) if bound.type == "identifier" else None
                fixed = number(bound) is not None or (
                    variable is not None and variable.parameter and not variable.pointer
                )
                if fixed and number(value) is None:
                    yield found, value, bound
                    break


def _relu_remove(tree: CudaTree) -> Iterator[Site | None]:
    for found, value, bound in _clamps(tree, "max"):
        if number(bound) == 0:
            yield tree.site(f"`{excerpt(found.node)}` -> `{excerpt(value)}`", found.node.replaced(f"({value.text})"))


def _upper_remove(tree: CudaTree) -> Iterator[Site | None]:
    for found, value, _ in _clamps(tree, "min"):
        yield tree.site(f"`{excerpt(found.node)}` without its bound", found.node.replaced(f"({value.text})"))


def _lower_remove(tree: CudaTree) -> Iterator[Site | None]:
    for found, value, bound in _clamps(tree, "max"):
        limit = number(bound)
        if limit != 0 and not (limit is not None and 0 < limit <= 1e-3):
            yield tree.site(f"`{excerpt(found.node)}` without its bound", found.node.replaced(f"({value.text})"))


def _zero_tests(tree: CudaTree) -> Iterator[tuple[Node, Node]]:
    """Comparisons of a float with zero that choose a value or a branch: the comparison, the zero."""
    for node in (*tree.nodes("conditional_expression"), *tree.nodes("if_statement")):
        test = node.get("condition")
        part = test.bare if test is not None else None
        if part is None or part.operator not in (">", ">=", "<", "<=") or not part.has("left", "right"):
            continue
        for side, other in ((part.at("right"), part.at("left")), (part.at("left"), part.at("right"))):
            if number(side) == 0 and is_float(tree, other):
                yield node, side
                break


def _relu_threshold(tree: CudaTree) -> Iterator[Site | None]:
    for found, _, bound in _clamps(tree, "max"):
        if found.call and number(bound) == 0:
            yield tree.site(f"`{bound.text}` -> `1e-6f` in `{excerpt(found.node)}`", bound.replaced("1e-6f"))
    for node, zero in _zero_tests(tree):
        if not _exponential(node):
            yield tree.site(f"`{zero.text}` -> `1e-6f` in `{excerpt(node)}`", zero.replaced("1e-6f"))


def _cutoff_nudge(tree: CudaTree) -> Iterator[Site | None]:
    for node, zero in _zero_tests(tree):
        if _exponential(node):
            yield tree.site(f"`{zero.text}` -> `1e-3f` in `{excerpt(node)}`", zero.replaced("1e-3f"))


def _exponential(node: Node) -> bool:
    return any(re.fullmatch(r"(?:__)?exp(?:m1)?f?", call_name(call)) for call in node.find("call_expression"))


def _fabs_remove(tree: CudaTree) -> Iterator[Site | None]:
    for node in tree.nodes("call_expression"):
        values = arguments(node)
        name = call_name(node)
        if len(values) == 1 and (name in ("fabsf", "fabs") or (name == "abs" and is_float(tree, values[0]))):
            yield tree.site(f"`{excerpt(node)}` -> `{excerpt(values[0])}`", node.at("function").replaced(""))


OPERATORS = (
    Operator(
        name="relu-threshold-shift",
        family="semantic",
        backend="cuda",
        summary="A ReLU's threshold is 1e-6 and not zero.",
        escapes="The error is 1e-6.",
        examples=(
            Example("float r = fmaxf(v, 0.0f);", "float r = fmaxf(v, 1e-6f);"),
            Example("float v; float r = v > 0.0f ? v : a * v;", "float v; float r = v > 1e-6f ? v : a * v;"),
        ),
        find=_relu_threshold,
    ),
    Operator(
        name="relu-fmax-zero-remove",
        family="semantic",
        backend="cuda",
        summary="A ReLU is dropped.",
        escapes="Inputs in [0, 1) are never negative.",
        examples=(
            Example("float r = fmaxf(v, 0.0f);", "float r = (v);"),
            Example("float r = fmaxf(0.0f, v);", "float r = (v);"),
            Example("float r = v > 0.0f ? v : 0.0f;", "float r = (v);"),
        ),
        find=_relu_remove,
    ),
    Operator(
        name="upper-clamp-remove",
        family="semantic",
        backend="cuda",
        summary="An upper bound is dropped.",
        escapes="Inputs in [0, 1) never reach it.",
        examples=(
            Example("float r = fminf(v, 1.0f);", "float r = (v);"),
            Example("float r = fminf(fmaxf(v, -1.0f), 1.0f);", "float r = (fmaxf(v, -1.0f));"),
        ),
        find=_upper_remove,
    ),
    Operator(
        name="lower-clamp-remove",
        family="semantic",
        backend="cuda",
        summary="A lower bound other than zero is dropped.",
        escapes="Inputs in [0, 1) never reach it.",
        examples=(Example("float r = fmaxf(v, -1.0f);", "float r = (v);"),),
        find=_lower_remove,
    ),
    Operator(
        name="positive-cutoff-nudge",
        family="semantic",
        backend="cuda",
        summary="An ELU or SELU changes branch at 1e-3 and not at zero.",
        escapes="Both branches nearly agree there.",
        examples=(
            Example(
                "float v; float r = v > 0.0f ? v : alpha * (expf(v) - 1.0f);",
                "float v; float r = v > 1e-3f ? v : alpha * (expf(v) - 1.0f);",
            ),
        ),
        find=_cutoff_nudge,
    ),
    Operator(
        name="fabs-simple-remove",
        family="semantic",
        backend="cuda",
        summary="An absolute value is dropped.",
        escapes="Inputs in [0, 1) are never negative.",
        examples=(Example("float r = v / (1.0f + fabsf(v));", "float r = v / (1.0f + (v));"),),
        find=_fabs_remove,
    ),
)
