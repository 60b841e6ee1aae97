"""Wrong arithmetic: one operator for another."""

import ast
from collections.abc import Iterator

from ...mutant import Site
from ...triton import TritonTree, shorten
from ...triton_roles import each
from .rules import Rules, body

rule = Rules("arithmetic")

_SYMBOLS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


def _swap(tree: TritonTree, old: type[ast.operator], new: str, whole: str | None = None) -> Iterator[Site]:
    """Sites that put another operator in place of `old`; addresses keep the base that they start from.

    Args:
        new: the other operator.
        whole: the one for whole numbers, if it is another.
    """
    for kernel, roles in each(tree):
        for node in kernel.of(ast.BinOp):
            if not isinstance(node.op, old) or roles.is_pointer(node.left):
                continue
            text = whole if whole and roles.is_whole(node) else new
            place = tree.operator_span(node.left, node.right, _SYMBOLS[old])
            yield tree.site(node, f"`{_SYMBOLS[old]}` -> `{text}` in `{shorten(tree.text(node))}`", (place, text))


@rule(
    "triton-plus2minus",
    "A sum becomes a difference.",
    "Where the second operand is tiny or zero (an epsilon, a bias, the first block) nothing visible changes.",
    body("y = x + b", "y = x - b"),
)
def _plus2minus(tree: TritonTree) -> Iterator[Site]:
    return _swap(tree, ast.Add, "-")


@rule(
    "triton-minus2plus",
    "A difference becomes a sum.",
    "Subtracting a mean or maximum near zero looks the same.",
    body("y = x - mean", "y = x + mean"),
)
def _minus2plus(tree: TritonTree) -> Iterator[Site]:
    return _swap(tree, ast.Sub, "+")


@rule(
    "triton-mul2div",
    "A product becomes a quotient, of whole numbers the one that rounds down.",
    "Factors of one (a scale, a fresh weight, a stride) hide it.",
    body("y = x * w", "y = x / w"),
)
def _mul2div(tree: TritonTree) -> Iterator[Site]:
    return _swap(tree, ast.Mult, "/", whole="//")


@rule(
    "triton-div2mul",
    "A quotient becomes a product.",
    "Divisors of one hide it.",
    body("y = x / total", "y = x * total"),
)
def _div2mul(tree: TritonTree) -> Iterator[Site]:
    return _swap(tree, ast.Div, "*")


@rule(
    "triton-mul2plus",
    "A product becomes a sum.",
    "Two times two, and where the other operand makes the result small.",
    body("y = x * w", "y = (x + w)"),
)
def _mul2plus(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for node in kernel.of(ast.BinOp):
            if isinstance(node.op, ast.Mult):
                yield tree.replace(node, f"({tree.operand(node.left)} + {tree.operand(node.right)})")


@rule(
    "triton-negate-store",
    "What is stored has the other sign.",
    "An output around zero within an absolute tolerance, and outputs that are zero anyway.",
    body("tl.store(out_ptr + i, y, mask=m)", "tl.store(out_ptr + i, -y, mask=m)"),
)
def _negate_store(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for call in tree.calls(kernel, "store"):
            if len(call.args) > 1:
                yield tree.replace(call.args[1], f"-{tree.operand(call.args[1])}")


OPERATORS = tuple(rule.operators)
