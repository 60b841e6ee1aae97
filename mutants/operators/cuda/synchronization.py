"""Synchronisation on CUDA: barriers removed, weakened or moved, values that are shared taken from the thread itself."""

import re
from collections.abc import Iterator

from ...cuda import CudaTree
from ...cuda_roles import excerpt, is_barrier
from ...cuda_syntax import Node
from ...cuda_types import arguments, call_name, index_of, memory_of, number, shared_subscripts, uses
from ...mutant import Example, Operator, Site

REPLACES = {
    "sync-remove": ("sync_removal",),
    "sync2syncwarp": (
        "matmul-after-load-warp-barrier",
        "matmul-after-compute-warp-barrier",
        "groupnorm-sum-store-warp-barrier",
        "groupnorm-sqdev-store-warp-barrier",
        "groupnorm-final-output-warp-barrier",
        "batchnorm-local-stats-warp-barrier",
        "batchnorm-merge-warp-barrier",
        "batchnorm-output-warp-barrier",
    ),
    "shared-denom-use-local": ("shared-sqrt-use-local",),
    "share-removal": ("share_removal",),
    "atom-removal": ("atom_removal",),
}


def _barriers(tree: CudaTree) -> Iterator[Node]:
    return (node for node in tree.nodes("expression_statement") if is_barrier(node))


def _sync_remove(tree: CudaTree) -> Iterator[Site | None]:
    for node in _barriers(tree):
        yield tree.site(f"`{node.text}` removed", node.replaced(";"))


def _sync2syncwarp(tree: CudaTree) -> Iterator[Site | None]:
    for node in _barriers(tree):
        yield tree.site(f"`{node.text}` waits for the warp alone", node.named_children[0].replaced("__syncwarp()"))


def _syncwarp_remove(tree: CudaTree) -> Iterator[Site | None]:
    for node in tree.nodes("expression_statement"):
        if node.named_children and call_name(node.named_children[0]) == "__syncwarp":
            yield tree.site(f"`{node.text}` removed", node.replaced(";"))


def _barrier_before_store(tree: CudaTree) -> Iterator[Site | None]:
    """`s[t] = v; barrier` becomes `barrier; s[t] = v;`."""
    written = {id(node.above("assignment_expression")) for node in shared_subscripts(tree)}
    for node in _barriers(tree):
        before = _sibling(node, -1)
        if before is None or is_barrier(before) or before.type not in ("expression_statement", "if_statement"):
            continue
        stores = [n for n in before.find("assignment_expression") if id(n) in written and _writes_shared(tree, n)]
        if stores and not any(is_barrier(n) for n in before.find("expression_statement")):
            yield tree.site(
                f"the barrier behind `{excerpt(before)}` stands before it",
                before.before(f"{node.text} "),
                node.replaced(";"),
            )


def _writes_shared(tree: CudaTree, node: Node) -> bool:
    left = node.get("left")
    return left is not None and left.type == "subscript_expression" and memory_of(tree, left) == "shared"


def _sibling(node: Node, step: int) -> Node | None:
    """The statement before (-1) or behind (1) a statement in its block."""
    if node.parent is None:
        return None
    around = node.parent.named_children
    place = next(index for index, child in enumerate(around) if child is node) + step
    return around[place] if 0 <= place < len(around) else None


def _use_local(tree: CudaTree) -> Iterator[Site | None]:
    """Reads of a value that one thread shares with all: the reader takes its own variable."""
    for function in tree.functions:
        if not function.device:
            continue
        sources: list[tuple[str, Node]] = []
        for node in function.body.find("assignment_expression"):
            if node.operator == "=" and node.has("left", "right") and node.at("right").type == "identifier":
                name = next((n.text for n in node.at("left").find("identifier")), "")
                variable = function.variable(name, node)
                if variable is not None and (variable.shared or memory_of(tree, node.at("left")) == "shared"):
                    sources.append((name, node.at("right")))
        for node in function.body.find("identifier", "subscript_expression"):
            if node.field in ("left", "declarator") or (node.field == "argument" and node.type == "identifier"):
                continue
            if node.type == "subscript_expression":
                index = index_of(node)
                if index is None or number(index) != 0 or node.field == "argument":
                    continue
            name = next((n.text for n in node.find("identifier")), "")
            variable = function.variable(name, node)
            scalar = variable is not None and variable.shared and not variable.array
            if node.type == "identifier" and not scalar:
                continue
            local = next((v for n, v in reversed(sources) if n == name and v.end < node.start), None)
            if local is not None:
                yield tree.site(
                    f"`{node.text}` -> `{local.text}`, the thread's own, in `{excerpt(node.statement)}`",
                    node.replaced(local.text),
                )


_COUNT = re.compile(r"(?i)(?:n|cnt|count|num|total|weight|w)(?:_?[a-z0-9]{0,6})?")


def _count_early(tree: CudaTree) -> Iterator[Site | None]:
    """In the merge of two Welford states the count is updated before the mean and the squares that need the old one."""
    for node in tree.nodes("expression_statement"):
        change = node.named_children[0] if node.named_children else node
        if (
            change.type != "assignment_expression"
            or change.operator not in ("=", "+=")
            or not change.has("left", "right")
        ):
            continue
        name = change.at("left").text
        if (
            change.at("left").type != "identifier"
            or not _COUNT.fullmatch(name)
            or number(change.at("right")) is not None
        ):
            continue
        first, before = None, _sibling(node, -1)
        while before is not None and before.type == "expression_statement" and before.named_children:
            earlier = before.named_children[0]
            if earlier.type != "assignment_expression" or not earlier.has("left", "right"):
                break
            if uses(change.at("right"), earlier.at("left").text):
                break
            if uses(earlier.at("right"), name) and earlier.at("left").text != name:
                first = before
            before = _sibling(before, -1)
        if first is not None:
            yield tree.site(
                f"`{excerpt(node)}` before `{excerpt(first)}`", first.before(f"{node.text} "), node.replaced(";")
            )


def _share_removal(tree: CudaTree) -> Iterator[Site | None]:
    for node in tree.nodes("declaration"):
        words = [child for child in node.children if child.text == "__shared__"]
        if words and not any(child.text == "extern" for child in node.children):
            yield tree.site(f"`{excerpt(node)}` is no longer shared", words[0].replaced(""))


_ATOMICS = {"atomicAdd": "{0} += {1}", "atomicMax": "{0} = max({0}, {1})", "atomicMin": "{0} = min({0}, {1})"}


def _atom_removal(tree: CudaTree) -> Iterator[Site | None]:
    for node in tree.nodes("call_expression"):
        values = arguments(node)
        form = _ATOMICS.get(call_name(node))
        alone = node.parent is not None and node.parent.type == "expression_statement"
        if form is None or len(values) != 2 or not alone:
            continue
        place = values[0].bare
        direct = place.type == "pointer_expression" and place.operator == "&" and place.has("argument")
        target = place.at("argument").text if direct else f"*({values[0].text})"
        yield tree.site(f"`{excerpt(node)}` is not atomic", node.replaced(form.format(target, values[1].text)))


_RACE = "Blocks are small and start together, so the threads happen to keep pace and the race is rarely lost."

OPERATORS = (
    Operator(
        name="sync-remove",
        family="synchronization",
        backend="cuda",
        summary="A barrier of the block is removed.",
        escapes=_RACE,
        examples=(
            Example("s[t] = v; __syncthreads(); v = s[0];", "s[t] = v; ; v = s[0];"),
            Example("s[t] = v; block.sync(); v = s[0];", "s[t] = v; ; v = s[0];"),
        ),
        find=_sync_remove,
    ),
    Operator(
        name="sync2syncwarp",
        family="synchronization",
        backend="cuda",
        summary="A barrier of the block becomes one of the warp.",
        escapes=_RACE,
        examples=(Example("s[t] = v; __syncthreads(); v = s[0];", "s[t] = v; __syncwarp(); v = s[0];"),),
        find=_sync2syncwarp,
    ),
    Operator(
        name="syncwarp-remove",
        family="synchronization",
        backend="cuda",
        summary="A barrier of the warp is removed.",
        escapes="The lanes of a warp usually run in step anyway.",
        examples=(Example("s[t] = v; __syncwarp(); v = s[t ^ 1];", "s[t] = v; ; v = s[t ^ 1];"),),
        find=_syncwarp_remove,
    ),
    Operator(
        name="reduction-barrier-move-before-store",
        family="synchronization",
        backend="cuda",
        summary="A barrier stands before the store to shared memory that it should follow.",
        escapes=_RACE,
        examples=(
            Example(
                "__shared__ float s[64]; s[t] = v; __syncthreads(); v = s[0];",
                "__shared__ float s[64]; __syncthreads(); s[t] = v; ; v = s[0];",
            ),
        ),
        find=_barrier_before_store,
    ),
    Operator(
        name="shared-denom-use-local",
        family="synchronization",
        backend="cuda",
        summary="A thread uses its own partial result where it should read the one that the block shares.",
        escapes="One warp or one thread does all the work at this size, or partial results are alike.",
        examples=(
            Example(
                "__shared__ float s[64]; s[t] = v; __syncthreads(); y[t] = x[t] / s[0];",
                "__shared__ float s[64]; s[t] = v; __syncthreads(); y[t] = x[t] / v;",
            ),
            Example(
                "__shared__ float total; if (t == 0) total = v; __syncthreads(); y[t] = x[t] / total;",
                "__shared__ float total; if (t == 0) total = v; __syncthreads(); y[t] = x[t] / v;",
            ),
        ),
        find=_use_local,
    ),
    Operator(
        name="welford-count-merge-early",
        family="synchronization",
        backend="cuda",
        summary="Merging two running statistics, the count is updated before what needs the old one.",
        escapes="Counts are equal and large, so the weights are nearly right; means of random data are alike.",
        examples=(
            Example(
                "mean += delta * other / (count + other); count += other;",
                "count += other; mean += delta * other / (count + other); ;",
            ),
        ),
        find=_count_early,
    ),
    Operator(
        name="share-removal",
        family="synchronization",
        backend="cuda",
        summary="An array that the block shares becomes each thread's own.",
        escapes="Results are so small, or so alike, that what uninitialised registers hold passes.",
        examples=(Example("__shared__ float s[64];", " float s[64];"),),
        find=_share_removal,
    ),
    Operator(
        name="atom-removal",
        family="synchronization",
        backend="cuda",
        summary="An atomic update becomes a load and a store.",
        escapes="With one block, or few collisions, no update is lost.",
        examples=(
            Example("atomicAdd(&out[j], v);", "out[j] += v;"),
            Example("atomicAdd(out, v);", "*(out) += v;"),
        ),
        find=_atom_removal,
    ),
)
