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
_USES = re.compile(rf"\b(?:{'|'.join(_MACROS)})\b|\b(?:at|c10)\s*::\s*cuda\s*::\s*(\w+)")
_DEFINES = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)
_INCLUDES = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]([^<>\"\n]+)[>\"]", re.MULTILINE)
#: Headers that bring in some of it, each of them taken to bring in all: who includes one is left to the compiler.
_PROVIDES = re.compile(r"(?:c10|ATen|torch/csrc|caffe2|THC)/.*(?:cuda|cudnn|native|THC).*", re.IGNORECASE)
_CONDITIONAL = re.compile(r"^[ \t]*#[ \t]*(if|ifdef|ifndef|endif)\b", re.MULTILINE)


def check_units(extension: ExtensionSource) -> None:
    """Refuse what torch's build would refuse. What stands between `#if` and `#endif` is not looked at.

    Raises:
        CompileFailure: `compile`; the message names what is undefined, where, and what is missing.
    """
    _check_includes(extension)
    if extension.origin == "load_inline" and extension.cuda:
        declared = "\n".join(map(blank_literals, (*extension.cpp, *extension.headers.values())))
        for function in extension.functions:
            name = function.rpartition("::")[2]
            if not re.search(rf"\b{re.escape(name)}\b", declared):
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
        texts = [
            blank_comments(text.replace("\r\n", "\n")) for text in (*extension.headers.values(), *(t for _, t in unit))
        ]
        if any(_PROVIDES.fullmatch(name.strip()) for text in texts for name in _INCLUDES.findall(text)):
            continue
        own = {name for text in texts for name in _DEFINES.findall(text)}
        for label, text in unit:
            _check(label, blank_literals(text.replace("\r\n", "\n")), own)


def _check(label: str, code: str, own: set[str]) -> None:
    for use in _USES.finditer(code):
        name = use.group(1) or use.group()
        if name in own or _is_conditional(code, use.start()):
            continue
        header = _MACROS.get(name) or ("c10/cuda/CUDAGuard.h" if name.endswith("Guard") else "ATen/cuda/CUDAContext.h")
        line = code.count("\n", 0, use.start()) + 1
        raise CompileFailure(
            "compile",
            f"{label}:{line}: error: {use.group()} is undefined: torch/extension.h lacks it; #include <{header}>",
        )


def _is_conditional(code: str, position: int) -> bool:
    depth = 0
    for match in _CONDITIONAL.finditer(code, 0, position):
        depth += -1 if match.group(1) == "endif" else 1
    return depth > 0
