"""CUDA text into C++ for the emulator: launches, shared declarations and includes are rewritten, all else is kept.

The work is done on tokens, not on a syntax tree, so it also reaches launches inside macros and code that no parser
takes. Every rewrite stays on its line: a compiler message names the line of the candidate's source.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..sandbox.engine import CompileFailure
from .emulator_includes import edit_includes, implicit_includes
from .frontend import ExtensionSource, Unsupported
from .instrument import unset_locals
from .lexical import Edit, apply_edits, blank_comments, blank_literals
from .torch_units import check_units

_LOCAL = re.compile(r"[\w.-]+(?:/[\w.-]+)*")
_OPEN, _CLOSE = "([{", ")]}"
_PAIR = dict(zip(_CLOSE, _OPEN, strict=True))

_NOINLINE = re.compile(r"(?<![(,\w])(?<![(,]\s)__noinline__\b")
_PRAGMA = re.compile(r"^[ \t]*#[ \t]*pragma\b(?:\\\n|[^\n])*", re.MULTILINE)
_ASM = re.compile(r"\b(?:asm|__asm__|__asm)\b")
_SHARED = re.compile(r"\b__shared__\b")
_WORD = re.compile(r"\w")
_ATTRIBUTE = re.compile(r"\b(?:__align__|alignas|__builtin_align__|__attribute__)\s*\(")
_SPECIFIER = re.compile(r"\b(?:extern|static|__shared__|inline)\b")
_KERNEL = re.compile(r"\b__global__\b")


@dataclass(frozen=True, slots=True)
class Unit:
    """C++ text for the emulator.

    Attributes:
        text: one translation unit.
        headers: files to lay beside it, by name.
        kernels: how many `__global__` functions it defines or declares.
    """

    text: str
    headers: dict[str, str]
    kernels: int


def _match_forward(code: str, start: int) -> int:
    """Index of the bracket that closes the one at `start`; -1 where there is none."""
    stack: list[str] = []
    for index in range(start, len(code)):
        char = code[index]
        if char in _OPEN:
            stack.append(char)
        elif char in _CLOSE:
            if not stack or stack.pop() != _PAIR[char]:
                return -1
            if not stack:
                return index
    return -1


def _callee_start(code: str, end: int) -> int:
    """Where the name of a launched kernel begins: an identifier, qualified or not, with template arguments or not."""
    index = end
    while index > 0 and code[index - 1].isspace():
        index -= 1
    if index > 0 and code[index - 1] == ">":
        depth = 0
        while index > 0:
            index -= 1
            if code[index] == ">" and code[index - 1] != "-":
                depth += 1
            elif code[index] == "<":
                depth -= 1
                if depth == 0:
                    break
            elif code[index] in ")]":
                depth_inner, closing = 0, code[index]
                opening = _PAIR[closing]
                while index > 0:
                    depth_inner += (code[index] == closing) - (code[index] == opening)
                    if depth_inner == 0:
                        break
                    index -= 1
            elif code[index] in ";{}":
                return -1
        while index > 0 and code[index - 1].isspace():
            index -= 1
    if index > 0 and code[index - 1] == ")":  # (condition ? kernel_a : kernel_b)<<<...>>>
        depth = 0
        while index > 0:
            index -= 1
            depth += (code[index] == ")") - (code[index] == "(")
            if depth == 0:
                return index
        return -1
    start = index
    while start > 0 and (_WORD.match(code[start - 1]) or code[start - 1] == ":"):
        start -= 1
    return start if start < index else -1


def _launch_end(code: str, start: int) -> int:
    """Index of the `>>>` that ends the configuration opened before `start`; -1 where there is none."""
    depth = 0
    index = start
    while index < len(code):
        char = code[index]
        if char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth -= 1
            if depth < 0:
                return -1
        elif depth == 0 and code.startswith(">>>", index) and not code.startswith(">>>>", index):
            return index
        elif depth == 0 and char == ";":
            return -1
        index += 1
    return -1


def _plain_kernels(code: str) -> set[str]:
    """Names of kernels that are neither templates nor overloaded: their address identifies them."""
    seen: dict[str, int] = {}
    for match in _KERNEL.finditer(code):
        head = code[max(0, match.start() - 400) : match.start()]
        last = max(head.rfind(";"), head.rfind("}"), head.rfind("#"))
        rest = code[match.end() : match.end() + 600]
        rest = re.sub(r"__launch_bounds__\s*\([^()]*(?:\([^()]*\))?[^()]*\)", " ", rest)
        name = re.match(r"[\w\s:*&<>,]*?\b(\w+)\s*\(", rest)
        if name is None:
            continue
        weight = 100 if "template" in head[last + 1 :] else 1
        seen[name.group(1)] = seen.get(name.group(1), 0) + weight
    return {name for name, weight in seen.items() if weight < 100}


def _edit_launches(text: str, code: str) -> list[Edit]:
    edits: list[Edit] = []
    plain = _plain_kernels(code)
    position = 0
    while True:
        at = code.find("<<<", position)
        if at < 0:
            return edits
        position = at + 3
        start, end = _callee_start(code, at), _launch_end(code, at + 3)
        if start < 0 or end < 0:
            continue
        opening = end + 3
        while opening < len(code) and (code[opening].isspace() or code[opening] == "\\"):
            opening += 1
        if opening >= len(code) or code[opening] != "(":
            continue
        closing = _match_forward(code, opening)
        if closing < 0:
            continue
        callee = " ".join(text[start:at].replace("\\\n", " ").split())
        address = f"::kw::emu::identity(&{callee})" if callee in plain else "nullptr"
        empty = not code[opening + 1 : closing].strip()
        name = callee.replace('"', "'").replace("\\", "")
        head = "::kw::emu::launch(::kw::emu::Config("
        edits.append(Edit(start, at + 3, head))
        call = f'), "{name}", {address}, [&](auto&&... kw_a) {{ {callee}(kw_a...); }}'
        edits.append(Edit(end, opening + 1, call + ("" if empty else ", ")))


def _declarators(code: str) -> list[str] | None:
    """Names declared by `T a[2][3], b, *c` (specifiers and attributes gone); None where that cannot be told."""
    depth = angle = 0
    parts: list[str] = [""]
    for char in code:
        if char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth -= 1
        elif char == "<" and depth == 0:
            angle += 1
        elif char == ">" and depth == 0:
            angle = max(0, angle - 1)
        if char == "," and depth == 0 and angle == 0:
            parts.append("")
        else:
            parts[-1] += char
    names = []
    for part in parts:
        match = re.search(r"(\w+)\s*((?:\[[^\]]*\]\s*)*)(?:=.*)?$", part.strip(), re.DOTALL)
        if match is None:
            return None
        names.append(match.group(1))
    return names


def _strip_attributes(code: str) -> str:
    while True:
        match = _ATTRIBUTE.search(code)
        if match is None:
            return code
        end = _match_forward(code, match.end() - 1)
        if end < 0:
            return code
        code = code[: match.start()] + code[end + 1 :]


def _declaration_start(code: str, at: int) -> int:
    index = at
    while index > 0 and code[index - 1] not in ";{}:#\\)>":
        index -= 1
        if code[index] == "\n" and code[code.rfind("\n", 0, index) + 1 : index].lstrip().startswith("#"):
            index += 1
            break
    # `__align__(16) __shared__` puts a bracket before the qualifier.
    if index > 0 and code[index - 1] == ")":
        match = re.search(r"(?:__align__|alignas|__attribute__)\s*\((?:[^()]|\([^()]*\))*\)\s*$", code[:index])
        if match:
            return _declaration_start(code, match.start())
    return index


def _edit_shared(text: str, code: str, prefix: str) -> list[Edit]:
    edits: list[Edit] = []
    depths = _depths(code)
    done = 0
    for number, match in enumerate(_SHARED.finditer(code)):
        if match.start() < done:
            continue
        start = _declaration_start(code, match.start())
        while start < match.start() and (code[start].isspace() or code[start] == "\\"):
            start += 1
        end = start
        while end < len(code) and code[end] != ";":
            if code[end] in _OPEN:
                closing = _match_forward(code, end)
                if closing < 0:
                    break
                end = closing
            end += 1
        if end >= len(code) or code[end] != ";" or "{" in code[match.end() : end]:
            continue
        edit = _rewrite_shared(text[start:end], code[start:end], f"{prefix}{number}", depths[match.start()] == 0)
        if edit is None:
            continue
        edits.append(Edit(start, end + 1, edit))
        done = end + 1
    return edits


def _rewrite_shared(text: str, code: str, tag: str, at_file_scope: bool) -> str | None:
    bare = _SPECIFIER.sub(" ", _strip_attributes(code))
    dynamic = re.match(r"(.*?)\b(\w+)\s*\[\s*\]\s*$", bare, re.DOTALL)
    if re.search(r"\bextern\b", code):
        if dynamic is None:
            return None
        kind, name = " ".join(dynamic.group(1).split()), dynamic.group(2)
        if at_file_scope:
            return f"static ::kw::emu::DynamicShared<{kind}> {name};"
        return f"{kind}* const {name} = static_cast<{kind}*>(::kw::emu::dynamic_shared());"
    names = _declarators(bare)
    if not names:
        return None
    body = " ".join(_SPECIFIER.sub(" ", text).replace("\\\n", " ").split())
    area = f"kw_shared_{tag}"
    declared = f"struct {area}_t {{ {body}; }}; static ::kw::emu::SharedBlock<{area}_t> {area};"
    references = "".join(f" auto& {name} = {area}.kw_body.{name};" for name in names)
    label = ", ".join(names)
    if at_file_scope:
        register = f' static ::kw::emu::SharedGlobal {area}_g({area}, "{label}");'
        return declared + register + references.replace(" auto&", " static auto&")
    return f'{declared} ::kw::emu::shared({area}, "{label}");{references}'


def _depths(code: str) -> list[int]:
    """Brace depth at each position; braces of namespaces and `extern "C"` do not count."""
    depths: list[int] = []
    stack: list[bool] = []
    depth = 0
    opener = re.compile(r"(?:\bnamespace\b[\s\w:]*|\bextern\s*\"?\s*C?\s*\"?\s*)$")
    for index, char in enumerate(code):
        depths.append(depth)
        if char == "{":
            counts = opener.search(code[max(0, index - 100) : index]) is None
            stack.append(counts)
            depth += counts
        elif char == "}" and stack:
            depth -= stack.pop()
    return depths


def translate_text(text: str, prefix: str, headers: Sequence[str] = ()) -> str:
    """One source text as C++.

    Raises:
        CompileFailure: an include that leads elsewhere.
        Unsupported: inline assembly, curand and other libraries.
    """
    text = blank_comments(text.replace("\r\n", "\n"))
    code = blank_literals(text)
    asm = _ASM.search(code)
    if asm is not None:
        line = code.count("\n", 0, asm.start()) + 1
        raise Unsupported("inline-assembly", f"line {line}: inline PTX cannot be emulated; it needs a GPU")
    edits = edit_includes(text, code, set(headers))
    edits += [Edit(m.start(), m.end()) for m in _PRAGMA.finditer(code) if "once" not in m.group()]
    # CUDA's keyword; a macro would break `__attribute__((__noinline__))`, which the standard library has
    edits += [Edit(m.start(), m.end(), "__attribute__((noinline))") for m in _NOINLINE.finditer(code)]
    edits += _edit_shared(text, code, prefix)
    edits += _edit_launches(text, code)
    # g++'s own pattern does not do: where a path sets the variable, it takes the others to do so too (seen with 12)
    edits += unset_locals(text)
    return apply_edits(text, edits)


def _without_defaults(text: str) -> str:
    """Default arguments removed from prototypes: the definition in another source may repeat them, which C++ allows
    between translation units only."""
    code = blank_literals(text)
    edits: list[Edit] = []
    position = braces = brackets = 0
    for index, char in enumerate(code):
        brackets += (char == "(") - (char == ")")
        if brackets == 0:
            braces += (char == "{") - (char == "}")
        if braces or brackets or char not in ";}":
            continue
        statement = code[position:index]
        opening = statement.find("(")
        if char == ";" and opening >= 0 and "=" not in statement[:opening]:
            edits += _default_edits(code, position + opening)
        position = index + 1
    return apply_edits(text, edits)


def _default_edits(code: str, opening: int) -> list[Edit]:
    closing = _match_forward(code, opening)
    edits: list[Edit] = []
    depth, start = 0, -1
    for index in range(opening + 1, max(closing, opening + 1)):
        char = code[index]
        if char == "=" and depth == 0 and start < 0:
            start = index
        elif char == "," and depth == 0 and start >= 0:
            edits.append(Edit(start, index))
            start = -1
        depth += (char in "([{<") - (char in ")]}>")
    if start >= 0:
        edits.append(Edit(start, closing))
    return edits


def translate(source: ExtensionSource) -> Unit:
    """All sources of an extension as one C++ translation unit.

    Raises:
        CompileFailure, Unsupported: see `translate_text`, `check_units`.
    """
    check_units(source)
    labels = source.labels or tuple(f"source[{i}]" for i in range(len(source.cpp) + len(source.cuda)))
    parts = [implicit_includes("\n".join((*source.cpp, *source.cuda)))]
    kernels = 0
    for index, (label, text) in enumerate(zip(labels, source.cpp + source.cuda, strict=True)):
        translated = translate_text(text, f"{index}_", tuple(source.headers))
        if index < len(source.cpp) and source.cuda:
            translated = _without_defaults(translated)
        kernels += len(_KERNEL.findall(blank_literals(text)))
        # g++ takes arrays of variable length, nvcc does not
        parts.append(f'#pragma GCC diagnostic {"ignored" if index < len(source.cpp) else "error"} "-Wvla"\n')
        quoted = label.replace("\\", "/").replace('"', "'").replace("\n", " ")
        parts.append(f'#line 1 "{quoted}"\n{translated}\n')
    headers = {}
    for name, text in source.headers.items():
        if not _LOCAL.fullmatch(name):
            raise CompileFailure("forbidden-include", f"header {name!r}: not a plain file name")
        headers[name] = translate_text(text, re.sub(r"\W", "_", name) + "_", tuple(source.headers))
    if source.functions:
        calls = " ".join(f'kw_m.def("{name}", &{name});' for name in source.functions)
        parts.append(
            '#line 1 "functions"\nstatic const bool kw_functions_defined = [] '
            f"{{ pybind11::module_ kw_m; {calls} return true; }}();\n"
        )
    return Unit("".join(parts), headers, kernels)
