"""Arithmetic on CUDA: one operator in an expression becomes another, or a result its negative."""

from collections.abc import Callable, Iterator

from ...cuda import CudaTree
from ...cuda_roles import excerpt, is_ceil_div, loop_condition, one_per_statement
from ...cuda_syntax import Node
from ...cuda_types import in_index, is_float, stores, type_of
from ...mutant import Example, Operator, Site

REPLACES = {
    "plus2minus": ("math_replacement",),
    "minus2plus": ("math_replacement",),
    "mul2div": ("math_replacement",),
}


def _swap(old: str, new: str) -> Callable[[CudaTree], Iterator[Site | None]]:
    """Replaces one operator by another, in values and in subscripts, each at most once in a statement."""

    def eligible(tree: CudaTree, node: Node) -> bool:
        if node.operator not in (old, f"{old}=") or loop_condition(node) or not node.has("left", "right"):
            return False
        if node.operator == "+=" or any(is_ceil_div(above) for above in (node, *node.ancestors())):
            return False
        return type_of(tree, node) not in ("pointer", "vector", "bool")

    def find(tree: CudaTree) -> Iterator[Site | None]:
        found = [n for n in tree.nodes("binary_expression", "assignment_expression") if eligible(tree, n)]
        for node in one_per_statement(sorted(found, key=lambda n: (id(n.home), n.start)), in_index):
            operator = node.at("operator")
            text = new + operator.text[len(old) :]
            yield tree.site(f"`{operator.text}` -> `{text}` in `{excerpt(node)}`", operator.replaced(text))

    return find


def _negate_store(tree: CudaTree) -> Iterator[Site | None]:
    for store in stores(tree):
        if is_float(tree, store.value) or (type_of(tree, store.value) == "?" and is_float(tree, store.target)):
            yield tree.site(
                f"`{excerpt(store.node)}` stores the negative", store.value.before("-("), store.value.after(")")
            )


OPERATORS = (
    Operator(
        name="plus2minus",
        family="arithmetic",
        backend="cuda",
        summary="A sum becomes a difference.",
        escapes="The second term is zero, tiny against the tolerance, or indexes rows where there is only one.",
        examples=(
            Example("y[i] = a[i] + b[i];", "y[i] = a[i] - b[i];"),
            Example("float v = x[row * n + col];", "float v = x[row * n - col];"),
        ),
        find=_swap("+", "-"),
    ),
    Operator(
        name="minus2plus",
        family="arithmetic",
        backend="cuda",
        summary="A difference becomes a sum.",
        escapes="What was subtracted is zero (a mean, a bias, padding) or below the tolerance.",
        examples=(
            Example("y[i] = x[i] - mean;", "y[i] = x[i] + mean;"),
            Example("sum -= x[i];", "sum += x[i];"),
        ),
        find=_swap("-", "+"),
    ),
    Operator(
        name="mul2div",
        family="arithmetic",
        backend="cuda",
        summary="A product becomes a quotient.",
        escapes="The second factor is one (a default weight, a scale of 1.0), or results are below the tolerance.",
        examples=(
            Example("y[i] = x[i] * scale;", "y[i] = x[i] / scale;"),
            Example("sum *= factor;", "sum /= factor;"),
        ),
        find=_swap("*", "/"),
    ),
    Operator(
        name="mul2plus",
        family="arithmetic",
        backend="cuda",
        summary="A product becomes a sum.",
        escapes="Both give similar values near (2, 2), or results are below the tolerance.",
        examples=(Example("y[i] = x[i] * scale;", "y[i] = x[i] + scale;"),),
        find=_swap("*", "+"),
    ),
    Operator(
        name="negate-store",
        family="arithmetic",
        backend="cuda",
        summary="A result is stored with the wrong sign.",
        escapes="The output is so small that any value passes an absolute tolerance, or the store is never reached.",
        examples=(
            Example(
                "__global__ void k(float* y, float v, int i) { y[i] = v + 1.0f; }",
                "__global__ void k(float* y, float v, int i) { y[i] = -(v + 1.0f); }",
            ),
        ),
        find=_negate_store,
    ),
)
