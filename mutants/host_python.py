"""The Python around a candidate's kernels, as operators see it: `ModelNew`, its methods, and positions in the file."""

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..suites.python_syntax import parse
from .embedded import line_of, line_starts
from .mutant import Edit, Site


@dataclass(frozen=True, slots=True)
class HostPython:
    """A candidate's Python.

    Attributes:
        source: text of the file.
        module: its syntax tree.
        parents: for each node (by `id`) the node above.
    """

    source: str
    module: ast.Module
    parents: dict[int, ast.AST]
    _lines: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, source: str) -> "HostPython | None":
        """The Python of a candidate; None where the text is none (a snippet of C++)."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                module = parse(source)
        except (SyntaxError, ValueError, RecursionError):
            return None
        parents = {id(child): node for node in ast.walk(module) for child in ast.iter_child_nodes(node)}
        return cls(source, module, parents, line_starts(source))

    def methods(self, *names: str) -> Iterator[ast.FunctionDef]:
        """Methods of the classes of the file, those of these names only where names are given."""
        for node in self.module.body:
            if isinstance(node, ast.ClassDef):
                for item in node.body:
                    if isinstance(item, ast.FunctionDef) and (not names or item.name in names):
                        yield item

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Offsets of a node in the source."""
        return (
            self._offset(node.lineno, node.col_offset),
            self._offset(node.end_lineno or node.lineno, node.end_col_offset or 0),
        )

    def text(self, node: ast.expr | ast.stmt) -> str:
        """A node as written."""
        start, end = self.span(node)
        return self.source[start:end]

    def site(self, detail: str, *changes: tuple[ast.expr | ast.stmt, str]) -> Site:
        """A site that puts texts in the place of nodes."""
        edits = tuple(sorted(Edit(*self.span(node), text) for node, text in changes))
        return Site(edits, line_of(self._lines, edits[0].start), " ".join(detail.split()))

    def _offset(self, line: int, column: int) -> int:
        start = self._lines[line - 1]
        text = self.source[start : start + column]
        if not text.isascii():  # columns count bytes of UTF-8
            text = text.encode()[:column].decode(errors="ignore")
        return start + len(text)
