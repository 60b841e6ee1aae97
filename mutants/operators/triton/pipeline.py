"""Loops that load tiles ahead: the wrong tile, an address that is not advanced, and schedules that change nothing.

Triton's compiler places the copies and waits of a pipeline itself. What a kernel can get wrong is which tile a turn
works on; `num_stages` and `num_warps` must not change a result at all.
"""

import ast
from collections.abc import Iterator
from itertools import chain

from ...mutant import Site
from ...triton import TritonTree
from ...triton_roles import Roles, each
from .rules import Rules, body, host

rule = Rules("pipeline")


def _options(tree: TritonTree, name: str) -> Iterator[tuple[ast.Constant, int]]:
    """Literals given for a compile option: in launches, configurations and pipelined ranges."""
    configurations = (
        node
        for node in ast.walk(tree.module)
        if isinstance(node, ast.Call)
        and (isinstance(node.func, ast.Attribute) and node.func.attr in ("Config", "range"))
    )
    for call in chain((launch.call for launch in tree.launches), configurations):
        for item in call.keywords:
            if item.arg == name and isinstance(item.value, ast.Constant) and isinstance(item.value.value, int):
                yield item.value, item.value.value


@rule(
    "triton-num-stages",
    "A loop is pipelined one stage deeper, or one less.",
    "Expected to be equivalent: it changes the schedule and no value.",
    host("kernel[(n,)](x, out, n, m, BLOCK=64, num_stages=2)", "kernel[(n,)](x, out, n, m, BLOCK=64, num_stages=1)"),
)
def _num_stages(tree: TritonTree) -> Iterator[Site]:
    for node, stages in _options(tree, "num_stages"):
        for other in (stages - 1, stages + 1):
            if other >= 1:
                yield tree.replace(node, str(other))


@rule(
    "triton-num-warps",
    "A program has half, or twice, as many warps.",
    "Expected to be equivalent, but for the order of sums; a wrong barrier of the compiler would show here.",
    host("kernel[(n,)](x, out, n, m, BLOCK=64, num_warps=4)", "kernel[(n,)](x, out, n, m, BLOCK=64, num_warps=2)"),
)
def _num_warps(tree: TritonTree) -> Iterator[Site]:
    for node, warps in _options(tree, "num_warps"):
        for other in (warps // 2, warps * 2):
            if 1 <= other <= 32:
                yield tree.replace(node, str(other))


def _turns(tree: TritonTree) -> Iterator[tuple[Roles, ast.For, str, str]]:
    """Loops over blocks with the name of their counter and what it advances by."""
    for kernel, roles in each(tree):
        for loop in kernel.of(ast.For):
            call = loop.iter
            if isinstance(loop.target, ast.Name) and isinstance(call, ast.Call) and call.args:
                step = tree.text(call.args[2]) if len(call.args) == 3 else "1"
                yield roles, loop, loop.target.id, step


def _tile_of_turn(tree: TritonTree, template: str) -> Iterator[Site]:
    """Sites that let the first use of a counter stand for another turn.

    Args:
        template: the new text, of `k` and `step`.
    """
    for _, loop, name, step in _turns(tree):
        uses = [
            node
            for statement in loop.body
            for node in ast.walk(statement)
            if isinstance(node, ast.Name) and node.id == name and tree.loop_of(node) is loop
        ]
        for node in sorted(uses, key=tree.span):
            yield tree.replace(node, template.format(k=name, step=step))


@rule(
    "triton-stage-behind",
    "A turn works on the tile of the turn before.",
    "Loops of one turn; the first turn is right.",
    body(
        "for k in range(0, K, BLOCK):\n    x = tl.load(x_ptr + k + i)",
        "for k in range(0, K, BLOCK):\n    x = tl.load(x_ptr + tl.maximum(k - (BLOCK), 0) + i)",
    ),
)
def _stage_behind(tree: TritonTree) -> Iterator[Site]:
    return _tile_of_turn(tree, f"{tree.tl}.maximum({{k}} - ({{step}}), 0)")


@rule(
    "triton-stage-ahead",
    "A turn works on the tile of the next turn.",
    "Constant data; where the mask lets the last turn read zeros, one tile of many is lost.",
    body(
        "for k in range(0, K, BLOCK):\n    x = tl.load(x_ptr + k + i)",
        "for k in range(0, K, BLOCK):\n    x = tl.load(x_ptr + (k + (BLOCK)) + i)",
    ),
)
def _stage_ahead(tree: TritonTree) -> Iterator[Site]:
    return _tile_of_turn(tree, "({k} + ({step}))")


@rule(
    "triton-stage-alternate",
    "Two buffers in turn, but the second is never filled: every other turn works on an old tile.",
    "Loops of one turn.",
    body(
        "for k in range(0, K, BLOCK):\n    x = tl.load(x_ptr + k + i)",
        "for k in range(0, K, BLOCK):\n    x = tl.load(x_ptr + (k // (2 * (BLOCK)) * (2 * (BLOCK))) + i)",
    ),
)
def _stage_alternate(tree: TritonTree) -> Iterator[Site]:
    return _tile_of_turn(tree, "({k} // (2 * ({step})) * (2 * ({step})))")


def _advances(tree: TritonTree) -> Iterator[tuple[ast.stmt, ast.expr, ast.expr]]:
    """Statements of a loop that move an address on, the address, and what it moves by."""
    for kernel, roles in each(tree):
        for node in kernel.of(ast.AugAssign, ast.Assign):
            if tree.loop_of(node) is None:
                continue
            if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and roles.is_pointer(node.target):
                yield node, node.target, node.value
            elif isinstance(node, ast.Assign) and tree.called(node.value) == "advance":
                assert isinstance(node.value, ast.Call)
                if len(node.value.args) == 2:
                    yield node, node.targets[0], node.value.args[1]


@rule(
    "triton-advance-drop",
    "An address stays where it is.",
    "Loops of one turn.",
    body(
        "for k in range(K):\n    x = tl.load(x_ptr + i)\n    x_ptr += BLOCK",
        "for k in range(K):\n    x = tl.load(x_ptr + i)\n    x_ptr += 0 * (BLOCK)",
    ),
)
def _advance_drop(tree: TritonTree) -> Iterator[Site]:
    for statement, address, amount in _advances(tree):
        if isinstance(statement, ast.AugAssign):
            yield tree.replace(amount, f"0 * ({tree.text(amount)})")
        elif isinstance(statement, ast.Assign):
            yield tree.replace(statement.value, tree.text(address))


@rule(
    "triton-advance-double",
    "An address moves on twice as far.",
    "Loops of one turn.",
    body(
        "for k in range(K):\n    x = tl.load(x_ptr + i)\n    x_ptr += BLOCK",
        "for k in range(K):\n    x = tl.load(x_ptr + i)\n    x_ptr += 2 * (BLOCK)",
    ),
)
def _advance_double(tree: TritonTree) -> Iterator[Site]:
    for _, _, amount in _advances(tree):
        if isinstance(amount, ast.Tuple):
            doubled = ", ".join(f"2 * ({tree.text(item)})" for item in amount.elts)
            yield tree.replace(amount, f"({doubled},)")
        else:
            yield tree.replace(amount, f"2 * ({tree.text(amount)})")


@rule(
    "triton-advance-early",
    "An address moves on before its tile is read.",
    "Constant data, and tiles beyond the end that read as zeros.",
    body(
        "for k in range(K):\n    x = tl.load(x_ptr + i)\n    x_ptr += BLOCK",
        "for k in range(K):\n    x_ptr += BLOCK; x = tl.load(x_ptr + i)\n    x_ptr += 0",
    ),
)
def _advance_early(tree: TritonTree) -> Iterator[Site]:
    for statement, address, _ in _advances(tree):
        loop = tree.loop_of(statement)
        if loop is None:
            continue
        start = tree.span(loop.body[0])[0]
        name = tree.text(address)
        idle = f"{name} += 0" if isinstance(statement, ast.AugAssign) else f"{name} = {name}"
        if loop.body[0] is not statement:
            detail = f"`{tree.brief(statement)}` at the beginning of the loop"
            yield tree.site(statement, detail, ((start, start), f"{tree.text(statement)}; "), (statement, idle))


OPERATORS = tuple(rule.operators)
