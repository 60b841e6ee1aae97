"""CUDA text into C++ for the emulator: launches, shared declarations and includes are rewritten, all else is kept.

The work is done on tokens, not on a syntax tree, so it also reaches launches inside macros and code that no parser
takes. Every rewrite stays on its line: a compiler message names the line of the candidate's source.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..sandbox.engine import CompileFailure
from .frontend import ExtensionSource, Unsupported
from .lexical import Edit, apply_edits, blank_comments, blank_literals

_OPEN, _CLOSE = "([{", ")]}"
_PAIR = dict(zip(_CLOSE, _OPEN, strict=True))

# Headers whose declarations kernelward/torch.h already holds.
_KNOWN = re.compile(
    r"(?:torch|ATen|c10|pybind11|caffe2)/.*|Python\.h"
    r"|cuda(?:_runtime|_runtime_api|_fp16|_bf16|_profiler_api|_device_runtime_api|_texture_types)?\.(?:h|hpp)"
    r"|(?:device_launch_parameters|device_functions|device_atomic_functions|vector_types|vector_functions|math_constants"
    r"|math_functions|driver_types|builtin_types|host_defines|host_config|crt/\w+|sm_\d+_\w+|helper_cuda|texture_types"
    r"|nvToolsExt|cooperative_groups_kernelward)\.h"
    r"|(?:assert|complex|ctype|errno|fenv|float|inttypes|limits|math|setjmp|signal|stdarg|stdbool|stddef|stdint|stdio"
    r"|stdlib|string|time|unistd|omp|memory|wchar)\.h"
)
_STANDARD = re.compile(r"[a-z_]+")  # <vector>, <cmath>, ...
_EXTRA = {
    "cooperative_groups.h": "kernelward/emu/cooperative_groups.h",
    "cooperative_groups/reduce.h": "kernelward/emu/cooperative_groups.h",
    "cooperative_groups/scan.h": "kernelward/emu/cooperative_groups.h",
    "mma.h": "kernelward/emu/wmma.h",
    "cublas_v2.h": "kernelward/emu/cublas.h",
    "cublas.h": "kernelward/emu/cublas.h",
    "cublas_api.h": "kernelward/emu/cublas.h",
    "ATen/cuda/CUDABlas.h": "kernelward/emu/cublas.h",
    "ATen/cuda/CUDAContext.h": "kernelward/emu/cublas.h",
    "cuda_pipeline.h": "kernelward/emu/pipeline.h",
    "cuda_pipeline_primitives.h": "kernelward/emu/pipeline.h",
}
_CUB = re.compile(r"cub/.*")
_LOCAL = re.compile(r"[\w.-]+(?:/[\w.-]+)*")

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*(include|include_next|import)\b[ \t]*([^\n]*)", re.MULTILINE)
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
    fields = f"::kw::emu::SharedArea kw_area; struct {{ {body}; }} kw_body; unsigned char kw_tail[::kw::emu::kGuard];"
    references = "".join(f" auto& {name} = {area}.kw_body.{name};" for name in names)
    label = ", ".join(names)
    if at_file_scope:
        size = f"offsetof(decltype({area}), kw_tail) - offsetof(decltype({area}), kw_body)"
        register = f' static ::kw::emu::SharedGlobal {area}_g({area}.kw_area, {size}, "{label}");'
        return f"static struct {{ {fields} }} {area};{register}" + references.replace(" auto&", " static auto&")
    return f'static struct {{ {fields} }} {area}; ::kw::emu::shared({area}, "{label}");{references}'


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


def _edit_includes(text: str, code: str, headers: set[str]) -> list[Edit]:
    edits: list[Edit] = []
    for match in _INCLUDE.finditer(code):
        target = text[match.start(2) : match.end(2)].split("//")[0].strip()
        name_match = re.fullmatch(r"[<\"]([^<>\"]+)[>\"].*", target)
        if match.group(1) != "include" or name_match is None:
            raise CompileFailure("forbidden-include", f'#{match.group(1)} {target}: only <header> or "header"')
        name = name_match.group(1).strip()
        if name.startswith(("/", "~")) or ".." in name.split("/") or "\\" in name:
            raise CompileFailure("forbidden-include", f"#include {target}: a path outside the include folders")
        if name in headers:
            continue
        if name in _EXTRA:
            replacement = f'#include "{_EXTRA[name]}"'
        elif _CUB.fullmatch(name):
            replacement = '#include "kernelward/emu/cub.h"'
        elif _KNOWN.fullmatch(name):
            replacement = ""
        elif _STANDARD.fullmatch(name):
            continue
        elif re.match(r"curand", name):
            raise Unsupported("curand", f"#include {target}: curand is not emulated; it needs a GPU")
        elif re.match(r"(?:thrust|cutlass|cute|cuda)/|cudnn|cusparse|cusolver|cufft|nvrtc|cuda_pipeline", name):
            raise Unsupported("library", f"#include {target}: this library is not emulated; it needs a GPU")
        else:
            raise CompileFailure("missing-header", f"#include {target}: no such header")
        edits.append(Edit(match.start(), match.end(), replacement))
    return edits


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
    edits = _edit_includes(text, code, set(headers))
    edits += [Edit(m.start(), m.end()) for m in _PRAGMA.finditer(code) if "once" not in m.group()]
    edits += _edit_shared(text, code, prefix)
    edits += _edit_launches(text, code)
    return apply_edits(text, edits)


def _without_defaults(text: str) -> str:
    """Default arguments removed from prototypes: the definition in another source may repeat them, which C++ allows
    between translation units only."""
    code = blank_literals(text)
    edits: list[Edit] = []
    position = depth = 0
    for index, char in enumerate(code):
        if char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
        if depth == 0 and char in ";}":
            statement = code[position:index]
            opening = statement.find("(")
            if char == ";" and opening >= 0 and "{" not in statement and "=" not in statement[:opening]:
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


# torch/extension.h brings in most of the standard library; ours does not, so what is used is included.
_BY_NAME = {
    "algorithm": "sort stable_sort nth_element partial_sort transform fill fill_n copy copy_n reverse find find_if count "
    "count_if all_of any_of none_of for_each accumulate unique remove remove_if max_element min_element minmax clamp "
    "lower_bound upper_bound generate equal swap_ranges iter_swap rotate shuffle next_permutation",
    "numeric": "accumulate iota inner_product partial_sum gcd lcm reduce exclusive_scan inclusive_scan",
    "functional": "function bind plus multiplies minus divides less greater hash ref cref multiplies placeholders",
    "iostream": "cout cerr endl cin clog",
    "map": "map multimap",
    "set": "set multiset",
    "unordered_map": "unordered_map",
    "unordered_set": "unordered_set",
    "mutex": "mutex lock_guard unique_lock once_flag call_once",
    "thread": "thread",
    "atomic": "atomic",
    "chrono": "chrono",
    "iomanip": "setprecision setw setfill",
    "deque": "deque",
    "queue": "queue priority_queue",
    "stack": "stack",
    "list": "list",
    "random": "mt19937 uniform_real_distribution normal_distribution random_device",
    "complex": "complex",
    "bitset": "bitset",
    "variant": "variant visit",
    "string_view": "string_view",
}
_HEADER_OF = [(word, header) for header, words in _BY_NAME.items() for word in words.split()]
_STD_NAME = re.compile(r"\bstd\s*::\s*(\w+)")


def _implicit_includes(code: str) -> str:
    used = set(_STD_NAME.findall(code))
    headers = sorted({header for word, header in _HEADER_OF if word in used})
    return "".join(f"#include <{header}>\n" for header in headers)


def translate(source: ExtensionSource) -> Unit:
    """All sources of an extension as one C++ translation unit.

    Raises:
        CompileFailure, Unsupported: see `translate_text`.
    """
    labels = source.labels or tuple(f"source[{i}]" for i in range(len(source.cpp) + len(source.cuda)))
    parts = [_implicit_includes("\n".join((*source.cpp, *source.cuda)))]
    kernels = 0
    for index, (label, text) in enumerate(zip(labels, source.cpp + source.cuda, strict=True)):
        translated = translate_text(text, f"{index}_", tuple(source.headers))
        if index < len(source.cpp) and source.cuda:
            translated = _without_defaults(translated)
        kernels += len(_KERNEL.findall(blank_literals(text)))
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
