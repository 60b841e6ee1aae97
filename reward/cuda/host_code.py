"""A candidate's host code as translation units for g++, and what to make of g++'s complaints."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from .device_code import classify_include
from .frontend import ExtensionSource, Unsupported
from .lexical import LineMap
from .nvrtc import include_folders
from .split_model import SplitSource

# Headers whose content our precompiled header stands in for.
_COVERED = re.compile(
    r"(?:torch|ATen|c10|pybind11|caffe2)/.*|Python\.h|cuda\.h|cuda_runtime(?:_api)?\.h|cuda_(?:fp16|bf16)\.h|driver_types\.h"
    r"|device_launch_parameters\.h|device_functions\.h|vector_(?:types|functions)\.h|builtin_types\.h|host_defines\.h"
    r"|math_functions\.h|sm_\d+_intrinsics\.h|cuda_device_runtime_api\.h"
)
_LIBRARIES = {
    "cublas.h": "cublas",
    "cublas_v2.h": "cublas",
    "cublas_api.h": "cublas",
    "cublasLt.h": "cublasLt",
    "cudnn.h": "cudnn",
    "cusparse.h": "cusparse",
    "cusolverDn.h": "cusolver",
    "cufft.h": "cufft",
    "curand.h": "curand",
}
_LINKABLE = re.compile(
    r"-l(?:cublas|cublasLt|cudnn|cusparse|cusolver|cufft|curand|cudart|cuda|m|pthread|dl|stdc\+\+|c10|torch\w*)"
)
_IGNORED = re.compile(
    r"-O[0-3sg]?|-Ofast|-g\d?|-w|-W\w[\w=+-]*|-std=(?:c|gnu)\+\+\d\d|-f(?:PIC|pic|fast-math|unroll-loops|permissive|visibility=\w+)"
    r"|-fno-[\w-]+|-march=[\w.-]+|-mtune=[\w.-]+|-m(?:avx\w*|fma|sse[\w.]*|f16c)|-pthread|-pipe|-L[\w/.-]*|-Wl,[\w=,/.-]*"
)
_DEFINE = re.compile(r"-D(\w+)(?:=(.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class HostUnits:
    """What the host compiler gets.

    Attributes:
        together: one translation unit with everything.
        apart: the C++ part and the CUDA part as units of their own, as torch compiles them.
        defines: macros, `TORCH_EXTENSION_NAME` included.
        link: linker options.
        libraries: CUDA libraries that must be loaded before the result (`cublas`).
    """

    together: tuple[str, ...]
    apart: tuple[str, ...]
    defines: Mapping[str, str]
    link: tuple[str, ...]
    libraries: tuple[str, ...]


def host_units(extension: ExtensionSource, parts: SplitSource) -> HostUnits:
    """Translation units for the host part of a split extension.

    Raises:
        CompileFailure: a forbidden include.
        Unsupported: a header, library or option that this path does not have.
    """
    head: list[str] = []
    libraries: dict[str, None] = {}
    for include in parts.includes:
        name = include.path[1:-1].strip()
        kind = classify_include(include.path)
        if _COVERED.fullmatch(name) or kind == "device":
            continue
        if kind == "unsupported":
            raise Unsupported("include", f"#include {include.path}")
        if name in _LIBRARIES:
            if not any((folder / name).is_file() for folder in include_folders()):
                if re.search(rf"\b{_LIBRARIES[name]}\w", parts.host, re.IGNORECASE):
                    raise Unsupported("cuda-headers", f"CUDA's header {name} was not found")
                continue  # included and not used
            libraries[_LIBRARIES[name]] = None
        head.append(f"#include <{name}>\n")
    defines = {"TORCH_EXTENSION_NAME": extension.name}
    for flag in (*extension.flags.cflags, *extension.flags.cuda_cflags):
        match = _DEFINE.fullmatch(flag)
        if match is not None:
            defines[match.group(1)] = "1" if match.group(2) is None else match.group(2).replace("\n", " ")
    for flag in extension.flags.cflags:
        if not _IGNORED.fullmatch(flag) and not _DEFINE.fullmatch(flag):
            raise Unsupported("option", f"host compiler option {flag}")
    for flag in extension.flags.ldflags:
        if _LINKABLE.fullmatch(flag):
            if flag[2:] in _LIBRARIES.values():
                libraries[flag[2:]] = None
        elif not _IGNORED.fullmatch(flag):
            raise Unsupported("option", f"linker option {flag}")
    if extension.flags.include_paths:
        raise Unsupported("option", "extra_include_paths")
    includes = "".join(dict.fromkeys(head))
    cpp, cuda = _cut(parts, frozenset(extension.labels[len(extension.cpp) :]))
    apart = tuple(includes + text for text in (cpp, cuda) if text)
    return HostUnits((includes + parts.line_map.annotate(parts.host),), apart, defines, (), tuple(libraries))


def _cut(parts: SplitSource, cuda_labels: frozenset[str]) -> tuple[str, str]:
    """The host text cut before the first CUDA source, each part with its `#line` directives."""
    lines = parts.host.split("\n")
    texts: tuple[list[str], list[str]] = ([], [])
    segments = parts.line_map.segments
    behind = False
    for index, (start, label, origin) in enumerate(segments):
        end = segments[index + 1][0] - 1 if index + 1 < len(segments) else len(lines)
        block = "\n".join(lines[start - 1 : end])
        behind = behind or label in cuda_labels
        texts[1 if behind else 0].append(LineMap(((1, label, origin),)).annotate(block))
    return "\n".join(texts[0]), "\n".join(texts[1])


# What our header, or the headers that it stands in for, could be to blame for.
_OURS = re.compile(
    r"torch|\bat::|c10|\bpy::|pybind11|Tensor|cuda|cublas|cudnn|curand|\bcu[A-Z]|CU[A-Z]+_|\bkw\b|kw_|KW_|\b__\w|half|bfloat"
    r"|dim3|\b(?:float|double|int|uint|char|short|long)[1-4]\b|make_\w+\d|'[A-Z][A-Z0-9_]+'|std::"
)
# What is wrong whatever the headers declare.
_CERTAIN = re.compile(
    r"expected (?:';'|'\}'|'\)'|'\{'|'\]'|',' or|primary-expression|unqualified-id|declaration|statement|identifier)"
    r"|stray '|missing terminating|unterminated|redefinition of|redeclared|conflicting declaration|undefined reference"
    r"|'\w+' was not declared in this scope|lvalue required|break statement|continue statement|return-statement with"
    r"|too (?:few|many) arguments|cannot be used as a function"
)


def is_gap(message: str) -> bool:
    """Whether g++'s errors may be our header's fault: torch's own compilation must then decide.

    Syntax errors, redefinitions and undeclared names that no header of torch, CUDA or C++ would declare are the
    candidate's; they are the same under torch. In doubt it is a gap: that costs a minute, the other way a verdict.
    """
    errors = [
        line.split("error:")[-1] for line in message.splitlines() if re.search(r"error:|undefined reference", line)
    ]
    return not errors or "/kernelward/" in message or any(_OURS.search(e) or not _CERTAIN.search(e) for e in errors)
