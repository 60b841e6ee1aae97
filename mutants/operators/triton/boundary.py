"""Wrong edges: masks, comparisons, loop bounds and rounded sizes."""

import ast
from collections.abc import Iterator

from ...mutant import Site
from ...triton import TritonTree, argument_node
from ...triton_roles import Roles, each, is_infinite
from .rules import Rules, body

rule = Rules("boundary")

REPLACES = {
    "triton-mask-drop": ("guard-drop-if", "guard-drop-ternary", "return-guard-drop"),
    "triton-bound-minus1": (
        "elementwise-guard-minus1",
        "tail-guard-tighten",
        "arg-reduction-last-row-drop",
        "min-reduction-last-row-drop",
        "last-row-reduction-skip",
        "cumsum-last-output-drop",
        "matmul-a-last-k-drop",
        "matmul-a-transposed-last-k-drop",
        "matmul-b-last-k-drop",
        "groupnorm-sum-tail-scalar-drop",
        "groupnorm-sqdev-tail-scalar-drop",
    ),
    "triton-bound-plus1": (
        "elementwise-guard-plus1",
        "output-elements-one-extra-lane",
        "line-count-one-extra-lane",
        "flat-n-one-extra-lane",
    ),
    "triton-bound-swap": (
        "matrix-row-bound-use-n",
        "matrix-col-bound-use-m",
        "height-bound-use-width",
        "width-bound-use-height",
    ),
    "triton-lt2le": ("conditional_boundary_replacement",),
    "triton-and2or": ("logical_replacement",),
    "triton-loop-bound-minus1": ("pool2d-last-tap-drop", "literal-loop-last-skip", "tile-last-iteration-skip"),
    "triton-loop-start-1": ("argmax-seed-from-second", "last-row-reduction-skip-start1"),
    "triton-loop-step-double": ("grid-stride-step-double", "increment_replacement"),
    "triton-tail-round-down": ("strided-tail-drop",),
    "triton-ceil2floor-kernel": ("ceil2floor",),
}

_COMPARISONS: dict[type[ast.cmpop], str] = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}


def _drop(tree: TritonTree, functions: tuple[str, ...], positions: dict[str, int]) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for call in tree.calls(kernel, *functions):
            mask = argument_node(call, "mask", positions.get(tree.called(call) or "", 2))
            other = argument_node(call, "other", 2) if tree.called(call) == "load" else None
            if mask is not None:
                gone = [item for item in (mask, other) if item is not None]
                detail = f"mask dropped in `{tree.brief(call)}`"
                yield tree.site(call, detail, *(tree.without_argument(call, item) for item in gone))


@rule(
    "triton-mask-drop",
    "A load has no mask.",
    "Shapes that fill all blocks; beyond the end there is other memory, often zeros, and no error.",
    body("x = tl.load(x_ptr + i, mask=i < N, other=0.0)", "x = tl.load(x_ptr + i)"),
)
def _mask_drop(tree: TritonTree) -> Iterator[Site]:
    return _drop(tree, ("load",), {"load": 1})


@rule(
    "triton-store-mask-drop",
    "A store or atomic has no mask.",
    "It writes past the end of the answer, where nothing compares.",
    body("tl.store(out_ptr + i, x, mask=i < N)", "tl.store(out_ptr + i, x)"),
)
def _store_mask_drop(tree: TritonTree) -> Iterator[Site]:
    return _drop(tree, ("store", "atomic_add", "atomic_max", "atomic_min"), {})


@rule(
    "triton-block-check-drop",
    "A block pointer is used without its boundary check.",
    "Shapes that fill all blocks.",
    body("x = tl.load(p, boundary_check=(0, 1))", "x = tl.load(p)"),
)
def _block_check_drop(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for call in tree.calls(kernel, "load", "store"):
            checks = [item for item in call.keywords if item.arg in ("boundary_check", "padding_option")]
            if checks:
                detail = f"boundary check dropped in `{tree.brief(call)}`"
                yield tree.site(call, detail, *(tree.without_argument(call, item) for item in checks))


@rule(
    "triton-mask-part-drop",
    "A mask checks one dimension only.",
    "Shapes that fill the blocks along the other; rows that run into the next row's data.",
    body("m = (i < M) & (j < N)", "m = (i < M)"),
)
def _mask_part_drop(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for node in kernel.of(ast.BinOp):
            if isinstance(node.op, ast.BitAnd):
                yield tree.replace(node, tree.operand(node.right))
                yield tree.replace(node, tree.operand(node.left))


@rule(
    "triton-and2or",
    "Either condition is enough.",
    "Shapes that fill the blocks.",
    body("m = (i < M) & (j < N)", "m = (i < M) | (j < N)"),
)
def _and2or(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for node in kernel.of(ast.BinOp):
            if isinstance(node.op, ast.BitAnd):
                place = tree.operator_span(node.left, node.right, "&")
                yield tree.site(node, f"`&` -> `|` in `{tree.brief(node)}`", (place, "|"))


def _compare(tree: TritonTree, old: type[ast.cmpop], new: str) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for node in kernel.of(ast.Compare):
            if len(node.ops) == 1 and isinstance(node.ops[0], old):
                place = tree.operator_span(node.left, node.comparators[0], _COMPARISONS[old])
                yield tree.site(node, f"`{_COMPARISONS[old]}` -> `{new}` in `{tree.brief(node)}`", (place, new))


@rule(
    "triton-lt2le",
    "Less becomes less or equal.",
    "One element too many is read, which is often zero or the neighbour's.",
    body("m = i < N", "m = i <= N"),
)
def _lt2le(tree: TritonTree) -> Iterator[Site]:
    return _compare(tree, ast.Lt, "<=")


@rule("triton-le2lt", "Less or equal becomes less.", "Ties are rare.", body("m = i <= j", "m = i < j"))
def _le2lt(tree: TritonTree) -> Iterator[Site]:
    return _compare(tree, ast.LtE, "<")


@rule(
    "triton-ge2gt",
    "Greater or equal becomes greater.",
    "Only the first row or column, or equal values, show it.",
    body("m = h >= 0", "m = h > 0"),
)
def _ge2gt(tree: TritonTree) -> Iterator[Site]:
    return _compare(tree, ast.GtE, ">")


@rule(
    "triton-gt2ge",
    "Greater becomes greater or equal.",
    "Random floats have no ties.",
    body("better = x > best", "better = x >= best"),
)
def _gt2ge(tree: TritonTree) -> Iterator[Site]:
    return _compare(tree, ast.Gt, ">=")


@rule(
    "triton-lt2gt", "A comparison is turned round.", "Hardly: outputs stay unwritten.", body("m = i < N", "m = i > N")
)
def _lt2gt(tree: TritonTree) -> Iterator[Site]:
    return _compare(tree, ast.Lt, ">")


def _bounds(roles: Roles) -> Iterator[ast.Compare]:
    """Comparisons of an index with a size."""
    for node in roles.kernel.of(ast.Compare):
        if len(node.ops) == 1 and isinstance(node.ops[0], ast.Lt) and roles.is_whole(node.comparators[0]):
            yield node


@rule(
    "triton-bound-minus1",
    "The last element along a dimension is left out.",
    "One element of many, or one term of a long sum.",
    body("m = i < N\nx = tl.load(x_ptr + i, mask=m)", "m = i < (N - 1)\nx = tl.load(x_ptr + i, mask=m)"),
)
def _bound_minus1(tree: TritonTree) -> Iterator[Site]:
    for _, roles in each(tree):
        for node in _bounds(roles):
            bound = node.comparators[0]
            yield tree.replace(bound, f"({tree.text(bound)} - 1)")


@rule(
    "triton-bound-plus1",
    "One element beyond a dimension is taken in.",
    "It is read from the next row, or from zeros behind the end.",
    body("m = i < N\nx = tl.load(x_ptr + i, mask=m)", "m = i < (N + 1)\nx = tl.load(x_ptr + i, mask=m)"),
)
def _bound_plus1(tree: TritonTree) -> Iterator[Site]:
    for _, roles in each(tree):
        for node in _bounds(roles):
            bound = node.comparators[0]
            yield tree.replace(bound, f"({tree.text(bound)} + 1)")


@rule(
    "triton-bound-swap",
    "An index is compared with the size of another dimension.",
    "Square shapes, and shapes in which the other size is larger and the rest of the block is zero.",
    body(
        "m = (i < M) & (j < N)\nx = tl.load(x_ptr + i, mask=m)",
        "m = (i < N) & (j < N)\nx = tl.load(x_ptr + i, mask=m)",
    ),
)
def _bound_swap(tree: TritonTree) -> Iterator[Site]:
    for _, roles in each(tree):
        for node in _bounds(roles):
            bound = node.comparators[0]
            if isinstance(bound, ast.Name) and bound.id in roles.bounds:
                for other in [name for name in roles.bounds if name != bound.id][:2]:
                    yield tree.replace(bound, other)


@rule(
    "triton-tail-round-down",
    "Only whole blocks are worked on.",
    "Sizes that are multiples of the block, as declared shapes often are.",
    body(
        "i = tl.arange(0, BLOCK)\nx = tl.load(x_ptr + i, mask=i < N)",
        "i = tl.arange(0, BLOCK)\nx = tl.load(x_ptr + i, mask=i < (N // BLOCK * BLOCK))",
    ),
)
def _tail_round_down(tree: TritonTree) -> Iterator[Site]:
    for _, roles in each(tree):
        for node in _bounds(roles):
            for inner in roles.sources(node.left):
                if isinstance(inner, ast.Call) and tree.called(inner) == "arange" and len(inner.args) == 2:
                    block, bound = inner.args[1], node.comparators[0]
                    if isinstance(block, ast.Name) and isinstance(bound, ast.Name):
                        yield tree.replace(bound, f"({bound.id} // {block.id} * {block.id})")
                    break


@rule(
    "triton-other-value",
    "The lanes outside count as one instead of zero.",
    "Shapes that fill all blocks.",
    body("x = tl.load(x_ptr + i, mask=m, other=0.0)", "x = tl.load(x_ptr + i, mask=m, other=1.0)"),
)
def _other_value(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for call in tree.calls(kernel, "load"):
            for item in call.keywords:
                if item.arg == "other" and isinstance(item.value, ast.Constant) and item.value.value == 0:
                    yield tree.replace(item.value, "1.0" if isinstance(item.value.value, float) else "1")


@rule(
    "triton-where-mask-drop",
    "What lies outside is not set to the neutral value.",
    "Shapes that fill all blocks; sums in which zeros were loaded anyway.",
    body("y = tl.where(i < N, x - mean, 0.0)", "y = (x - mean)"),
)
def _where_mask_drop(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for call in tree.calls(kernel, "where"):
            if len(call.args) == 3:
                neutral = call.args[2]
                number = isinstance(neutral, ast.Constant) or is_infinite(neutral) or is_infinite(neutral, "+")
                signed = isinstance(call.args[0], ast.Compare) and isinstance(call.args[0].comparators[0], ast.Constant)
                if number and not signed:
                    yield tree.replace(call, tree.operand(call.args[1]))


def _ranges(tree: TritonTree) -> Iterator[tuple[Roles, ast.Call]]:
    for kernel, roles in each(tree):
        for loop in kernel.of(ast.For):
            call = loop.iter
            if not (isinstance(call, ast.Call) and 1 <= len(call.args) <= 3):
                continue
            plain = isinstance(call.func, ast.Name) and call.func.id == "range"
            if plain or tree.called(call) in ("range", "static_range"):
                yield roles, call


@rule(
    "triton-loop-bound-minus1",
    "A loop ends one turn, or one element, early.",
    "One term of many; with a step, only sizes one above a multiple of it lose anything.",
    body("for k in range(K):\n    acc += x", "for k in range((K) - 1):\n    acc += x"),
)
def _loop_bound_minus1(tree: TritonTree) -> Iterator[Site]:
    for _, call in _ranges(tree):
        stop = call.args[0] if len(call.args) == 1 else call.args[1]
        yield tree.replace(stop, f"({tree.text(stop)}) - 1")


@rule(
    "triton-loop-last-block-skip",
    "A loop over blocks stops one block early.",
    "A last block that is nearly empty, or one of many.",
    body("for k in range(0, K, BLOCK):\n    acc += x", "for k in range(0, (K) - (BLOCK), BLOCK):\n    acc += x"),
)
def _loop_last_block(tree: TritonTree) -> Iterator[Site]:
    for _, call in _ranges(tree):
        if len(call.args) == 3:
            stop, step = call.args[1:]
            yield tree.replace(stop, f"({tree.text(stop)}) - ({tree.text(step)})")


@rule(
    "triton-loop-start-1",
    "A loop leaves its first turn out.",
    "One term of many.",
    body("for k in range(0, K):\n    acc += x", "for k in range((0) + 1, K):\n    acc += x"),
    body("for k in range(K):\n    acc += x", "for k in range(1, K):\n    acc += x"),
    body("for k in range(0, K, BLOCK):\n    acc += x", "for k in range((0) + (BLOCK), K, BLOCK):\n    acc += x"),
)
def _loop_start(tree: TritonTree) -> Iterator[Site]:
    for _, call in _ranges(tree):
        first = call.args[0]
        if len(call.args) == 1:
            yield tree.replace(first, f"1, {tree.text(first)}")
        else:
            step = tree.text(call.args[2]) if len(call.args) == 3 else ""
            yield tree.replace(first, f"({tree.text(first)}) + {f'({step})' if step else '1'}")


@rule(
    "triton-loop-step-double",
    "A loop leaves every other block out.",
    "Loops of one turn.",
    body("for k in range(0, K, BLOCK):\n    acc += x", "for k in range(0, K, 2 * (BLOCK)):\n    acc += x"),
)
def _loop_step(tree: TritonTree) -> Iterator[Site]:
    for _, call in _ranges(tree):
        if len(call.args) == 3:
            yield tree.replace(call.args[2], f"2 * ({tree.text(call.args[2])})")


@rule(
    "triton-ceil2floor-kernel",
    "A number of blocks is rounded down inside a kernel.",
    "Sizes that are multiples of the block.",
    body("blocks = tl.cdiv(K, BLOCK)", "blocks = ((K) // (BLOCK))"),
)
def _ceil2floor(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for call in kernel.of(ast.Call):
            if tree.is_cdiv(call):
                yield tree.replace(call, f"(({tree.text(call.args[0])}) // ({tree.text(call.args[1])}))")


OPERATORS = tuple(rule.operators)
