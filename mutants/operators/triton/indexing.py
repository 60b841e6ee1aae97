"""Wrong places: axes, strides, offsets and pointers mixed up."""

import ast
from collections.abc import Iterator, Sequence

from ...mutant import Site
from ...triton import TritonTree, argument
from ...triton_roles import Roles, each
from .rules import Rules, body

rule = Rules("indexing")

REPLACES = {
    "triton-program-id-axis": ("bidx2bidy", "grid-x-use-block-y"),
    "triton-num-programs-axis": ("bdim2gdim",),
    "triton-load-offset-plus1": ("smem-index-off1", "gpu_index_increment"),
    "triton-size-swap": (
        "row-store-stride-k",
        "a-row-stride-n",
        "b-row-stride-k",
        "flatten-height-use-width",
        "output-position-height-first",
    ),
    "triton-div-mod-swap": ("output-position-height-first",),
    "triton-argmax-previous-index": ("argmax-final-row-alias", "argmax-final-row-value-alias"),
    "triton-block-stride-short": ("reduction-partner-half-offset",),
}


def _axis(tree: TritonTree, function: str) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for call in tree.calls(kernel, function):
            axis = argument(call, "axis", 0)
            if isinstance(axis, ast.Constant) and axis.value in (0, 1, 2):
                yield tree.replace(axis, "1" if axis.value == 0 else "0")


@rule(
    "triton-program-id-axis",
    "A program takes its place along another axis of the grid.",
    "Grids of one program along both axes, and square grids of a symmetric result.",
    body("pid = tl.program_id(0)", "pid = tl.program_id(1)"),
)
def _program_id_axis(tree: TritonTree) -> Iterator[Site]:
    return _axis(tree, "program_id")


@rule(
    "triton-num-programs-axis",
    "A program counts the programs along another axis.",
    "A stride that is too small does work twice and stores the same values again.",
    body("step = tl.num_programs(0) * BLOCK", "step = tl.num_programs(1) * BLOCK"),
)
def _num_programs_axis(tree: TritonTree) -> Iterator[Site]:
    return _axis(tree, "num_programs")


def _others(name: str, names: Sequence[str], limit: int = 2) -> list[str]:
    """Names beside `name`, the nearest first."""
    if name not in names:
        return []
    at = names.index(name)
    near = sorted((abs(i - at), i) for i, other in enumerate(names) if other != name)
    return [names[i] for _, i in near[:limit]]


def _index_parts(tree: TritonTree, roles: Roles) -> Iterator[ast.BinOp]:
    """Products, quotients and remainders of whole numbers."""
    for node in roles.kernel.of(ast.BinOp):
        if isinstance(node.op, (ast.Mult, ast.FloorDiv, ast.Mod)) and roles.is_whole(node):
            yield node


@rule(
    "triton-stride-swap",
    "An offset is computed with another of the kernel's strides.",
    "Square operands, and strides that happen to be equal.",
    body(
        "x = tl.load(x_ptr + i * stride_m + j * stride_n)",
        "x = tl.load(x_ptr + i * stride_n + j * stride_n)",
    ),
)
def _stride_swap(tree: TritonTree) -> Iterator[Site]:
    for kernel, roles in each(tree):
        for node in kernel.of(ast.Name):
            for other in _others(node.id, roles.strides, limit=1):
                yield tree.replace(node, other)


@rule(
    "triton-size-swap",
    "An index is multiplied, divided or reduced by another size of the problem.",
    "Square shapes.",
    body(
        "i = tl.program_id(0)\nx = tl.load(x_ptr + i * N, mask=i < M)",
        "i = tl.program_id(0)\nx = tl.load(x_ptr + i * M, mask=i < M)",
    ),
)
def _size_swap(tree: TritonTree) -> Iterator[Site]:
    for _, roles in each(tree):
        sizes = [name for name in roles.sizes if name not in roles.strides]
        for node in _index_parts(tree, roles):
            for side in (node.left, node.right):
                if isinstance(side, ast.Name):
                    for other in _others(side.id, sizes):
                        yield tree.replace(side, other)


@rule(
    "triton-div-mod-swap",
    "The quotient of an index is used for its remainder, or the other way round.",
    "Sizes of one, and places where both are equal.",
    body("x = tl.load(x_ptr + i % N)", "x = tl.load(x_ptr + i // N)"),
)
def _div_mod_swap(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for node in kernel.of(ast.BinOp):
            if isinstance(node.op, (ast.Mod, ast.FloorDiv)):
                old, new = ("%", "//") if isinstance(node.op, ast.Mod) else ("//", "%")
                place = tree.operator_span(node.left, node.right, old)
                yield tree.site(node, f"`{old}` -> `{new}` in `{tree.brief(node)}`", (place, new))


def _off_by_one(tree: TritonTree, *functions: str) -> Iterator[Site]:
    for kernel, roles in each(tree):
        for call in tree.calls(kernel, *functions):
            if call.args and isinstance(call.args[0], ast.BinOp) and roles.is_pointer(call.args[0]):
                yield tree.replace(call.args[0], f"{tree.text(call.args[0])} + 1")


@rule(
    "triton-load-offset-plus1",
    "A load reads the neighbour.",
    "Constant rows, and reductions that lose one element and gain another.",
    body("x = tl.load(x_ptr + i, mask=m)", "x = tl.load(x_ptr + i + 1, mask=m)"),
)
def _load_offset(tree: TritonTree) -> Iterator[Site]:
    return _off_by_one(tree, "load")


@rule(
    "triton-store-offset-plus1",
    "A store writes to the neighbour.",
    "Constant outputs, if what was in the memory before resembles the answer.",
    body("tl.store(out_ptr + i, x)", "tl.store(out_ptr + i + 1, x)"),
)
def _store_offset(tree: TritonTree) -> Iterator[Site]:
    return _off_by_one(tree, "store", "atomic_add", "atomic_max", "atomic_min")


@rule(
    "triton-pointer-swap",
    "A load reads another of the inputs.",
    "Inputs that are alike: weights of one and biases of zero, a matrix times itself.",
    body(
        "x = tl.load(x_ptr + i)\ny = tl.load(y_ptr + i)",
        "x = tl.load(y_ptr + i)\ny = tl.load(y_ptr + i)",
    ),
)
def _pointer_swap(tree: TritonTree) -> Iterator[Site]:
    for kernel, roles in each(tree):
        for node in kernel.of(ast.Name):
            if isinstance(node.ctx, ast.Load) and node.id not in roles.stored:
                inputs = [name for name in roles.loaded if name not in roles.stored]
                for other in _others(node.id, inputs):
                    yield tree.replace(node, other)


@rule(
    "triton-block-stride-short",
    "Blocks lie one element closer together than they are wide.",
    "One block: the first is where it should be.",
    body(
        "i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)", "i = tl.program_id(0) * (BLOCK - 1) + tl.arange(0, BLOCK)"
    ),
)
def _block_stride_short(tree: TritonTree) -> Iterator[Site]:
    for kernel, roles in each(tree):
        for node in kernel.of(ast.BinOp):
            if not isinstance(node.op, ast.Mult):
                continue
            for place, block in ((node.left, node.right), (node.right, node.left)):
                is_block = isinstance(block, ast.Name) and block.id in roles.constexprs
                if is_block and any(tree.called(inner) == "program_id" for inner in roles.sources(place)):
                    yield tree.replace(block, f"({tree.text(block)} - 1)")


@rule(
    "triton-index-swap",
    "Rows and columns change places in an address or an index.",
    "Square, symmetric data; a shape where both run over the same numbers.",
    body(
        "row, col = tl.arange(0, BLOCK), tl.arange(0, BLOCK)\nx = tl.load(x_ptr + row[:, None] * N + col[None, :])",
        "row, col = tl.arange(0, BLOCK), tl.arange(0, BLOCK)\nx = tl.load(x_ptr + col[:, None] * N + row[None, :])",
    ),
)
def _index_swap(tree: TritonTree) -> Iterator[Site]:
    for kernel, roles in each(tree):
        for node in kernel.of(ast.BinOp):
            above = tree.parent(node)
            if isinstance(above, ast.BinOp) and isinstance(above.op, ast.Add):
                continue  # only whole sums
            names = [
                inner.value
                for inner in ast.walk(node)
                if isinstance(inner, ast.Subscript) and isinstance(inner.value, ast.Name) and roles.is_whole(inner)
            ]
            if isinstance(node.op, ast.Add) and len(names) == 2:
                first, second = sorted(names, key=tree.span)
                if tree.text(first) != tree.text(second):
                    detail = f"`{tree.text(first)}` <-> `{tree.text(second)}` in `{tree.brief(node)}`"
                    yield tree.site(node, detail, (first, tree.text(second)), (second, tree.text(first)))


@rule(
    "triton-broadcast-axis",
    "A vector is laid along the other axis of a block.",
    "Square blocks: the shapes agree, only the values are transposed.",
    body("y = x * w[None, :]", "y = x * w[:, None]"),
)
def _broadcast_axis(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for node in kernel.of(ast.Subscript):
            flipped = {"[:,None]": "[None, :]", "[None,:]": "[:, None]"}
            start, end = tree.span(node.value)[1], tree.span(node)[1]
            index = "".join(tree.source[start:end].split())
            if index in flipped and isinstance(node.value, ast.Name):
                detail = f"`{tree.brief(node)}` -> `{tree.brief(node.value)}{flipped[index]}`"
                yield tree.site(node, detail, ((start, end), flipped[index]))


@rule(
    "triton-argmax-previous-index",
    "The index of an extreme value is one too small.",
    "Where the extreme comes first, if it is cut off at zero; two equal neighbours.",
    body("j = tl.argmax(x, axis=0)", "j = tl.maximum(tl.argmax(x, axis=0) - 1, 0)"),
)
def _argmax_previous(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for call in tree.calls(kernel, "argmax", "argmin"):
            yield tree.replace(call, f"{tree.tl}.maximum({tree.text(call)} - 1, 0)")


@rule(
    "triton-arange-plus1",
    "The lanes of a block start at one.",
    "The last lane is masked off, and the missing first element may change little.",
    body("i = tl.arange(0, BLOCK)", "i = (tl.arange(0, BLOCK) + 1)"),
)
def _arange_plus1(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for call in tree.calls(kernel, "arange"):
            yield tree.replace(call, f"({tree.text(call)} + 1)")


@rule(
    "triton-load-first-element",
    "All lanes load the vector's first element.",
    "Fresh weights and biases, which are all equal.",
    body("w = tl.load(y_ptr + i, mask=m)", "w = tl.load(y_ptr + (i) * 0, mask=m)"),
)
def _load_first(tree: TritonTree) -> Iterator[Site]:
    for kernel, roles in each(tree):
        for call in tree.calls(kernel, "load"):
            place = call.args[0] if call.args else None
            if isinstance(place, ast.BinOp) and isinstance(place.left, ast.Name) and roles.is_pointer(place.left):
                yield tree.replace(place.right, f"({tree.text(place.right)}) * 0")


OPERATORS = tuple(rule.operators)
