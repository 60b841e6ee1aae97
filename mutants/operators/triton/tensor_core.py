"""Products of tiles: operands of less precision, the accumulator, transposition."""

import ast
from collections.abc import Iterator

from ...mutant import Site
from ...triton import TritonTree, argument
from ...triton_roles import each
from .rules import Rules, body

rule = Rules("tensor-core")


@rule(
    "triton-dot-tf32",
    "A product in full precision becomes one of TF32 operands.",
    "TF32 keeps ten bits: 5e-4 of each operand. The interpreter computes the same for both, so only a GPU shows it.",
    body('c = tl.dot(a, b, input_precision="ieee")', 'c = tl.dot(a, b, input_precision="tf32")'),
    body("c = tl.dot(a, b, allow_tf32=False)", "c = tl.dot(a, b, allow_tf32=True)"),
)
def _dot_tf32(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for call in tree.calls(kernel, "dot"):
            precision, allowed = argument(call, "input_precision", 3), argument(call, "allow_tf32")
            if isinstance(precision, ast.Constant) and precision.value != "tf32":
                yield tree.replace(precision, '"tf32"')
            if isinstance(allowed, ast.Constant) and allowed.value is False:
                yield tree.replace(allowed, "True")


@rule(
    "triton-dot-truncated-operand",
    "An operand of a product loses the thirteen bits that TF32 does not have, whatever the product's precision.",
    "Errors of 1e-3 of each operand, which partly cancel in long sums.",
    body(
        "c = tl.dot(a, b)",
        "c = tl.dot((a.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True), b)",
    ),
)
def _dot_truncated(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for call in tree.calls(kernel, "dot"):
            for operand in call.args[:2]:
                whole = f"({tree.operand(operand)}.to({tree.tl}.int32, bitcast=True) & -8192)"
                yield tree.replace(operand, f"{whole}.to({tree.tl}.float32, bitcast=True)")


@rule(
    "triton-dot-fp16",
    "The operands of a product are rounded to half precision.",
    "Products of order one lose 5e-4; in long sums the errors average out.",
    body("c = tl.dot(a, b)", "c = tl.dot(a.to(tl.float16), b.to(tl.float16))"),
)
def _dot_fp16(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for call in tree.calls(kernel, "dot"):
            if len(call.args) >= 2:
                detail = f"operands in half precision in `{tree.brief(call)}`"
                half = [(operand, f"{tree.operand(operand)}.to({tree.tl}.float16)") for operand in call.args[:2]]
                yield tree.site(call, detail, *half)


@rule(
    "triton-dot-result-fp16",
    "Every product of tiles makes a round trip through half precision before it is added.",
    "Few terms, each off by 5e-4.",
    body("acc = tl.dot(a, b, acc)", "acc = tl.dot(a, b, acc).to(tl.float16).to(tl.float32)"),
)
def _dot_result_fp16(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for call in tree.calls(kernel, "dot"):
            yield tree.replace(call, f"{tree.text(call)}.to({tree.tl}.float16).to({tree.tl}.float32)")


@rule(
    "triton-dot-accumulate-drop",
    "A product is not added to its accumulator.",
    "Loops of one turn.",
    body("acc = tl.dot(a, b, acc)", "acc = tl.dot(a, b)"),
)
def _dot_accumulate_drop(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for call in tree.calls(kernel, "dot"):
            given = next((item for item in call.keywords if item.arg == "acc"), None)
            accumulator = call.args[2] if len(call.args) > 2 else given
            if accumulator is not None:
                detail = f"accumulator dropped in `{tree.brief(call)}`"
                yield tree.site(call, detail, tree.without_argument(call, accumulator))


@rule(
    "triton-dot-accumulate-twice",
    "A product is added to its accumulator twice over.",
    "An accumulator that is still zero.",
    body("acc += tl.dot(a, b)", "acc += tl.dot(a, b, acc)"),
)
def _dot_accumulate_twice(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for node in kernel.of(ast.AugAssign):
            call = node.value
            if isinstance(call, ast.Call) and tree.called(call) == "dot" and len(call.args) == 2:
                end = tree.span(call.args[1])[1]
                detail = f"the accumulator is also the start in `{tree.brief(node)}`"
                yield tree.site(node, detail, ((end, end), f", {tree.text(node.target)}"))


@rule(
    "triton-trans-drop",
    "An operand is not transposed.",
    "Square tiles compile; symmetric operands give the same.",
    body("c = tl.dot(a, tl.trans(b))", "c = tl.dot(a, b)"),
)
def _trans_drop(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for call in tree.calls(kernel, "trans"):
            if call.args:
                yield tree.replace(call, tree.operand(call.args[0]))
        for node in kernel.of(ast.Attribute):
            if node.attr == "T":
                yield tree.replace(node, tree.text(node.value))


@rule(
    "triton-trans-add",
    "An operand is transposed that should not be.",
    "Square tiles compile; symmetric operands give the same.",
    body("c = tl.dot(a, b)", "c = tl.dot(tl.trans(a), b)"),
)
def _trans_add(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for call in tree.calls(kernel, "dot"):
            for operand in call.args[:2]:
                if isinstance(operand, ast.Name):
                    yield tree.replace(operand, f"{tree.tl}.trans({operand.id})")


@rule(
    "triton-dot-operands-swap",
    "The operands of a product change places.",
    "Square tiles compile; symmetric operands give the transposed result.",
    body("c = tl.dot(a, b)", "c = tl.dot(b, a)"),
)
def _dot_operands_swap(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for call in tree.calls(kernel, "dot"):
            if len(call.args) >= 2:
                first, second = call.args[:2]
                detail = f"`{tree.brief(first)}` <-> `{tree.brief(second)}` in `{tree.brief(call)}`"
                yield tree.site(call, detail, (first, tree.text(second)), (second, tree.text(first)))


OPERATORS = tuple(rule.operators)
