"""Updates that are not atomic and launches in the wrong order; barriers do not exist in Triton's language."""

import ast
from collections.abc import Iterator
from itertools import pairwise

from ...mutant import Site
from ...triton import Launch, TritonTree, argument
from ...triton_roles import each, mask_of
from .rules import Rules, body, host

rule = Rules("synchronization")

REPLACES = {"triton-atomic-rmw-split": ("atom_removal",), "triton-atomic-add-to-store": ("welford-count-merge-early",)}

_COMBINE = {
    "atomic_add": "{old} + {new}",
    "atomic_max": "{tl}.maximum({old}, {new})",
    "atomic_min": "{tl}.minimum({old}, {new})",
}


@rule(
    "triton-atomic-rmw-split",
    "An atomic update becomes a load and a store.",
    "Programs that run one after the other, as on few multiprocessors or in an interpreter, never lose an update.",
    body(
        "tl.atomic_add(out_ptr, s, mask=m)",
        "tl.store(out_ptr, tl.load(out_ptr, mask=m) + s, mask=m)",
    ),
)
def _rmw_split(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for call in tree.calls(kernel, *_COMBINE):
            if len(call.args) < 2 or not isinstance(tree.parent(call), ast.Expr):
                continue
            mask = mask_of(tree, call)
            guard = f", mask={tree.text(mask)}" if mask is not None else ""
            place, new = tree.text(call.args[0]), tree.operand(call.args[1])
            old = f"{tree.tl}.load({place}{guard})"
            value = _COMBINE[tree.called(call) or ""].format(old=old, new=new, tl=tree.tl)
            yield tree.replace(call, f"{tree.tl}.store({place}, {value}{guard})")


@rule(
    "triton-atomic-add-to-store",
    "An atomic update becomes a store: the last program wins.",
    "Problems of one program.",
    body("tl.atomic_add(out_ptr, s, mask=m)", "tl.store(out_ptr, s, mask=m)"),
)
def _add_to_store(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for call in tree.calls(kernel, *_COMBINE):
            if len(call.args) < 2 or not isinstance(tree.parent(call), ast.Expr):
                continue
            mask = mask_of(tree, call)
            guard = f", mask={tree.text(mask)}" if mask is not None else ""
            place, new = tree.text(call.args[0]), tree.text(call.args[1])
            yield tree.replace(call, f"{tree.tl}.store({place}, {new}{guard})")


@rule(
    "triton-atomic-scope",
    "An atomic update is atomic among one program's threads only.",
    "Hardware mostly does the same; expected to be equivalent in an interpreter.",
    body("tl.atomic_add(out_ptr, s)", 'tl.atomic_add(out_ptr, s, scope="cta")'),
)
def _atomic_scope(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for call in tree.calls(kernel, *_COMBINE, "atomic_cas", "atomic_xchg"):
            if argument(call, "scope") is None:
                end = tree.span(call)[1] - 1
                yield tree.site(call, f"scope of one program in `{tree.brief(call)}`", ((end, end), ', scope="cta"'))


@rule(
    "triton-store-to-shared-slot",
    "Programs leave their partial results in one place instead of one place each.",
    "Problems of one program; a second kernel then reads what memory held before.",
    body("pid = tl.program_id(0)\ntl.store(out_ptr + pid, s)", "pid = tl.program_id(0)\ntl.store(out_ptr, s)"),
)
def _shared_slot(tree: TritonTree) -> Iterator[Site]:
    for kernel, roles in each(tree):
        for call in tree.calls(kernel, "store"):
            place = call.args[0] if call.args else None
            if not (isinstance(place, ast.BinOp) and isinstance(place.left, ast.Name) and roles.is_pointer(place.left)):
                continue
            inside = list(roles.sources(place.right))
            if any(tree.called(n) == "program_id" for n in inside) and not any(
                tree.called(n) == "arange" for n in inside
            ):
                yield tree.replace(place, tree.text(place.left))


def _launch_statements(tree: TritonTree) -> Iterator[tuple[ast.Expr, Launch]]:
    for launch in tree.launches:
        statement = tree.parent(launch.call)
        if isinstance(statement, ast.Expr):
            yield statement, launch


@rule(
    "triton-launch-order",
    "Two launches change places: the second kernel reads what the first has not written yet.",
    "Memory that still holds an earlier run's results.",
    host(
        "def run(x, t, out):\n    kernel[(8,)](x, t, 8, 1, BLOCK=8)\n    kernel[(1,)](t, out, 8, 1, BLOCK=8)",
        "def run(x, t, out):\n    kernel[(1,)](t, out, 8, 1, BLOCK=8)\n    kernel[(8,)](x, t, 8, 1, BLOCK=8)",
    ),
)
def _launch_order(tree: TritonTree) -> Iterator[Site]:
    statements = list(_launch_statements(tree))
    for (first, _), (second, _) in pairwise(statements):
        if _adjacent(tree, first, second):
            detail = f"`{tree.brief(second)}` before `{tree.brief(first)}`"
            yield tree.site(first, detail, (first, tree.text(second)), (second, tree.text(first)))


def _adjacent(tree: TritonTree, first: ast.stmt, second: ast.stmt) -> bool:
    """Whether both stand in one block, with nothing between that the second needs."""
    above = tree.parent(first)
    block = getattr(above, "body", [])
    if above is not tree.parent(second) or first not in block or second not in block:
        return False
    between = block[block.index(first) + 1 : block.index(second)]
    made = {
        node.id
        for item in between
        for node in ast.walk(item)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    needed = {node.id for node in ast.walk(second) if isinstance(node, ast.Name)}
    return not made & needed


@rule(
    "triton-launch-drop",
    "One of several launches does not take place.",
    "Memory that still holds an earlier run's results.",
    host(
        "def run(x, t, out):\n    kernel[(8,)](x, t, 8, 1, BLOCK=8)\n    kernel[(1,)](t, out, 8, 1, BLOCK=8)",
        "def run(x, t, out):\n    pass\n    kernel[(1,)](t, out, 8, 1, BLOCK=8)",
    ),
)
def _launch_drop(tree: TritonTree) -> Iterator[Site]:
    statements = list(_launch_statements(tree))
    if len(statements) > 1:
        for statement, _ in statements:
            yield tree.replace(statement, "pass")


@rule(
    "triton-atomic-twice",
    "Every program adds its share twice.",
    "Shares of zero; results in which a factor of two cancels.",
    body("tl.atomic_add(out_ptr, s)", "tl.atomic_add(out_ptr, s); tl.atomic_add(out_ptr, s)"),
)
def _atomic_twice(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for call in tree.calls(kernel, "atomic_add"):
            if isinstance(tree.parent(call), ast.Expr):
                yield tree.replace(call, f"{tree.text(call)}; {tree.text(call)}")


@rule(
    "triton-atomic-first-program-only",
    "Only the first program's update is made.",
    "Problems of one program, and means that concentrate: a part's mean is nearly the whole's.",
    body("tl.atomic_add(out_ptr, s)", "tl.atomic_add(out_ptr, s, mask=tl.program_id(0) == 0)"),
)
def _atomic_first(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for call in tree.calls(kernel, "atomic_add"):
            if mask_of(tree, call) is None:
                end = tree.span(call)[1] - 1
                detail = f"first program only in `{tree.brief(call)}`"
                yield tree.site(call, detail, ((end, end), f", mask={tree.tl}.program_id(0) == 0"))


OPERATORS = tuple(rule.operators)
