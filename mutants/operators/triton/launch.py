"""Faults in the host code that launches kernels: the grid, the block size, the order of arguments."""

import ast
from collections.abc import Iterator
from itertools import pairwise, takewhile

from ...mutant import Site
from ...triton import Launch, TritonTree
from ...triton_roles import roles
from .rules import Rules, host

boundary = Rules("boundary")
indexing = Rules("indexing")

REPLACES = {
    "triton-ceil2floor": ("ceil2floor-lit",),
    "triton-launch-block-halve": ("alloc_decrement",),
    "triton-launch-argument-swap": ("alloc_swap",),
    "triton-grid-plus1": ("alloc_increment",),
}


def _cdivs(tree: TritonTree) -> Iterator[ast.Call]:
    for node in tree.host_nodes:
        if isinstance(node, ast.Call) and tree.is_cdiv(node):
            yield node


@boundary(
    "triton-ceil2floor",
    "A number of programs is rounded down.",
    "Sizes that are multiples of the block, as declared shapes often are.",
    host("grid = (triton.cdiv(n, 64),)", "grid = (((n) // (64)),)"),
)
def _ceil2floor(tree: TritonTree) -> Iterator[Site]:
    for call in _cdivs(tree):
        yield tree.replace(call, f"(({tree.text(call.args[0])}) // ({tree.text(call.args[1])}))")


@boundary(
    "triton-grid-minus1",
    "The last program is not launched, unless it is the only one.",
    "A last block that is nearly empty; means, to which one block of many adds little.",
    host("grid = (triton.cdiv(n, 64),)", "grid = (max(1, triton.cdiv(n, 64) - 1),)"),
)
def _grid_minus1(tree: TritonTree) -> Iterator[Site]:
    for call in _cdivs(tree):
        yield tree.replace(call, f"max(1, {tree.text(call)} - 1)")


@boundary(
    "triton-grid-plus1",
    "One program too many is launched.",
    "Masks make it do nothing; where there are none it writes behind the end.",
    host("grid = (triton.cdiv(n, 64),)", "grid = ((triton.cdiv(n, 64) + 1),)"),
)
def _grid_plus1(tree: TritonTree) -> Iterator[Site]:
    for call in _cdivs(tree):
        yield tree.replace(call, f"({tree.text(call)} + 1)")


@boundary(
    "triton-grid-block-double",
    "The grid counts blocks of twice the size.",
    "Problems of one block.",
    host("grid = (triton.cdiv(n, 64),)", "grid = (triton.cdiv(n, 2 * (64)),)"),
)
def _grid_block_double(tree: TritonTree) -> Iterator[Site]:
    for call in _cdivs(tree):
        yield tree.replace(call.args[1], f"2 * ({tree.text(call.args[1])})")


@boundary(
    "triton-launch-block-halve",
    "A block that should hold a whole row holds the smaller half of it.",
    "Sizes far below the next power of two cannot hide it; what hides it is a tolerance on sums.",
    host("BLOCK = triton.next_power_of_2(n)", "BLOCK = (triton.next_power_of_2(n) // 2)"),
)
def _block_halve(tree: TritonTree) -> Iterator[Site]:
    for node in tree.host_nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "next_power_of_2":
            yield tree.replace(node, f"({tree.text(node)} // 2)")


def _arguments(launch: Launch) -> list[tuple[str, ast.expr]]:
    """Positional arguments by parameter, up to the first that stands for several."""
    names = [item.name for item in launch.kernel.parameters] if launch.kernel else []
    plain = takewhile(lambda value: not isinstance(value, ast.Starred), launch.call.args)
    return list(zip(names, plain, strict=False))


@boundary(
    "triton-size-minus1",
    "A kernel is told a size that is one too small.",
    "The last element of many, or one term of a long sum.",
    host("kernel[(1,)](x, out, n, m, BLOCK=64)", "kernel[(1,)](x, out, n - 1, m, BLOCK=64)"),
)
def _size_minus1(tree: TritonTree) -> Iterator[Site]:
    for launch in tree.launches:
        if launch.kernel is None:
            continue
        known = roles(tree, launch.kernel)
        for name, value in _arguments(launch):
            if name in known.bounds:
                yield tree.replace(value, f"{tree.operand(value)} - 1")


@indexing(
    "triton-grid-axes-swap",
    "Two axes of the grid change places.",
    "Square grids.",
    host("kernel[(n, m)](x, out, n, m, BLOCK=64)", "kernel[(m, n)](x, out, n, m, BLOCK=64)"),
)
def _grid_axes(tree: TritonTree) -> Iterator[Site]:
    for launch in tree.launches:
        for first, second in pairwise(launch.grid):
            if tree.text(first) != tree.text(second):
                detail = f"`{tree.brief(first)}` <-> `{tree.brief(second)}` in the grid"
                yield tree.site(first, detail, (first, tree.text(second)), (second, tree.text(first)))


@indexing(
    "triton-launch-argument-swap",
    "Two neighbouring arguments of a launch change places.",
    "Square shapes, weights and biases that look alike, equal strides.",
    host("kernel[(1,)](x, out, n, m, BLOCK=64)", "kernel[(1,)](x, out, m, n, BLOCK=64)"),
)
def _argument_swap(tree: TritonTree) -> Iterator[Site]:
    for launch in tree.launches:
        if launch.kernel is None:
            continue
        known = roles(tree, launch.kernel)
        for (first_name, first), (second_name, second) in pairwise(_arguments(launch)):
            inputs = [name for name in known.loaded if name not in known.stored]
            alike = any(first_name in group and second_name in group for group in (known.sizes, inputs))
            if alike and tree.text(first) != tree.text(second):
                detail = f"`{tree.brief(first)}` <-> `{tree.brief(second)}` in a launch"
                yield tree.site(first, detail, (first, tree.text(second)), (second, tree.text(first)))


OPERATORS = (*boundary.operators, *indexing.operators)
