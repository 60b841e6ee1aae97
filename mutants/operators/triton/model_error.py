"""What language models really get wrong: the wrong axis, where epsilon goes, which variance, what is left out."""

import ast
from collections.abc import Iterator

from ...mutant import Site
from ...triton import TritonTree, argument
from ...triton_roles import Roles, each
from .rules import Rules, body, host

rule = Rules("model-error")

REPLACES = {
    "triton-variance-unbiased": ("variance-unbiased-count",),
    "triton-variance-biased": ("variance-unbiased-count",),
}

_BROADCAST = {"[:,None]": "[None, :]", "[None,:]": "[:, None]"}


@rule(
    "triton-reduce-axis",
    "A reduction runs along the other axis of a block.",
    "Blocks whose rows are alike; blocks of one row.",
    body("m = tl.max(x, axis=1)[:, None]", "m = tl.max(x, axis=0)[None, :]"),
    body("s = tl.sum(x, axis=0)", "s = tl.sum(x, axis=1)"),
)
def _reduce_axis(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for call in tree.calls(kernel, "sum", "max", "min", "argmax", "argmin", "cumsum", "associative_scan"):
            axis = argument(call, "axis", 1)
            if not (isinstance(axis, ast.Constant) and axis.value in (0, 1)):
                continue
            flipped = "1" if axis.value == 0 else "0"
            above = tree.parent(call)
            detail = f"axis {axis.value} -> {flipped} in `{tree.brief(call)}`"
            if isinstance(above, ast.Subscript):
                start, end = tree.span(call)[1], tree.span(above)[1]
                index = _BROADCAST.get("".join(tree.source[start:end].split()))
                if index:
                    yield tree.site(call, detail, (axis, flipped), ((start, end), index))
                    continue
            yield tree.site(call, detail, (axis, flipped))


@rule(
    "triton-eps-outside",
    "An epsilon is added after the square root.",
    "Where the spread is of order one both are far below every tolerance.",
    body("s = tl.sqrt(v + eps)", "s = (tl.sqrt(v) + eps)"),
    body("s = tl.rsqrt(v + eps)", "s = (1.0 / (tl.sqrt(v) + eps))"),
)
def _eps_outside(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for call in tree.calls(kernel, "sqrt", "rsqrt"):
            inner = call.args[0] if call.args else None
            if not (isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Add)):
                continue
            root = f"({tree.tl}.sqrt({tree.text(inner.left)}) + {tree.operand(inner.right)})"
            yield tree.replace(call, root if tree.called(call) == "sqrt" else f"(1.0 / {root})")


def _variances(tree: TritonTree) -> Iterator[tuple[Roles, ast.BinOp]]:
    """Quotients of a sum of squares, told by what is summed, and a count."""
    for kernel, roles in each(tree):
        for node in kernel.of(ast.BinOp):
            if not (isinstance(node.op, ast.Div) and roles.is_whole(node.right)) or roles.is_whole(node.left):
                continue
            for inner in roles.sources(node.left):
                squared = isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Mult)
                if squared and _same_names(inner):
                    yield roles, node
                    break


def _same_names(node: ast.AST) -> bool:
    if not isinstance(node, ast.BinOp):
        return False
    left, right = node.left, node.right
    return isinstance(left, ast.Name) and isinstance(right, ast.Name) and left.id == right.id


@rule(
    "triton-variance-unbiased",
    "A variance divides by the count minus one.",
    "For a thousand elements the difference is a thousandth.",
    body(
        "v = tl.sum(c * c, axis=0) / N\nx = tl.load(x_ptr + N)",
        "v = tl.sum(c * c, axis=0) / (N - 1)\nx = tl.load(x_ptr + N)",
    ),
)
def _unbiased(tree: TritonTree) -> Iterator[Site]:
    for _, node in _variances(tree):
        if isinstance(node.right, ast.Name):
            yield tree.replace(node.right, f"({node.right.id} - 1)")


@rule(
    "triton-variance-biased",
    "A variance divides by the count instead of the count minus one.",
    "For a thousand elements the difference is a thousandth.",
    body(
        "v = tl.sum(c * c, axis=0) / (N - 1)\nx = tl.load(x_ptr + N)",
        "v = tl.sum(c * c, axis=0) / (N)\nx = tl.load(x_ptr + N)",
    ),
)
def _biased(tree: TritonTree) -> Iterator[Site]:
    for _, node in _variances(tree):
        count = node.right
        if isinstance(count, ast.BinOp) and isinstance(count.op, ast.Sub) and tree.text(count.right) == "1":
            yield tree.replace(count, tree.text(count.left))


@rule(
    "triton-term-drop",
    "A term is left out: a bias, a correction, a carried sum.",
    "Fresh biases are zero, and a correction is small.",
    body("y = x * w + b", "y = x * w"),
    body("acc += b[None, :]", "acc += 0.0 * (b[None, :])"),
)
def _term_drop(tree: TritonTree) -> Iterator[Site]:
    for kernel, roles in each(tree):
        for node in kernel.of(ast.BinOp):
            if isinstance(node.op, ast.Add) and not roles.is_pointer(node.left) and not roles.is_whole(node):
                above = tree.parent(node)
                plain = isinstance(above, (ast.Assign, ast.Call, ast.AugAssign))
                yield tree.replace(node, tree.text(node.left) if plain else tree.operand(node.left))
        for update in kernel.of(ast.AugAssign):
            if isinstance(update.op, ast.Add) and tree.loop_of(update) is None and not roles.is_whole(update.value):
                yield tree.replace(update.value, f"0.0 * ({tree.text(update.value)})")


@rule(
    "triton-factor-drop",
    "A factor is left out: a weight, a scale.",
    "Fresh weights are one.",
    body("y = x * w", "y = x"),
)
def _factor_drop(tree: TritonTree) -> Iterator[Site]:
    for kernel, roles in each(tree):
        for node in kernel.of(ast.BinOp):
            if isinstance(node.op, ast.Mult) and not roles.is_whole(node) and not _same_names(node):
                above = tree.parent(node)
                plain = isinstance(above, (ast.Assign, ast.Call, ast.AugAssign))
                yield tree.replace(node, tree.text(node.left) if plain else tree.operand(node.left))


@rule(
    "triton-mean-to-sum",
    "A mean is not divided by its count.",
    "Only what is normalised afterwards.",
    body("mean = tl.sum(x, axis=0) / N\ny = tl.load(x_ptr + N)", "mean = tl.sum(x, axis=0)\ny = tl.load(x_ptr + N)"),
    host("def run(parts, n):\n    return parts.sum() / n", "def run(parts, n):\n    return parts.sum()"),
)
def _mean_to_sum(tree: TritonTree) -> Iterator[Site]:
    for kernel, roles in each(tree):
        for node in kernel.of(ast.BinOp):
            if isinstance(node.op, ast.Div) and roles.is_whole(node.right) and not roles.is_whole(node.left):
                yield tree.replace(node, tree.operand(node.left))
    for item in tree.host_nodes:
        if isinstance(item, ast.BinOp) and isinstance(item.op, ast.Div) and isinstance(tree.parent(item), ast.Return):
            yield tree.replace(item, tree.operand(item.left))


@rule(
    "triton-sqrt-drop",
    "A square root is missing: a variance for a deviation.",
    "Values near one.",
    body("s = tl.sqrt(v)", "s = (v)"),
)
def _sqrt_drop(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for call in tree.calls(kernel, "sqrt"):
            if len(call.args) == 1:
                yield tree.replace(call, f"({tree.text(call.args[0])})")


@rule(
    "triton-square-to-abs",
    "An absolute value instead of a square.",
    "Values of zero and one.",
    body("q = d * d", "q = tl.abs(d)"),
)
def _square_to_abs(tree: TritonTree) -> Iterator[Site]:
    for kernel, roles in each(tree):
        for node in kernel.of(ast.BinOp):
            if _same_names(node) and isinstance(node.op, ast.Mult) and not roles.is_whole(node):
                yield tree.replace(node, f"{tree.tl}.abs({tree.text(node.left)})")


@rule(
    "triton-stride-assume-one",
    "A stride is taken to be one.",
    "Contiguous tensors along that dimension, windows that move by one.",
    body("x = tl.load(x_ptr + i * stride_n)", "x = tl.load(x_ptr + i)"),
)
def _stride_one(tree: TritonTree) -> Iterator[Site]:
    for kernel, roles in each(tree):
        for node in kernel.of(ast.BinOp):
            if isinstance(node.op, ast.Mult) and isinstance(node.right, ast.Name) and node.right.id in roles.strides:
                yield tree.replace(node, tree.operand(node.left))


@rule(
    "triton-padding-ignored",
    "A window starts without its padding.",
    "Padding of zero; inside an image a window that is shifted looks alike on smooth data.",
    body(
        "padding = 1\nh = oh * 2 - padding\nx = tl.load(x_ptr + h)",
        "padding = 1\nh = (oh * 2)\nx = tl.load(x_ptr + h)",
    ),
)
def _padding_ignored(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for node in kernel.of(ast.BinOp):
            padded = isinstance(node.right, ast.Name) and "pad" in node.right.id.lower()
            if isinstance(node.op, ast.Sub) and padded:
                yield tree.replace(node, tree.operand(node.left))


@rule(
    "triton-contiguous-drop",
    "An input is not made contiguous.",
    "The test's inputs are contiguous already.",
    host("x = x.contiguous()", "x = x"),
)
def _contiguous_drop(tree: TritonTree) -> Iterator[Site]:
    for node in tree.host_nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "contiguous":
            yield tree.replace(node, tree.text(node.func.value))


@rule(
    "triton-output-dtype",
    "The answer is allocated in half precision.",
    "A comparison that converts, or an absolute tolerance of 1e-2.",
    host("out = torch.empty_like(x)", "out = torch.empty_like(x, dtype=torch.float16)"),
    host("out = torch.empty(n, dtype=torch.float32)", "out = torch.empty(n, dtype=torch.float16)"),
)
def _output_dtype(tree: TritonTree) -> Iterator[Site]:
    for node in tree.host_nodes:
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        if node.func.attr not in ("empty", "zeros", "empty_like", "zeros_like"):
            continue
        dtype = argument(node, "dtype")
        if dtype is None:
            end = tree.span(node)[1] - 1
            yield tree.site(node, f"half precision in `{tree.brief(node)}`", ((end, end), ", dtype=torch.float16"))
        elif "int" not in tree.text(dtype):
            yield tree.replace(dtype, "torch.float16")


@rule(
    "triton-scale-squared",
    "A scale is applied twice.",
    "A scale of one; softmax of scores that are all alike.",
    body("s = tl.dot(q, k) * scale", "s = tl.dot(q, k) * (scale * scale)"),
)
def _scale_twice(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        names = {item.name for item in kernel.parameters if "scal" in item.name.lower()} | {"scale"}
        for node in kernel.of(ast.BinOp):
            if isinstance(node.op, ast.Mult) and isinstance(node.right, ast.Name) and node.right.id in names:
                yield tree.replace(node.right, f"({node.right.id} * {node.right.id})")


OPERATORS = tuple(rule.operators)
