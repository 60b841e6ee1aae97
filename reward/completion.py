"""From a model's completion to the candidate's source text.

Everything here runs in the trainer's process on text that a policy wrote, so it parses nothing as Python, takes time
linear in the text and raises for nothing.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_COMPLETION = 2_000_000  # characters of one message; beyond any context window in use

_DEFINES = re.compile(r"^[ \t]*+(?:class[ \t]++ModelNew\b|ModelNew[ \t]*+=)", re.MULTILINE)
# A fence opens at the start of a run of backticks or tildes and takes the rest of its line as its info string.
_OUTSIDE = re.compile(
    r"(?P<fence>(?<!`)`{3,}+|(?:^|(?<=\n))(?P<indent>[ \t]*+)(?P<tilde>~{3,}+))(?P<info>[^\n`]*+)(?:\n|\Z)"
    r"|<(?P<think>think|thinking|reasoning)>"
)
# Inside a fence: just enough of Python's lexer not to take a fence in a docstring for the end of the block.
_INSIDE = re.compile(
    r"(?P<triple>\"\"\"|''')"
    r"|\"(?:\\.|[^\"\\\n])*+\"?|'(?:\\.|[^'\\\n])*+'?"
    r"|\#[^\n]*+"
    r"|^[ \t]*+(?P<run>`{3,}+|~{3,}+)(?P<info>[^\n]*+)",
    re.MULTILINE,
)
_FENCE_LINE = re.compile(r"^[ \t]*+(?:`{3,}+|~{3,}+)(?P<info>[^\n]*+)", re.MULTILINE)
_ORPHAN_END = re.compile(
    r"^[ \t]*+</(?:think|thinking|reasoning)>[ \t]*+$|</(?:think|thinking|reasoning)>", re.MULTILINE
)
_CODE_LINE = re.compile(r"^(?:import |from [\w.]+ import |class |def |@|#|\"\"\"|''')", re.MULTILINE)
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Extraction:
    """What a completion held.

    Attributes:
        code: the candidate's source; empty where there is none.
        reason: empty, `no-code`, or `too-large`.
    """

    code: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Block:
    code: str
    closed: bool

    @property
    def defines(self) -> bool:
        return _DEFINES.search(self.code) is not None


def extract(completion: Any) -> Extraction:
    """The candidate in a completion: plain text, or a list of chat messages.

    Of chat messages only the assistant's count (a tool's answer is not the policy's work); of its messages the last
    that defines `ModelNew`, else the last with any code. Reasoning (`<think>...</think>`) is dropped. Of several
    fenced blocks the last complete one that defines `ModelNew` is taken, so a quoted reference or a snippet before or
    after the answer does no harm; an unclosed block counts where there is no complete one. Text without a fence is
    taken from its first line of code on.

    Line ends become `\\n`; lone surrogates (text that was not UTF-8) become U+FFFD.
    """
    fallback = Extraction("", "no-code")
    for text in reversed(_texts(completion)):
        found = Extraction("", "too-large") if len(text) > MAX_COMPLETION else _from_text(_clean(text))
        if found.code and _DEFINES.search(found.code):
            return found
        if not fallback.code and (found.code or found.reason == "too-large"):
            fallback = found
    return fallback


def extract_code(completion: Any) -> str:
    """The candidate's source in a completion (see `extract`); empty where there is none."""
    return extract(completion).code


def normalise(code: str) -> str:
    """The form under which two candidates count as the same: line ends unified, outer blank lines dropped.

    Nothing else: a space inside a string may change what a candidate does.
    """
    return _clean(code).strip("\n")


def _texts(completion: Any) -> list[str]:
    """The assistant's texts, in order."""
    if isinstance(completion, (str, bytes)):
        return [_decode(completion)]
    if isinstance(completion, Mapping):
        completion = [completion]
    if not isinstance(completion, Sequence):
        return []
    texts = []
    for message in completion:
        if isinstance(message, (str, bytes)):
            texts.append(_decode(message))
        elif isinstance(message, Mapping) and message.get("role", "assistant") in ("assistant", "model"):
            texts.append(_content(message.get("content")))
    return texts


def _content(content: Any) -> str:
    """Text of a message whose content is a string or a list of typed parts."""
    if isinstance(content, (str, bytes)):
        return _decode(content)
    if isinstance(content, Mapping):
        content = [content]
    if not isinstance(content, Sequence):
        return ""
    parts = []
    for part in content:
        if isinstance(part, (str, bytes)):
            parts.append(_decode(part))
        elif isinstance(part, Mapping) and part.get("type", "text") in ("text", "output_text"):
            text = part.get("text")
            if isinstance(text, (str, bytes)):
                parts.append(_decode(text))
    return "\n".join(parts)


def _decode(text: str | bytes) -> str:
    return text if isinstance(text, str) else text.decode("utf-8", "replace")


def _clean(text: str) -> str:
    text = text.replace("\r\n", "\n").replace("\r", "\n").removeprefix("\ufeff")
    return _SURROGATE.sub("\ufffd", text)


def _from_text(text: str) -> Extraction:
    blocks, prose = _split(text)
    code = _choose(blocks, prose)
    return Extraction(code) if code else Extraction("", "no-code")


def _choose(blocks: list[_Block], prose: str) -> str:
    defining = [b for b in blocks if b.defines]
    complete = [b for b in defining if b.closed]
    if complete or defining:
        return (complete or defining)[-1].code
    if _DEFINES.search(prose):
        start = _CODE_LINE.search(prose)
        return prose[start.start() if start else 0 :].strip("\n")
    written = [b for b in blocks if b.code.strip()]
    return written[-1].code if written else ""


def _split(text: str) -> tuple[list[_Block], str]:
    """Fenced blocks of the answer, and the answer itself without its reasoning (for text that has no fence)."""
    text = text[_orphan_end(text) :]
    blocks: list[_Block] = []
    answer: list[str] = []
    at = 0
    while found := _OUTSIDE.search(text, at):
        answer.append(text[at : found.start()])
        if found["think"]:
            tag = f"</{found['think']}>"
            end = text.find(tag, found.end())
            at = len(text) if end < 0 else end + len(tag)
            continue
        start = found.end()
        end, at, closed = _close(text, start, found["tilde"] or found["fence"])
        answer.append(text[found.start() : at])
        fence_at = found.start("tilde") if found["tilde"] else found.start()
        blocks.append(_Block(_dedent(text[start:end], text, fence_at), closed))
    answer.append(text[at:])
    return blocks, "".join(answer)


def _orphan_end(text: str) -> int:
    """Where the answer starts if the reasoning's opening tag stood in the prompt, as some chat templates put it."""
    first = _ORPHAN_END.search(text)
    if first is None or re.search(r"<(?:think|thinking|reasoning)>", text[: first.start()]):
        return 0
    alone = first.group() != first.group().strip() or text[first.start() - 1 : first.start()] in ("", "\n")
    fences = len(_FENCE_LINE.findall(text, 0, first.start()))
    return first.end() if alone or fences % 2 == 0 else 0


def _close(text: str, start: int, fence: str) -> tuple[int, int, bool]:
    """(end of the block's code, where to go on, whether it was closed)."""
    at = start
    while found := _INSIDE.search(text, at):
        at = found.end()
        if found["triple"]:
            end = text.find(found["triple"], at)
            if end < 0:
                continue
            inner = _FENCE_LINE.search(text, at, end)
            # A fence with an info string cannot close a block, so it is an example in a docstring; a bare one more
            # likely ends a block whose string was cut off.
            if inner is None or inner["info"].strip():
                at = end + 3
        elif found["run"] and found["run"][0] == fence[0] and len(found["run"]) >= len(fence):
            if re.match(r"\s*+[A-Za-z]\w*+\s*+$", found["info"]):
                return found.start(), found.start(), False  # the next block opens; this one was never closed
            return found.start(), found.end(), True
    rest = text[start:].rstrip()
    if rest.endswith(fence):  # closed at the end of a line of code
        return start + len(rest) - len(fence), len(text), True
    return len(text), len(text), False


def _dedent(code: str, text: str, fence_at: int) -> str:
    """Take the fence's own indentation (a block inside a list) off every line."""
    line_start = text.rfind("\n", 0, fence_at) + 1
    indent = text[line_start:fence_at]
    if not indent or indent.strip(" \t"):
        return code
    lines = code.split("\n")
    if any(line.strip() and not line.startswith(indent) for line in lines):
        return code
    return "\n".join(line[len(indent) :] for line in lines)
