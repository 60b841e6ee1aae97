"""Text-level work on CUDA sources: comments, masks, edits, line maps, and expansion of the candidate's own macros.

Every function keeps line numbers, and all but `expand_macros` keep offsets too, so that a position found in a processed
text is a position in the candidate's.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""
      (?P<raw>\bR"(?P<delim>[^()\\\s]{0,16})\()
    | (?P<string>"(?:\\.|[^"\\\n])*(?:"|(?=\n)|\Z))
    | (?P<number>\b\d(?:'?[\w.])*)
    | (?P<char>'(?:\\.|[^'\\\n])+')
    | (?P<line>//(?:\\\r?\n|[^\n])*)
    | (?P<block>/\*.*?(?:\*/|\Z))
    """,
    re.VERBOSE | re.DOTALL,
)
_NOT_NEWLINE = re.compile(r"[^\n]")

# Attributes that the grammar does not know; the parser sees spaces in their place. Their argument is balanced once.
_MASKED = re.compile(
    r"\b(?:__align__|__builtin_align__|alignas|__cluster_dims__|__maxnreg__|__block_size__|__attribute__)"
    r"\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
    r"|\b__grid_constant__\b|\b__restrict\b|\b__no_inline__\b"
)


def blank(text: str) -> str:
    """`text` with every character but newlines replaced by a space."""
    return _NOT_NEWLINE.sub(" ", text)


def _scan(text: str, blank_strings: bool) -> str:
    pieces: list[str] = []
    position = 0
    while True:
        match = _TOKEN.search(text, position)
        if match is None:
            pieces.append(text[position:])
            return "".join(pieces)
        start, end = match.span()
        pieces.append(text[position:start])
        kind = match.lastgroup
        if match.group("raw") is not None:
            closing = text.find(f'){match.group("delim")}"', end)
            end = len(text) if closing < 0 else closing + len(match.group("delim")) + 2
            kind = "string"
        token = text[start:end]
        if kind in ("line", "block") or (blank_strings and kind in ("string", "char")):
            token = blank(token)
        pieces.append(token)
        position = end


def blank_comments(text: str) -> str:
    """`text` with comments replaced by spaces: same length, same lines; string, character and raw literals are kept."""
    return _scan(text, blank_strings=False)


def blank_literals(text: str) -> str:
    """`text` with comments and literals replaced by spaces: what is left is code."""
    return _scan(text, blank_strings=True)


def mask_attributes(text: str) -> str:
    """`text` with attributes the grammar does not know replaced by spaces (same length)."""
    return _MASKED.sub(lambda match: blank(match.group()), text)


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace `text[start:end]`; newlines lost are added back behind the replacement."""

    start: int
    end: int
    replacement: str = ""


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """`text` after all edits. Edits inside a region that another edit replaces are dropped. Line numbers are kept."""
    pieces: list[str] = []
    position = 0
    for edit in sorted(edits, key=lambda e: (e.start, -e.end)):
        if edit.start < position:
            continue
        pieces.append(text[position : edit.start])
        lost = text.count("\n", edit.start, edit.end) - edit.replacement.count("\n")
        pieces.append(edit.replacement + "\n" * max(0, lost))
        position = edit.end
    pieces.append(text[position:])
    return "".join(pieces)


@dataclass(frozen=True, slots=True)
class LineMap:
    """Where the lines of a processed text come from.

    Attributes:
        segments: (first line in the text, label of the source, line there), ascending by the first; lines are 1-based.
    """

    segments: tuple[tuple[int, str, int], ...] = ((1, "source", 1),)

    def resolve(self, line: int) -> tuple[str, int]:
        """Label and line of the source that `line` of the text comes from."""
        label, origin = self.segments[0][1], self.segments[0][2]
        first = self.segments[0][0]
        for start, name, source_line in self.segments:
            if start > line:
                break
            first, label, origin = start, name, source_line
        return label, origin + line - first

    def annotate(self, text: str) -> str:
        """`text` with `#line` directives, so that a compiler's messages name the source. Line numbers shift."""
        lines = text.split("\n")
        pieces: list[str] = []
        for index, (start, label, origin) in enumerate(self.segments):
            end = self.segments[index + 1][0] - 1 if index + 1 < len(self.segments) else len(lines)
            quoted = label.replace("\\", "\\\\").replace('"', '\\"')
            pieces.append(f'#line {origin} "{quoted}"')
            pieces.extend(lines[start - 1 : end])
        return "\n".join(pieces)


def join_sources(sources: Sequence[str], labels: Sequence[str], origins: Sequence[int] = ()) -> tuple[str, LineMap]:
    """The sources one below the other, and the map back to each; `origins` are their first lines where not 1."""
    segments: list[tuple[int, str, int]] = []
    line = 1
    pieces: list[str] = []
    for text, label, origin in zip(sources, labels, origins or [1] * len(sources), strict=True):
        segments.append((line, label, origin))
        pieces.append(text)
        line += text.count("\n") + 1
    return "\n".join(pieces), LineMap(tuple(segments) or ((1, "source", 1),))


def expand_includes(text: str, label: str, headers: Mapping[str, str], seen: set[str]) -> list[tuple[str, str, int]]:
    """A source with the candidate's own headers in place of their `#include`s, each once.

    Args:
        headers: their texts by name.
        seen: names already in place; grows.

    Returns:
        (text, label, first line) of consecutive pieces.
    """
    pieces: list[tuple[str, str, int]] = []
    position, line = 0, 1
    for start, end, word, rest in directives(blank_comments(text)):
        name = rest[1:-1].strip()
        if word != "include" or name not in headers:
            continue
        before = text[position:start]
        pieces.append((before.removesuffix("\n"), label, line))
        if name not in seen:
            seen.add(name)
            pieces.extend(expand_includes(headers[name], name, headers, seen))
        line += before.count("\n") + text.count("\n", start, end) + 1
        position = end + 1
    pieces.append((text[position:], label, line))
    return pieces


def source_offsets(sources: Sequence[str], labels: Sequence[str], candidate: str) -> dict[str, int]:
    """For each source that stands in the candidate's text verbatim: how many lines above its first line there are."""
    home = candidate.split("\n")
    offsets: dict[str, int] = {}
    for text, label in zip(sources, labels, strict=True):
        lines = text.split("\n")
        probe = next((i for i, line in enumerate(lines) if len(line.strip()) > 8), None)
        if probe is None:
            continue
        window = lines[probe : probe + 6]
        for index in range(len(home) - len(window) + 1):
            # The first and the last line may share theirs with Python's quotes.
            if window[0] in home[index] and home[index + 1 : index + len(window) - 1] == window[1:-1]:
                offsets[label] = index - probe
                break
    return offsets


def point_into(message: str, sources: Sequence[str], labels: Sequence[str], candidate: str) -> str:
    """A compiler's message with `cuda_sources[0]:7` turned into the line of the candidate's own file."""
    for label, offset in source_offsets(sources, labels, candidate).items():
        pieces = re.split(rf"{re.escape(label)}(?=[(:]\d)([(:])(\d+)", message)
        message = pieces[0]
        for bracket, number, rest in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
            message += f"candidate.py{bracket}{int(number) + offset}{rest}"
    return message


_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(?P<word>\w+)(?P<rest>(?:\\\r?\n|[^\n])*)", re.MULTILINE)


def directives(code: str) -> list[tuple[int, int, str, str]]:
    """(start, end, keyword, rest) of every preprocessor directive in comment-free code."""
    return [(m.start(), m.end(), m.group("word"), m.group("rest").strip()) for m in _DIRECTIVE.finditer(code)]


def hides_cuda_in_macros(code: str) -> bool:
    """Whether a macro of the candidate's expands to a kernel, a launch or a memory qualifier."""
    return any(
        word == "define" and re.search(r"<<<|__global__|__device__|__shared__|__constant__", rest)
        for _, _, word, rest in directives(code)
    )


_MARKER = re.compile(r'#(?:line)? (\d+) "([^"]*)"[^\n]*\Z')


def expand_macros(code: str, line_map: LineMap, preprocess: Callable[[str], str]) -> tuple[str, LineMap]:
    """Expand the candidate's own macros with a C preprocessor. No header is read: includes stay as they are.

    Args:
        code: comment-free source.
        line_map: of `code`.
        preprocess: runs the preprocessor on a text and returns its output, line markers included.

    Returns:
        The expanded text and its line map.
    """
    kept: list[Edit] = []
    for start, end, word, rest in directives(code):
        if word in ("include", "include_next", "import"):
            kept.append(Edit(start, end, f"KW_KEEP_DIRECTIVE {word} {rest}"))
        elif word == "pragma":
            kept.append(Edit(start, end))
    output = preprocess(line_map.annotate(apply_edits(code, kept)))
    lines: list[str] = []
    segments: list[tuple[int, str, int]] = []
    for line in output.split("\n"):
        marker = _MARKER.match(line)
        if marker is None:
            lines.append(re.sub(r"KW_KEEP_DIRECTIVE (\w+) ", r"#\1 ", line))
            continue
        label = marker.group(2)
        if label.startswith("<"):
            continue
        entry = (len(lines) + 1, label, int(marker.group(1)))
        if segments and segments[-1][0] == entry[0]:
            segments.pop()
        segments.append(entry)
    return "\n".join(lines), LineMap(tuple(segments) or line_map.segments)
