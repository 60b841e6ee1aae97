"""Memory: offsets of too few bits, memory that is not set, answers that lie in an input."""

import ast
from collections.abc import Iterator

from ...mutant import Site
from ...triton import TritonTree, argument, shorten
from ...triton_roles import Roles, each
from .rules import Rules, body, host

rule = Rules("memory")


@rule(
    "triton-offset-int32",
    "An offset is computed in 32 bits.",
    "It overflows beyond 2^31 elements only, which no test has.",
    body("o = row.to(tl.int64) * N", "o = row * N"),
)
def _offset_int32(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for call in kernel.of(ast.Call):
            method = call.func
            if not (isinstance(method, ast.Attribute) and method.attr == "to" and len(call.args) == 1):
                continue
            if tree.text(call.args[0]).endswith("int64") and not _stored(tree, call):
                yield tree.replace(call, tree.text(method.value))


def _stored(tree: TritonTree, node: ast.AST) -> bool:
    above = tree.parent(node)
    return isinstance(above, ast.Call) and tree.called(above) == "store"


def _places(tree: TritonTree) -> Iterator[tuple[Roles, ast.Call, ast.BinOp]]:
    """Loads and stores at a base and an offset."""
    for kernel, roles in each(tree):
        for call in tree.calls(kernel, "load", "store"):
            place = call.args[0] if call.args else None
            if isinstance(place, ast.BinOp) and isinstance(place.op, ast.Add) and roles.is_pointer(place.left):
                yield roles, call, place


def _cast_offsets(tree: TritonTree, cast: str) -> Iterator[Site]:
    """Sites that put a cast behind everything that is added to the base of an address."""
    for roles, _, place in _places(tree):
        first = place
        while isinstance(first.left, ast.BinOp) and isinstance(first.left.op, ast.Add):
            first = first.left
        if not any(tree.called(node) == "arange" for node in roles.sources(place)):
            continue
        start = tree.operator_span(first.left, first.right, "+")[1]
        end = tree.span(place)[1]
        offset = tree.source[start:end].strip()
        text = offset if isinstance(place.right, ast.Name) and first is place else f"({offset})"
        yield tree.site(place, f"`{shorten(offset)}` -> `{shorten(text + cast)}`", ((start, end), f" {text}{cast}"))


@rule(
    "triton-offset-int16",
    "An offset is computed in 16 bits.",
    "Tensors of at most 32,768 elements.",
    body(
        "i = tl.arange(0, BLOCK)\nx = tl.load(x_ptr + i)",
        "i = tl.arange(0, BLOCK)\nx = tl.load(x_ptr + i.to(tl.int16))",
    ),
    body(
        "i = tl.arange(0, BLOCK)\nx = tl.load(x_ptr + N * 2 + i)",
        "i = tl.arange(0, BLOCK)\nx = tl.load(x_ptr + (N * 2 + i).to(tl.int16))",
    ),
)
def _offset_int16(tree: TritonTree) -> Iterator[Site]:
    return _cast_offsets(tree, f".to({tree.tl}.int16)")


@rule(
    "triton-offset-fp32",
    "An offset goes through a 32-bit floating-point number.",
    "Exact up to 2^24 elements.",
    body(
        "i = tl.arange(0, BLOCK)\nx = tl.load(x_ptr + i)",
        "i = tl.arange(0, BLOCK)\nx = tl.load(x_ptr + i.to(tl.float32).to(tl.int32))",
    ),
)
def _offset_fp32(tree: TritonTree) -> Iterator[Site]:
    return _cast_offsets(tree, f".to({tree.tl}.float32).to({tree.tl}.int32)")


@rule(
    "triton-vector-tail",
    "A mask holds for groups of four lanes, as with a vectorised access without a tail.",
    "Sizes that are multiples of four; up to three elements are read or written behind the end.",
    body(
        "i = tl.arange(0, BLOCK)\nx = tl.load(x_ptr + i, mask=i < N)",
        "i = tl.arange(0, BLOCK)\nx = tl.load(x_ptr + i, mask=(i // 4 * 4) < N)",
    ),
)
def _vector_tail(tree: TritonTree) -> Iterator[Site]:
    for compare, _ in _lanes(tree):
        yield tree.replace(compare.left, f"({tree.operand(compare.left)} // 4 * 4)")


@rule(
    "triton-vector-tail-drop",
    "A mask leaves the last group of fewer than four lanes out.",
    "Sizes that are multiples of four, as declared shapes nearly always are.",
    body(
        "i = tl.arange(0, BLOCK)\nx = tl.load(x_ptr + i, mask=i < N)",
        "i = tl.arange(0, BLOCK)\nx = tl.load(x_ptr + i, mask=i < (N // 4 * 4))",
    ),
)
def _vector_tail_drop(tree: TritonTree) -> Iterator[Site]:
    for compare, _ in _lanes(tree):
        yield tree.replace(compare.comparators[0], f"({tree.operand(compare.comparators[0])} // 4 * 4)")


def _lanes(tree: TritonTree) -> Iterator[tuple[ast.Compare, Roles]]:
    """Comparisons of a vector of lanes with a size."""
    for kernel, roles in each(tree):
        for node in kernel.of(ast.Compare):
            is_bound = len(node.ops) == 1 and isinstance(node.ops[0], ast.Lt) and roles.is_whole(node.comparators[0])
            if is_bound and any(tree.called(inner) == "arange" for inner in roles.sources(node.left)):
                yield node, roles


@rule(
    "triton-output-uninitialised",
    "Memory that is added to is not set to zero first.",
    "Fresh pages of a device are zero.",
    host("out = torch.zeros(4)", "out = torch.empty(4)"),
)
def _uninitialised(tree: TritonTree) -> Iterator[Site]:
    for call in _torch_calls(tree, "zeros", "zeros_like", "new_zeros"):
        assert isinstance(call.func, ast.Attribute)
        name = call.func.attr
        end = tree.span(call.func)[1]
        new = name.replace("zeros", "empty")
        yield tree.site(call, f"`{name}` -> `{new}` in `{tree.brief(call)}`", ((end - len(name), end), new))


def _torch_calls(tree: TritonTree, *names: str) -> Iterator[ast.Call]:
    for node in tree.host_nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names:
            yield node


@rule(
    "triton-output-in-input",
    "The answer is written over an input.",
    "The values are right; only who uses the input again sees it.",
    host("out = torch.empty_like(x)", "out = x"),
)
def _output_in_input(tree: TritonTree) -> Iterator[Site]:
    for call in _torch_calls(tree, "empty_like", "zeros_like"):
        if len(call.args) == 1 and not call.keywords:
            yield tree.replace(call, tree.text(call.args[0]))


@rule(
    "triton-store-old-value",
    "A store puts back what its address held before.",
    "Fresh memory of zeros that agrees with an answer of zeros.",
    body("tl.store(out_ptr + i, y, mask=m)", "tl.store(out_ptr + i, tl.load(out_ptr + i, mask=m), mask=m)"),
)
def _store_old(tree: TritonTree) -> Iterator[Site]:
    for _, call, place in _places(tree):
        if tree.called(call) == "store" and len(call.args) > 1:
            mask = argument(call, "mask", 2)
            guard = f", mask={tree.text(mask)}" if mask is not None else ""
            yield tree.replace(call.args[1], f"{tree.tl}.load({tree.text(place)}{guard})")


@rule(
    "triton-store-add",
    "A store adds to what its address holds instead of replacing it.",
    "Fresh pages of a device are zero.",
    body("tl.store(out_ptr + i, y, mask=m)", "tl.store(out_ptr + i, y + tl.load(out_ptr + i, mask=m), mask=m)"),
)
def _store_add(tree: TritonTree) -> Iterator[Site]:
    for _, call, place in _places(tree):
        if tree.called(call) == "store" and len(call.args) > 1:
            mask = argument(call, "mask", 2)
            guard = f", mask={tree.text(mask)}" if mask is not None else ""
            old = f"{tree.tl}.load({tree.text(place)}{guard})"
            yield tree.replace(call.args[1], f"{tree.operand(call.args[1])} + {old}")


OPERATORS = tuple(rule.operators)
