"""Syntax trees of Triton candidates, for operators to search and edit.

The tree is Python's own. Kernels are the functions that `triton.jit` decorates, under any other decorators; launches
are the calls `kernel[grid](...)` of the host code. `triton_roles` has what operators recognise beyond syntax.
"""

import ast
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from ..suites.python_syntax import parse
from .mutant import Edit, Site

_NEWLINE = re.compile(r"\r\n|\r|\n")
_BLANK_OR_COMMENT = re.compile(r"(?:\s|#[^\r\n]*|\\\r?\n)*")
_ATOMS = (ast.Name, ast.Constant, ast.Call, ast.Attribute, ast.Subscript, ast.Tuple, ast.List, ast.Dict)
_LOOPS = (ast.For, ast.While)

N = TypeVar("N", bound=ast.AST)

Change = tuple[ast.AST | tuple[int, int], str]
"""A node, or the offsets `start, end`, and the text that takes its place."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a kernel.

    Attributes:
        name: as declared.
        constexpr: whether it is annotated as `tl.constexpr`.
    """

    name: str
    constexpr: bool


@dataclass(frozen=True)
class Kernel:
    """A function that `triton.jit` compiles.

    Attributes:
        node: its definition.
        parameters: in order.
        nodes: everything in its body, outermost first, without what is inside formatted strings.
    """

    node: ast.FunctionDef
    parameters: tuple[Parameter, ...]
    nodes: tuple[ast.AST, ...]

    @property
    def name(self) -> str:
        """The function's name."""
        return self.node.name

    def of(self, *kinds: type[N]) -> Iterator[N]:
        """Nodes of these kinds."""
        for node in self.nodes:
            if isinstance(node, kinds):
                yield node


@dataclass(frozen=True)
class Launch:
    """A call `kernel[grid](...)`.

    Attributes:
        call: the call.
        kernel: what is launched; None where it is defined elsewhere.
        grid: elements of the grid, through a name and a lambda; empty where they cannot be told.
    """

    call: ast.Call
    kernel: Kernel | None
    grid: tuple[ast.expr, ...]


class TritonTree:
    """The syntax tree of a candidate.

    Attributes:
        source: text of the candidate's file.
        module: its tree.
    """

    def __init__(self, source: str) -> None:
        """Parse.

        Raises:
            ValueError: `source` is not Python.
        """
        self.source = source
        try:
            self.module = parse(source)
        except (SyntaxError, RecursionError, MemoryError) as error:
            raise ValueError(f"not Python: {error}") from error
        self._starts = [0, *(found.end() for found in _NEWLINE.finditer(source))]
        self._parents = {child: node for node in ast.walk(self.module) for child in ast.iter_child_nodes(node)}
        self._language, self._triton, self._functions = _imports(self.module)

    # Places

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Offsets in characters of a node with a position; parentheses around it are not part of it."""
        line, column = node.lineno, node.col_offset  # type: ignore[attr-defined]
        last, end = node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]
        return self._offset(line, column), self._offset(last, end)

    def _offset(self, line: int, column: int) -> int:
        start = self._starts[line - 1]
        end = self._starts[line] if line < len(self._starts) else len(self.source)
        text = self.source[start:end]
        if not text.isascii():
            column = len(text.encode()[:column].decode(errors="ignore"))  # positions in the tree are bytes of UTF-8
        return start + column

    def text(self, node: ast.AST) -> str:
        """A node's source."""
        start, end = self.span(node)
        return self.source[start:end]

    def operand(self, node: ast.AST) -> str:
        """A node's source, in parentheses unless it is an atom: fits anywhere."""
        text = self.text(node)
        negative = isinstance(node, ast.Constant) and text.startswith("-")
        return text if isinstance(node, _ATOMS) and not negative else f"({text})"

    def brief(self, node: ast.AST) -> str:
        """A node's source on one line, for people."""
        return shorten(self.text(node))

    def line_at(self, offset: int) -> int:
        """Line of an offset, from 1."""
        return bisect_right(self._starts, offset)

    # Relations

    def parent(self, node: ast.AST) -> ast.AST | None:
        """What a node stands in; None for the module."""
        return self._parents.get(node)

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """What a node stands in, from the inside out."""
        above = self._parents.get(node)
        while above is not None:
            yield above
            above = self._parents.get(above)

    def loop_of(self, node: ast.AST) -> ast.For | ast.While | None:
        """The innermost loop whose body a node stands in."""
        below = node
        for above in self.ancestors(node):
            if isinstance(above, (ast.FunctionDef, ast.Lambda)):
                return None
            if isinstance(above, _LOOPS) and below in above.body:
                return above
            below = above
        return None

    def statement_of(self, node: ast.AST) -> ast.stmt:
        """The innermost statement a node stands in, or the node itself."""
        if isinstance(node, ast.stmt):
            return node
        return next(above for above in self.ancestors(node) if isinstance(above, ast.stmt))

    # Kernels and launches

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """All kernels, in the order of the file."""
        found = [
            node
            for node in ast.walk(self.module)
            if isinstance(node, ast.FunctionDef) and any(self._is_jit(item) for item in node.decorator_list)
        ]
        return tuple(
            Kernel(node, tuple(self._parameters(node)), tuple(_body(node)))
            for node in sorted(found, key=lambda node: node.lineno)
        )

    def _is_jit(self, decorator: ast.expr) -> bool:
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
            return target.attr == "jit" and target.value.id in self._triton
        return isinstance(target, ast.Name) and self._functions.get(target.id) == "triton.jit"

    def _parameters(self, node: ast.FunctionDef) -> Iterator[Parameter]:
        arguments = node.args
        for item in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            annotation = item.annotation
            constexpr = (
                (isinstance(annotation, ast.Attribute) and annotation.attr == "constexpr")
                or (isinstance(annotation, ast.Name) and annotation.id == "constexpr")
                or (isinstance(annotation, ast.Constant) and "constexpr" in str(annotation.value))
            )
            yield Parameter(item.arg, constexpr)

    @cached_property
    def host_nodes(self) -> tuple[ast.AST, ...]:
        """Everything outside of kernels, without what is inside formatted strings."""
        inside = {kernel.node for kernel in self.kernels}
        return tuple(_walk(self.module, inside))

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        """All launches, in the order of the file."""
        kernels = {kernel.name: kernel for kernel in self.kernels}
        found: list[Launch] = []
        for node in self.host_nodes:
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)):
                continue
            name = node.func.value
            last = name.attr if isinstance(name, ast.Attribute) else name.id if isinstance(name, ast.Name) else None
            if last in kernels:
                found.append(Launch(node, kernels[last], self._grid(node, node.func.slice)))
        return tuple(sorted(found, key=lambda launch: self.span(launch.call)))

    def _grid(self, call: ast.Call, grid: ast.expr) -> tuple[ast.expr, ...]:
        if isinstance(grid, ast.Name):
            scope = next((a for a in self.ancestors(call) if isinstance(a, ast.FunctionDef)), self.module)
            assigned: list[ast.expr] = []
            for node in ast.walk(scope):
                if isinstance(node, ast.Assign) and node.lineno <= call.lineno:
                    if any(isinstance(target, ast.Name) and target.id == grid.id for target in node.targets):
                        assigned.append(node.value)
                elif isinstance(node, ast.FunctionDef) and node.name == grid.id and node is not scope:
                    assigned += [item.value for item in node.body if isinstance(item, ast.Return) and item.value]
            if not assigned:
                return ()
            grid = max(assigned, key=lambda value: value.lineno)
        if isinstance(grid, ast.Lambda):
            grid = grid.body
        return tuple(grid.elts) if isinstance(grid, (ast.Tuple, ast.List)) else ()

    # Calls

    def called(self, node: ast.AST) -> str | None:
        """Last name of the function of `triton.language` (or libdevice) that a call calls: "load", "exp"."""
        if not isinstance(node, ast.Call):
            return None
        target: ast.expr = node.func
        if isinstance(target, ast.Name):
            full = self._functions.get(target.id, "")
            return full.rsplit(".", 1)[1] if full.startswith("triton.language.") else None
        if not isinstance(target, ast.Attribute):
            return None
        name = target.attr
        base: ast.expr = target.value
        while isinstance(base, ast.Attribute):
            base = base.value
        return name if isinstance(base, ast.Name) and base.id in self._language else None

    def calls(self, kernel: Kernel, *names: str) -> Iterator[ast.Call]:
        """Calls of these functions of `triton.language` in a kernel."""
        for node in kernel.nodes:
            if isinstance(node, ast.Call) and self.called(node) in names:
                yield node

    def is_cdiv(self, node: ast.AST) -> bool:
        """Whether a node is a call of Triton's rounded-up division, `triton.cdiv` or `tl.cdiv`."""
        if not (isinstance(node, ast.Call) and len(node.args) == 2):
            return False
        target = node.func
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
            return target.attr == "cdiv" and target.value.id in self._triton | self._language
        return isinstance(target, ast.Name) and self._functions.get(target.id, "").endswith(".cdiv")

    @property
    def tl(self) -> str:
        """The name under which the candidate knows `triton.language`."""
        return "tl" if "tl" in self._language else min(self._language, default="tl")

    # Edits

    def site(self, at: ast.AST, detail: str, *changes: Change) -> Site:
        """A site from the texts that take the place of nodes.

        Args:
            at: the node whose line is the site's.
            detail: what changes, for people.
            changes: at least one, not overlapping.
        """
        edits = [Edit(*(self.span(place) if isinstance(place, ast.AST) else place), text) for place, text in changes]
        return Site(tuple(sorted(edits)), self.line_at(self.span(at)[0]), detail)

    def replace(self, node: ast.AST, text: str) -> Site:
        """A site that puts `text` in the place of a node."""
        return self.site(node, f"`{self.brief(node)}` -> `{shorten(text)}`", (node, text))

    def operator_span(self, left: ast.AST, right: ast.AST, symbol: str) -> tuple[int, int]:
        """Offsets of the operator between two operands of one expression."""
        position, stop = self.span(left)[1], self.span(right)[0]
        while position < stop:
            position = _skip_blank(self.source, position)
            if self.source.startswith(symbol, position):
                return position, position + len(symbol)
            position += 1  # a closing or opening parenthesis
        raise ValueError(f"no {symbol} between {self.brief(left)} and {self.brief(right)}")

    def without_argument(self, call: ast.Call, argument: ast.expr | ast.keyword) -> Change:
        """The change that takes an argument out of a call, with the comma before it (or after it, if it is first)."""
        listed = sorted([*call.args, *call.keywords], key=self.span)
        at = listed.index(argument)
        start, end = self._outer(call, argument)
        if at > 0:
            start = self._find_comma(self._outer(call, listed[at - 1])[1])
        elif len(listed) > 1:
            end = self._outer(call, listed[1])[0]
        return (start, end), ""

    def _outer(self, call: ast.Call, argument: ast.AST) -> tuple[int, int]:
        """Offsets of an argument with the parentheses around it."""
        start, end = self.span(argument)
        first = self.span(call.func)[1]
        opening = self.source.index("(", _skip_blank(self.source, first))
        while True:
            before, after = start, _skip_blank(self.source, end)
            while before > opening + 1 and self.source[before - 1].isspace():
                before -= 1
            if before - 1 > opening and self.source[before - 1] == "(" and self.source[after : after + 1] == ")":
                start, end = before - 1, after + 1
            else:
                return start, end

    def _find_comma(self, position: int) -> int:
        position = _skip_blank(self.source, position)
        if self.source[position] != ",":
            raise ValueError(f"no comma at offset {position}")
        return position


def argument(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """Value of a call's argument, by keyword or by position."""
    for item in call.keywords:
        if item.arg == name:
            return item.value
    if position is not None and len(call.args) > position and not any(isinstance(a, ast.Starred) for a in call.args):
        return call.args[position]
    return None


def argument_node(call: ast.Call, name: str, position: int | None = None) -> ast.expr | ast.keyword | None:
    """Like `argument`, but the keyword with its name, to be taken out of the call."""
    for item in call.keywords:
        if item.arg == name:
            return item
    return argument(call, name, position)


def shorten(text: str, limit: int = 70) -> str:
    """Text on one line, cut in the middle where it is longer than `limit`."""
    text = " ".join(text.split())
    half = (limit - 3) // 2
    return text if len(text) <= limit else f"{text[:half]}...{text[-half:]}"


def _skip_blank(source: str, position: int) -> int:
    found = _BLANK_OR_COMMENT.match(source, position)
    return found.end() if found else position


def _body(node: ast.FunctionDef) -> Iterator[ast.AST]:
    """What a function consists of, without its signature, docstring and decorators."""
    for statement in node.body:
        if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
            yield from _walk(statement, set())


def _walk(node: ast.AST, without: set[ast.FunctionDef]) -> Iterator[ast.AST]:
    """A node and what is in it, outermost first; positions inside formatted strings are not reliable."""
    if node in without or isinstance(node, ast.JoinedStr):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, without)


def _imports(module: ast.Module) -> tuple[frozenset[str], frozenset[str], dict[str, str]]:
    """Names of `triton.language` (and libdevice), names of `triton`, and functions imported one by one."""
    language, triton = {"tl", "libdevice"}, {"triton"}
    functions: dict[str, str] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            for item in node.names:
                if item.name == "triton":
                    triton.add(item.asname or "triton")
                elif item.name.startswith("triton.language") and item.asname:
                    language.add(item.asname)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "triton":
            for item in node.names:
                name = item.asname or item.name
                if item.name in ("language", "libdevice", "math"):
                    language.add(name)
                else:
                    functions[name] = f"{node.module}.{item.name}"
    return frozenset(language), frozenset(triton), functions
