"""What torch's build of an extension refuses and ours, with one header of its own for one unit, would let pass.

A source that uses torch's CUDA helpers has to include a header of theirs: `torch/extension.h` does not bring them in.
Of 92 public solutions that forget it and whose compilation is on record 91 failed; the other one caught the error and
went on without its kernel. And `load_inline` binds `functions` in the C++ unit, which has to declare them.
"""

import re

from ..sandbox.engine import CompileFailure
from .frontend import ExtensionSource
from .lexical import blank_comments, blank_literals

_CHECKS, _EXCEPTIONS = "c10/cuda/CUDAException.h", "ATen/cuda/Exceptions.h"
_MACROS = {
    **{f"C10_CUDA_{name}": _CHECKS for name in ("CHECK", "CHECK_WARN", "ERROR_HANDLED", "IGNORE_ERROR", "CLEAR_ERROR")},
    "C10_CUDA_KERNEL_LAUNCH_CHECK": _CHECKS,
    **dict.fromkeys(("AT_CUDA_CHECK", "AT_CUDA_DRIVER_CHECK", "TORCH_CUDABLAS_CHECK"), _EXCEPTIONS),
    **dict.fromkeys(("CUDA_KERNEL_LOOP", "CUDA_KERNEL_LOOP_TYPE"), "ATen/cuda/detail/KernelUtils.h"),
}
_NAMES = (
    "getCurrentCUDAStream",
    "getDefaultCUDAStream",
    "getStreamFromPool",
    "getCurrentDeviceProperties",
    "CUDAGuard",
    "OptionalCUDAGuard",
    "CUDAStreamGuard",
)
_USES = re.compile(rf"\b(?:{'|'.join((*_MACROS, *_NAMES))})\b|\b(?:at|c10)\s*::\s*cuda\s*::\s*\w+")
#: What a unit declares itself: macros, types, functions, names in a reopened namespace.
_OWN = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(\w+)|\b(?:struct|class)\s+(\w+)"
    r"|\b(?!(?:return|else|new|case|throw)\b)\w[\w:]*[\s*&]+(\w+)\s*\("
    r"|\bnamespace\s+(at|c10)\b(?:\s*::\s*\w+)*\s*\{",
    re.MULTILINE,
)
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[^\n]*", re.MULTILINE)
_INCLUDES = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]([^<>\"\n]+)[>\"]", re.MULTILINE)
#: Headers that bring in some of it, each of them taken to bring in all: who includes one is left to the compiler.
_PROVIDES = re.compile(r"(?:c10|ATen|torch/csrc|caffe2|THC)/.*(?:cuda|cudnn|native|THC).*", re.IGNORECASE)
_PLAIN = re.compile(r"[<\"](?:torch/(?:extension|torch|types|all|python)|ATen/ATen)\.h[>\"]|<[a-z_]+(?:\.h)?>")
_TARGETS = re.compile(r"^[ \t]*#[ \t]*include[ \t]*(\S+)", re.MULTILINE)
_CONDITIONAL = re.compile(r"^[ \t]*#[ \t]*(?:(if|ifdef|ifndef|endif)\b(?:[ \t]+(\w+))?)[^\n]*", re.MULTILINE)


def check_units(extension: ExtensionSource) -> None:
    """Refuse what torch's build would refuse. In doubt nothing is said: the compilers have the word.

    Raises:
        CompileFailure: `compile`; the message names what is undefined, where, and what is missing.
    """
    flags = " ".join((*extension.flags.cflags, *extension.flags.cuda_cflags))
    if re.search(r"(?:^|\s)(?:-include|--pre-include|-imacros)", flags):
        return  # it may bring in anything
    if {*re.findall(r"\w+", flags.replace("-D", " "))} & {*_MACROS, *_NAMES, *extension.functions}:
        return  # a macro of that name
    _check_includes(extension)
    if extension.origin == "load_inline" and extension.cuda:
        _check_functions(extension)


def _check_functions(extension: ExtensionSource) -> None:
    declared = "\n".join(map(_code, (*extension.cpp, *extension.headers.values())))
    spliced = "\n".join(map(_spliced, extension.cpp))
    if "##" in declared or not all(_PLAIN.fullmatch(target) for target in _TARGETS.findall(spliced)):
        return
    for function in extension.functions:
        name = function.rpartition("::")[2]
        if not re.search(rf"\b{re.escape(name)}\s*\(", declared):
            raise CompileFailure(
                "compile", f"cpp_sources: error: {name} was not declared in this scope: `functions` names it"
            )


def _check_includes(extension: ExtensionSource) -> None:
    labels = extension.labels or tuple(f"source[{i}]" for i in range(len(extension.cpp) + len(extension.cuda)))
    sources = list(zip(labels, extension.cpp + extension.cuda, strict=True))
    if extension.origin == "load_inline":  # one unit of C++, one of CUDA
        units = [sources[: len(extension.cpp)], sources[len(extension.cpp) :]]
    else:
        units = [[source] for source in sources]
    for unit in units:
        texts = [*extension.headers.values(), *(text for _, text in unit)]
        if any(_PROVIDES.fullmatch(name.strip()) for text in texts for name in _INCLUDES.findall(_spliced(text))):
            continue
        code = "\n".join(map(_code, texts))
        own = {name for match in _OWN.findall(code) for name in match if name}
        if own & {"at", "c10"}:
            continue
        for label, text in unit:
            _check(label, _code(text), own, code)


def _spliced(text: str) -> str:
    """Without comments; lines that a backslash joins are one, at the same offsets."""
    return blank_comments(text.replace("\r\n", "\n")).replace("\\\n", "  ")


def _code(text: str) -> str:
    return blank_literals(text.replace("\r\n", "\n")).replace("\\\n", "  ")


def _check(label: str, code: str, own: set[str], unit: str) -> None:
    for use in _USES.finditer(code):
        name = re.split(r"[\s:]+", use.group())[-1]
        if name in own or _is_conditional(code, use.start()) or _is_unused_macro(code, use.start(), unit):
            continue
        header = _MACROS.get(name) or ("c10/cuda/CUDAGuard.h" if name.endswith("Guard") else "ATen/cuda/CUDAContext.h")
        raise CompileFailure(
            "compile",
            f"{label}: error: {use.group()} is undefined: torch/extension.h lacks it; #include <{header}>",
        )


def _is_conditional(code: str, position: int) -> bool:
    """Whether it stands between `#if` and `#endif`, other than a guard of the whole file."""
    depth, guarded = 0, False
    for match in _CONDITIONAL.finditer(code, 0, position):
        if match.group(1) == "endif":
            depth -= 1
            continue
        name = match.group(2) or ""
        follows = code[match.end() :].lstrip()
        if depth == 0 and match.group(1) == "ifndef" and re.match(rf"#[ \t]*define[ \t]+{re.escape(name)}\b", follows):
            guarded = True
        depth += 1
    return depth > guarded


def _is_unused_macro(code: str, position: int, unit: str) -> bool:
    """Whether it stands in the definition of a macro that its unit never expands."""
    for match in _DEFINE.finditer(code):
        if match.start() <= position < match.end():
            return len(re.findall(rf"\b{re.escape(match.group(1))}\b", unit)) == 1
    return False
