"""C++ inside a candidate's Python file: which string literals it stands in, and where each of its characters came from.

A candidate hands CUDA to `load_inline` as strings: raw or with escapes, joined, formatted, named first. A text found
here knows for each character the place in the file, so that an edit of the C++ becomes an edit of the file.
"""

import ast
import re
import warnings
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from ..suites.python_syntax import parse
from .mutant import Edit

Role = Literal["cuda", "cpp"]

_HOLE = "kw_hole"  # stands for a value that is known only when the candidate runs
_LITERAL = re.compile(r"([A-Za-z]{0,3})('''|\"\"\"|'|\")")
_ESCAPE = re.compile(r"\\(?:\r\n|[0-7]{1,3}|x[0-9a-fA-F]{2}|N\{[^}]*\}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Style:
    """How a literal is written."""

    raw: bool
    formatted: bool
    quote: str

    def write(self, text: str) -> str:
        """`text` as the literal's source."""
        if not self.raw:
            text = text.replace("\\", "\\\\").replace(self.quote[0], "\\" + self.quote[0])
            if len(self.quote) == 1:
                text = text.replace("\n", "\\n")
        return text.replace("{", "{{").replace("}", "}}") if self.formatted else text


@dataclass(slots=True)
class EmbeddedText:
    """One text of C++.

    Attributes:
        text: as the compiler gets it; what only running the candidate tells is a placeholder.
        role: which argument of `load_inline` it is.
        starts, ends: place of each character in the file; -1 for characters that are not written there.
        styles: of each character's literal, as an index into `literals`.
        literals: how each literal is written.
    """

    text: str = ""
    role: Role = "cuda"
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    styles: list[int] = field(default_factory=list)
    literals: list[_Style] = field(default_factory=list)

    def edit(self, start: int, end: int, text: str) -> Edit | None:
        """The edit of the file that replaces `self.text[start:end]`; None where the file does not hold that text."""
        if start == end:
            if start < len(self.text) and self.starts[start] >= 0:
                return Edit(self.starts[start], self.starts[start], self._write(start, text))
            if start > 0 and self.ends[start - 1] >= 0:
                return Edit(self.ends[start - 1], self.ends[start - 1], self._write(start - 1, text))
            return None
        if any(position < 0 for position in self.starts[start:end]) or self.styles[start] != self.styles[end - 1]:
            return None
        return Edit(self.starts[start], self.ends[end - 1], self._write(start, text))

    def _write(self, index: int, text: str) -> str:
        return self.literals[self.styles[index]].write(text)

    def add(self, text: str, start: int, end: int) -> None:
        """Append characters that the file writes as `start:end`; the last of them takes what is left over."""
        for offset, _ in enumerate(text):
            self.starts.append(start + offset)
            self.ends.append(end if offset == len(text) - 1 else start + offset + 1)
            self.styles.append(len(self.literals) - 1)
        self.text += text

    def add_hole(self, text: str) -> None:
        """Append characters that the file does not write."""
        self.starts += [-1] * len(text)
        self.ends += [-1] * len(text)
        self.styles += [-1] * len(text)
        self.text += text


def plain_text(source: str, before: str = "", after: str = "") -> EmbeddedText:
    """A text that is the whole file, between a prefix and a suffix that are not in it."""
    found = EmbeddedText(literals=[_Style(raw=True, formatted=False, quote="")])
    found.add_hole(before)
    found.text += source
    found.starts += range(len(source))
    found.ends += range(1, len(source) + 1)
    found.styles += [0] * len(source)
    found.add_hole(after)
    return found


class _Finder:
    """Follows what `load_inline` is called with back to literals."""

    def __init__(self, source: str) -> None:
        self.source = source
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.module = parse(source)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise ValueError(f"the candidate is not Python: {error}") from None
        self.lines = line_starts(source)
        self.values: dict[str, list[ast.expr]] = {}
        for node in ast.walk(self.module):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._bind(target, node.value)
            elif isinstance(node, (ast.AnnAssign, ast.AugAssign)) and node.value is not None:
                self._bind(node.target, node.value)

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        name = _name(target)
        if name:
            self.values.setdefault(name, []).append(value)

    def texts(self) -> Iterator[EmbeddedText]:
        taken: set[tuple[int, int]] = set()
        for node in ast.walk(self.module):
            if not isinstance(node, ast.Call) or _name(node.func) != "load_inline":
                continue
            named: dict[str, ast.expr] = dict(zip(("name", "cpp_sources", "cuda_sources"), node.args, strict=False))
            named |= {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
            roles: tuple[tuple[str, Role], ...] = (("cpp_sources", "cpp"), ("cuda_sources", "cuda"))
            for argument, role in roles:
                if argument in named:
                    yield from self._follow(named[argument], role, taken, 0)
        documentation = {id(node.value) for node in ast.walk(self.module) if isinstance(node, ast.Expr)}
        for node in ast.walk(self.module):  # sources that reach load_inline through a function
            if isinstance(node, (ast.Constant, ast.JoinedStr)) and id(node) not in documentation:
                start, end = self.span(node)
                if "__global__" in self.source[start:end]:
                    yield from self._follow(node, "cuda", taken, 0)

    def span(self, node: ast.expr) -> tuple[int, int]:
        return self._offset(node.lineno, node.col_offset), self._offset(
            node.end_lineno or node.lineno, node.end_col_offset or 0
        )

    def _offset(self, line: int, column: int) -> int:
        start = self.lines[line - 1]
        # ast counts bytes of UTF-8
        return start + len(self.source[start : start + column].encode()[:column].decode(errors="ignore"))

    def _follow(self, node: ast.expr, role: Role, taken: set[tuple[int, int]], depth: int) -> Iterator[EmbeddedText]:
        if depth > 8:
            return
        if isinstance(node, (ast.List, ast.Tuple)):
            for element in node.elts:
                yield from self._follow(element, role, taken, depth + 1)
        elif (name := _name(node)) is not None and not isinstance(node, ast.Call):
            for value in self.values.get(name, ()):
                yield from self._follow(value, role, taken, depth + 1)
        elif isinstance(node, ast.IfExp):
            yield from self._follow(node.body, role, taken, depth + 1)
            yield from self._follow(node.orelse, role, taken, depth + 1)
        else:
            span = self.span(node)
            if span not in taken and not any(start <= span[0] and span[1] <= end for start, end in taken):
                found = EmbeddedText(role=role)
                used = self._fill(found, node, depth)
                if found.literals and not used & taken:
                    taken |= used | {span}
                    yield found

    def _fill(self, found: EmbeddedText, node: ast.expr, depth: int) -> set[tuple[int, int]]:
        """Append the node's text; returns the spans of the literals that were used."""
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            span = self.span(node)
            self._scan(found, *span)
            return {span}
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self._fill(found, node.left, depth) | self._fill(found, node.right, depth)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            return self._fill(found, node.left, depth)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            # SRC.strip(), textwrap.dedent(SRC), TEMPLATE.replace("T", "16"): the text as written
            for inner in (node.func.value, *node.args):
                length = len(found.text)
                used = self._fill(found, inner, depth)
                if len(found.text) > length:
                    return used
            return set()
        name = _name(node)
        values = self.values.get(name, []) if name else []
        if len(values) == 1 and depth < 8:
            return self._fill(found, values[0], depth + 1)
        return set()

    def _scan(self, found: EmbeddedText, start: int, end: int) -> None:
        """Append the literals written in `start:end` of the file."""
        position = start
        while position < end:
            match = _LITERAL.match(self.source, position)
            if match is None:
                if self.source[position] == "#":
                    position = _end_of_line(self.source, position)
                position += 1
                continue
            prefix = match.group(1).lower()
            found.literals.append(_Style(raw="r" in prefix, formatted="f" in prefix, quote=match.group(2)))
            position = self._scan_body(found, match.end(), end)

    def _scan_body(self, found: EmbeddedText, position: int, end: int) -> int:
        """Append one literal's characters; returns where it ends."""
        style, source = found.literals[-1], self.source
        while position < end and not source.startswith(style.quote, position):
            if source[position] == "\\":
                match = _ESCAPE.match(source, position)
                brace = style.formatted and source[position + 1 : position + 2] in ("{", "}")
                stop = match.end() if match and not brace else position + 1
                value = source[position:stop] if style.raw or brace else _unescape(source[position:stop])
                found.add(value, position, stop)
            elif style.formatted and source[position] in "{}":
                if source[position : position + 2] in ("{{", "}}"):
                    stop = position + 2
                    found.add(source[position], position, stop)
                else:
                    stop = _end_of_hole(source, position, end)
                    found.add_hole(self._value(source[position + 1 : stop - 1]))
            else:
                stop = position + (2 if source.startswith("\r\n", position) else 1)
                found.add("\n" if source[position] == "\r" else source[position], position, stop)
            position = stop
        return position + len(style.quote)

    def _value(self, expression: str) -> str:
        """What a formatted value will be, where it is a constant of the file; else a name."""
        values = self.values.get(expression.strip(), [])
        if len(values) == 1 and isinstance(values[0], ast.Constant):
            return str(values[0].value)
        return _HOLE


def _name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else None


def _unescape(escape: str) -> str:
    quote = "'" if '"' in escape else '"'
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return str(ast.literal_eval(f"{quote * 3}{escape}{quote * 3}"))


def _end_of_line(source: str, position: int) -> int:
    found = source.find("\n", position)
    return len(source) if found < 0 else found


def _end_of_hole(source: str, position: int, end: int) -> int:
    depth = 0
    while position < end:
        depth += (source[position] == "{") - (source[position] == "}")
        position += 1
        if depth == 0:
            break
    return position


def line_starts(source: str) -> list[int]:
    """Offset of each line's first character."""
    return [0, *(match.end() for match in re.finditer(r"\r\n|\r|\n", source))]


def line_of(starts: list[int], offset: int) -> int:
    """Line of an offset, from 1."""
    return bisect_right(starts, offset)


def embedded_texts(source: str) -> tuple[EmbeddedText, ...]:
    """The C++ texts of a candidate, in the order in which they stand in its file.

    Raises:
        ValueError: the candidate is not Python.
    """
    found = [text for text in _Finder(source).texts() if text.text.strip()]
    return tuple(sorted(found, key=lambda text: max(text.starts)))
