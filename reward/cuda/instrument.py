"""Device code for strict runs on a GPU: what a lucky run hides, made to show.

    warps          pause at the head of a kernel and behind each barrier, each for a time of its own, so that what only
                   a missing barrier keeps apart comes in another order
    shared memory  holds NaN and large numbers where nobody has written, and ends in a guard zone; threads that leave a
                   kernel look whether somebody wrote into it
    locals         hold a large negative pattern where nobody has written (the CPU emulator's as well)

A correct kernel computes the same with all of it. What is put in is `include/kernelward/strict.h`; timings are
without meaning, so speed is measured on the code as it was written. That delays where threads synchronise bring up
orders which a scheduler hardly ever takes is from Cuzz (Burckhardt et al., ASPLOS 2010).
"""

import re
from collections.abc import Iterator

import tree_sitter

from .lexical import Edit, LineMap, apply_edits
from .source_tree import SourceTree, walk

#: Behind every include: barriers of the candidate's own text, and of no header's.
BARRIERS = "#define __syncthreads() kw::syncthreads(__LINE__)"

_BLOCKS = frozenset(("compound_statement", "case_statement", "preproc_if", "preproc_ifdef", "preproc_else"))
_KEPT = re.compile(
    r"\b(?:static|extern|const|constexpr|constinit|thread_local|typedef|using|auto|__constant__|__device__|__shared__"
    r"|__restrict__)\b"
)
_SHARED = re.compile(r"\b__shared__\b")
_MEETS = re.compile(r"(?:[\w.]+\s*\.\s*sync\s*\(\s*\)|(?:\w+\s*::\s*)*sync\s*\(\s*\w+\s*\))\s*;")
#: Statements in which a warp may wait for others. Behind one of them the others must not be made to wait for it.
_MAY_WAIT = re.compile(r"\b(?:while|do|goto|asm|__asm__)\b")
_ON_DEVICE = re.compile(r"\b__(?:global|device)__\b")


def instrumented(device: str) -> str:
    """The device's text with pauses, poison and guards; its line numbers are kept.

    What the parser does not take for a declaration stays as it is.
    """
    tree = SourceTree(device, LineMap())
    edits: list[Edit] = []
    for node in walk(tree.tree.root_node):
        within = node.parent is not None and node.parent.type in _BLOCKS
        if node.type == "function_definition":
            edits.extend(_head_and_end(tree, node))
        elif node.type == "return_statement":
            edits.extend(_leaving(tree, node))
        elif node.type == "declaration" and within:
            edits.extend(_behind(tree, node))
        elif node.type == "expression_statement" and within and _MEETS.fullmatch(tree.text.of(node)):
            end = tree.text.span(node)[1]
            edits.append(Edit(end, end, " kw::pause(__LINE__);"))
    return apply_edits(device, edits)


def unset_locals(text: str) -> list[Edit]:
    """Poison for the locals of device functions alone, as edits of any CUDA text without comments."""
    tree = SourceTree(text, LineMap())
    edits: list[Edit] = []
    for node in walk(tree.tree.root_node):
        if node.type == "declaration" and node.parent is not None and node.parent.type in _BLOCKS:
            outer = _outermost(node)
            body = outer.child_by_field_name("body") if outer is not None else None
            if outer is not None and body is not None and _ON_DEVICE.search(_before(tree, outer, body)):
                edits.extend(edit for edit in _behind(tree, node) if "unset_shared" not in edit.replacement)
    return edits


def _head_and_end(tree: SourceTree, function: tree_sitter.Node) -> Iterator[Edit]:
    body = function.child_by_field_name("body")
    if body is not None and _is_kernel(tree, function):
        start, end = tree.text.span(body)
        yield Edit(start + 1, start + 1, " kw::enter(__LINE__);")
        yield Edit(end - 1, end - 1, " kw::leave(); ")


def _leaving(tree: SourceTree, statement: tree_sitter.Node) -> Iterator[Edit]:
    function = _function(statement)
    if function is not None and _is_kernel(tree, function):
        start, end = tree.text.span(statement)
        yield Edit(start, start, "{ kw::leave(); ")
        yield Edit(end, end, " }")


def _is_kernel(tree: SourceTree, function: tree_sitter.Node) -> bool:
    body = function.child_by_field_name("body")
    if function.type != "function_definition" or body is None or body.type != "compound_statement":
        return False
    return "__global__" in _before(tree, function, body)


def _behind(tree: SourceTree, declaration: tree_sitter.Node) -> Iterator[Edit]:
    """Poison for what a declaration leaves unset."""
    names = [_unset(tree, node) for node in declaration.children_by_field_name("declarator")]
    found = [name for name in names if name]
    if not found:
        return
    head = _before(tree, declaration, declaration.children_by_field_name("declarator")[0])
    function = _function(declaration)
    if function is None or _is_constexpr(tree, function):
        return
    end = tree.text.span(declaration)[1]
    if _SHARED.search(head):
        body = function.child_by_field_name("body")
        outermost = body is not None and declaration.parent is not None and declaration.parent.id == body.id
        if "extern" in head or not outermost or not _is_kernel(tree, function) or body is None:
            return
        if not _MAY_WAIT.search(tree.code[tree.text.span(body)[0] : tree.text.span(declaration)[0]]):
            yield Edit(end, end, "".join(f" kw::unset_shared({name});" for name in found))
    elif not _KEPT.search(head):
        yield Edit(end, end, "".join(f" kw::unset({name});" for name in found))


def _unset(tree: SourceTree, declarator: tree_sitter.Node) -> str:
    """The name that a declarator without initialiser declares; "" where it is anything but a variable or an array."""
    node: tree_sitter.Node | None = declarator
    while node is not None and node.type in ("array_declarator", "pointer_declarator"):
        if node.type == "array_declarator" and node.child_by_field_name("size") is None:
            return ""
        node = node.child_by_field_name("declarator")
    return tree.text.of(node) if node is not None and node.type == "identifier" else ""


def _function(node: tree_sitter.Node) -> tree_sitter.Node | None:
    """The function, or the lambda, that a statement stands in."""
    current = node.parent
    while current is not None and current.type not in ("function_definition", "lambda_expression"):
        current = current.parent
    return current


def _outermost(node: tree_sitter.Node) -> tree_sitter.Node | None:
    """The function that a statement stands in, lambdas and local classes left."""
    found = None
    current = node.parent
    while current is not None:
        if current.type == "function_definition":
            found = current
        current = current.parent
    return found


def _is_constexpr(tree: SourceTree, function: tree_sitter.Node) -> bool:
    body = function.child_by_field_name("body")
    return body is not None and "constexpr" in _before(tree, function, body)


def _before(tree: SourceTree, node: tree_sitter.Node, inner: tree_sitter.Node) -> str:
    """The text of a node up to one of its parts."""
    return tree.code[tree.text.span(node)[0] : tree.text.span(inner)[0]]
