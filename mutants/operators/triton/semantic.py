"""Wrong meaning: the other extreme, a lost start value, a clamp or a branch that is missing."""

import ast
from collections.abc import Iterator

from ...mutant import Site
from ...triton import TritonTree, argument
from ...triton_roles import added, each, is_infinite, is_number
from .rules import Rules, body

rule = Rules("semantic")

REPLACES = {
    "triton-max2min": ("fmax2fmin",),
    "triton-min2max": ("fmin2fmax",),
    "triton-argmax-tie-last": (
        "argmin-tie-last",
        "argmax-tie-nan-form",
        "reduce-fmax-tie-order",
        "reduce-fmin-tie-order",
    ),
    "triton-relu-threshold-shift": ("selu-positive-cutoff-nudge", "elu-positive-cutoff-nudge"),
    "triton-relu-max-remove": ("relu-fmax-zero-remove", "relu-fmax-zero-remove-first"),
    "triton-clamp-upper-remove": (
        "upper-unit-clamp-remove",
        "upper-unit-clamp-remove-first",
        "nested-unit-clamp-drop-upper",
    ),
    "triton-clamp-lower-remove": ("lower-negunit-clamp-remove",),
    "triton-abs-remove": ("fabs-simple-remove", "softsign-positive-fabs-elide"),
    "triton-negate-condition": ("negate_conditional_replacement",),
}


@rule(
    "triton-acc-overwrite",
    "An accumulator keeps its last term.",
    "Loops of one turn, which is what small shapes have.",
    body("for k in range(K):\n    acc += x", "for k in range(K):\n    acc = x"),
    body("for k in range(K):\n    acc = acc * f + x", "for k in range(K):\n    acc = x"),
)
def _acc_overwrite(tree: TritonTree) -> Iterator[Site]:
    for _, roles in each(tree):
        for node in roles.accumulators():
            if isinstance(node, ast.AugAssign):
                place = tree.operator_span(node.target, node.value, "+=")
                yield tree.site(node, f"`+=` -> `=` in `{tree.brief(node)}`", (place, "="))
            elif (term := added(node)) is not None:
                yield tree.replace(node.value, tree.text(term))


@rule(
    "triton-acc-minus",
    "An accumulator subtracts its terms.",
    "Even functions of the sum (a square, an absolute value) give the same.",
    body("for k in range(K):\n    acc += x", "for k in range(K):\n    acc -= x"),
)
def _acc_minus(tree: TritonTree) -> Iterator[Site]:
    for _, roles in each(tree):
        for node in roles.accumulators():
            if isinstance(node, ast.AugAssign):
                place = tree.operator_span(node.target, node.value, "+=")
                yield tree.site(node, f"`+=` -> `-=` in `{tree.brief(node)}`", (place, "-="))


def _rename(tree: TritonTree, names: dict[str, str]) -> Iterator[Site]:
    """Sites that call another function of `triton.language`."""
    for kernel, _ in each(tree):
        for call in tree.calls(kernel, *names):
            if isinstance(call.func, ast.Attribute):
                old = call.func.attr
                end = tree.span(call.func)[1]
                yield tree.site(
                    call, f"`{old}` -> `{names[old]}` in `{tree.brief(call)}`", ((end - len(old), end), names[old])
                )


@rule(
    "triton-max2min",
    "The smaller of two, or the smallest of all.",
    "A maximum that only guards against overflow may be any number near it.",
    body("m = tl.max(x, axis=0)", "m = tl.min(x, axis=0)"),
    body("y = tl.maximum(x, 0.0)", "y = tl.minimum(x, 0.0)"),
)
def _max2min(tree: TritonTree) -> Iterator[Site]:
    return _rename(tree, {"max": "min", "maximum": "minimum", "atomic_max": "atomic_min", "argmax": "argmin"})


@rule(
    "triton-min2max",
    "The larger of two, or the largest of all.",
    "An upper bound that no drawn value reaches.",
    body("y = tl.minimum(x, 6.0)", "y = tl.maximum(x, 6.0)"),
)
def _min2max(tree: TritonTree) -> Iterator[Site]:
    return _rename(tree, {"min": "max", "minimum": "maximum", "atomic_min": "atomic_max", "argmin": "argmax"})


@rule(
    "triton-sentinel-zero",
    "A search for an extreme, or the lanes outside, start from zero instead of infinity.",
    "Wrong only where all values are negative (for a minimum: positive); uniform draws never are.",
    body('x = tl.load(x_ptr + i, mask=m, other=-float("inf"))', "x = tl.load(x_ptr + i, mask=m, other=0.0)"),
    body('best = tl.full((BLOCK,), float("-inf"), tl.float32)', "best = tl.full((BLOCK,), 0.0, tl.float32)"),
)
def _sentinel_zero(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for node in kernel.nodes:
            above = tree.parent(node)
            nested = above is not None and (is_infinite(above) or is_infinite(above, "+"))
            if not nested and (is_infinite(node) or is_infinite(node, "+")):
                yield tree.replace(node, "0.0")


@rule(
    "triton-const0to1",
    "A literal zero becomes one.",
    "A threshold or a start value that the data passes by.",
    body("acc = 0.0", "acc = 1.0"),
)
def _const0to1(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for node in kernel.of(ast.Constant):
            above = tree.parent(node)
            structural = isinstance(above, ast.keyword) and above.arg in ("axis", "order", "boundary_check", "other")
            structural |= isinstance(above, ast.Call) and (
                tree.called(above) in ("program_id", "num_programs", "arange")
                or (isinstance(above.func, ast.Name) and above.func.id == "range")
            )
            structural |= isinstance(above, ast.Call) and tree.called(above) in ("zeros", "sum", "max", "min", "cumsum")
            if is_number(node, 0) and not structural and not isinstance(above, (ast.Tuple, ast.Subscript)):
                yield tree.replace(node, "1" if isinstance(node.value, int) else "1.0")


@rule(
    "triton-argmax-tie-last",
    "Of equal values the last one wins.",
    "Random floats have no ties.",
    body("j = tl.argmax(x, axis=0)", "j = tl.argmax(x, axis=0, tie_break_left=False)"),
    body("j = tl.argmax(x, axis=0, tie_break_left=True)", "j = tl.argmax(x, axis=0, tie_break_left=False)"),
)
def _tie_last(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for call in tree.calls(kernel, "argmax", "argmin"):
            given = argument(call, "tie_break_left", 2)
            if given is not None:
                yield tree.replace(given, "False")
            else:
                end = tree.span(call)[1] - 1
                detail = f"last of equal values in `{tree.brief(call)}`"
                yield tree.site(call, detail, ((end, end), ", tie_break_left=False"))


@rule(
    "triton-relu-where-remove",
    "A choice by sign always takes its first branch.",
    "Inputs drawn from [0, 1) are never negative.",
    body("y = tl.where(x > 0.0, x, 0.0)", "y = x"),
)
def _relu_where_remove(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for call in tree.calls(kernel, "where"):
            test = call.args[0] if len(call.args) == 3 else None
            if isinstance(test, ast.Compare) and is_number(test.comparators[0], 0):
                kept = call.args[2] if isinstance(test.ops[0], (ast.Lt, ast.LtE)) else call.args[1]
                yield tree.replace(call, tree.operand(kept))


@rule(
    "triton-relu-max-remove",
    "The maximum with zero is missing.",
    "Inputs drawn from [0, 1) are never negative.",
    body("y = tl.maximum(x, 0.0)", "y = x"),
)
def _relu_max_remove(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for call in tree.calls(kernel, "maximum"):
            for kept, bound in (call.args[:2], call.args[1::-1]):
                if is_number(bound, 0):
                    yield tree.replace(call, tree.operand(kept))


@rule(
    "triton-relu-threshold-shift",
    "The threshold at zero lies a little above it.",
    "Hardly any drawn value lies between, and the difference is far below 1e-2.",
    body("y = tl.where(x > 0.0, x, 0.0)", "y = tl.where(x > 1e-3, x, 0.0)"),
    body("y = tl.maximum(x, 0.0)", "y = tl.maximum(x, 1e-6)"),
)
def _relu_threshold_shift(tree: TritonTree) -> Iterator[Site]:
    for kernel, roles in each(tree):
        for call in tree.calls(kernel, "where"):
            test = call.args[0] if call.args else None
            if isinstance(test, ast.Compare) and is_number(test.comparators[0], 0) and not roles.is_whole(test.left):
                yield tree.replace(test.comparators[0], "1e-3")
        for call in tree.calls(kernel, "maximum"):
            for bound in call.args[:2]:
                if is_number(bound, 0):
                    yield tree.replace(bound, "1e-6")


def _clamp(tree: TritonTree, function: str, kept: str, bound: int, name: str) -> Iterator[Site]:
    """Sites that take one bound away.

    Args:
        function: what sets it when called with two values.
        kept: what remains of `tl.clamp`.
        bound, name: where in `tl.clamp` the other bound stands.
    """
    for kernel, roles in each(tree):
        parameters = {item.name for item in kernel.parameters} - set(roles.sizes) - set(roles.pointers)
        for call in tree.calls(kernel, function):
            for value, limit in (call.args[:2], call.args[1::-1]):
                fixed = isinstance(limit, ast.Name) and limit.id in parameters and limit.id not in roles.constexprs
                is_literal = isinstance(limit, (ast.Constant, ast.UnaryOp)) and not is_number(limit, 0)
                if (fixed or is_literal) and not roles.is_whole(limit):
                    yield tree.replace(call, tree.operand(value))
        for call in tree.calls(kernel, "clamp"):
            other = argument(call, name, bound)
            if call.args and other is not None:
                yield tree.replace(call, f"{tree.tl}.{kept}({tree.text(call.args[0])}, {tree.text(other)})")


@rule(
    "triton-clamp-upper-remove",
    "The upper bound is missing.",
    "No drawn value reaches it.",
    body("y = tl.minimum(x, 1.0)", "y = x"),
    body("y = tl.clamp(x, -1.0, 1.0)", "y = tl.maximum(x, -1.0)"),
)
def _clamp_upper(tree: TritonTree) -> Iterator[Site]:
    return _clamp(tree, "minimum", "maximum", 1, "min")


@rule(
    "triton-clamp-lower-remove",
    "The lower bound is missing.",
    "Inputs drawn from [0, 1) never reach a negative bound.",
    body("y = tl.maximum(x, -1.0)", "y = x"),
    body("y = tl.clamp(x, -1.0, 1.0)", "y = tl.minimum(x, 1.0)"),
)
def _clamp_lower(tree: TritonTree) -> Iterator[Site]:
    return _clamp(tree, "maximum", "minimum", 2, "max")


@rule(
    "triton-abs-remove",
    "An absolute value is missing.",
    "Inputs drawn from [0, 1) are their own absolute values.",
    body("y = tl.abs(x)", "y = x"),
)
def _abs_remove(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for call in tree.calls(kernel, "abs", "fabs"):
            if len(call.args) == 1:
                yield tree.replace(call, tree.operand(call.args[0]))


@rule(
    "triton-negate-condition",
    "A choice takes the other branch.",
    "Branches that give the same for the drawn values.",
    body("y = tl.where(c, x, z)", "y = tl.where(c, z, x)"),
)
def _negate_condition(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for call in tree.calls(kernel, "where"):
            if len(call.args) == 3:
                yes, no = call.args[1:]
                detail = f"branches exchanged in `{tree.brief(call)}`"
                yield tree.site(call, detail, (yes, tree.text(no)), (no, tree.text(yes)))
        for node in kernel.of(ast.If):
            yield tree.replace(node.test, f"not ({tree.text(node.test)})")


@rule(
    "triton-rescale-drop",
    "A running sum is not rescaled when the running maximum grows.",
    "Rows that fit one block, and rows whose first block holds the largest value.",
    body("for k in range(K):\n    acc = acc * f + x", "for k in range(K):\n    acc = acc + x"),
)
def _rescale_drop(tree: TritonTree) -> Iterator[Site]:
    for _, roles in each(tree):
        for node in roles.accumulators():
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
                left = node.value.left
                if isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mult):
                    yield tree.replace(left, tree.operand(left.left))


@rule(
    "triton-scan-exclusive",
    "A cumulative sum leaves its own element out.",
    "Elements far smaller than the sum.",
    body("y = tl.cumsum(x, axis=0)", "y = (tl.cumsum(x, axis=0) - (x))"),
)
def _scan_exclusive(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for call in tree.calls(kernel, "cumsum", "associative_scan"):
            if call.args:
                yield tree.replace(call, f"({tree.text(call)} - ({tree.text(call.args[0])}))")


@rule(
    "triton-scan-reverse",
    "A cumulative operation runs from the last element to the first.",
    "Rows of one element; symmetric data.",
    body("y = tl.cumsum(x, axis=0)", "y = tl.cumsum(x, axis=0, reverse=True)"),
)
def _scan_reverse(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for call in tree.calls(kernel, "cumsum", "cumprod", "associative_scan"):
            if argument(call, "reverse") is None:
                end = tree.span(call)[1] - 1
                yield tree.site(call, f"reversed `{tree.brief(call)}`", ((end, end), ", reverse=True"))


OPERATORS = tuple(rule.operators)
