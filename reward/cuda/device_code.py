"""A candidate's device code as a program for NVRTC: its includes, its nvcc options, the kernels to instantiate.

NVRTC sees no host header. What device code takes from them is in `include/kernelward/device.h`; CUDA's own headers
with device code come from NVIDIA's wheels or a toolkit.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from ..sandbox.engine import CompileFailure
from .frontend import ExtensionSource, Unsupported
from .instrument import BARRIERS, instrumented
from .nvrtc import DeviceProgram, include_folders
from .split_model import SplitSource

INCLUDE_DIR = Path(__file__).parent / "include"

TORCH_NVCC_FLAGS = (
    "-D__CUDA_NO_HALF_OPERATORS__",
    "-D__CUDA_NO_HALF_CONVERSIONS__",
    "-D__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "-D__CUDA_NO_HALF2_OPERATORS__",
)
"""What torch passes to nvcc for every extension, and a candidate's code is therefore held to."""

# ---- includes --------------------------------------------------------------------------------------------------------

# Host headers: what device code takes from them is in device.h or built into the compiler.
_HOST_HEADERS = re.compile(
    r"(?:torch|ATen|c10|pybind11|caffe2)/.*"
    r"|Python\.h|cuda\.h|cuda_runtime(?:_api)?\.h|device_launch_parameters\.h|device_functions\.h|vector_(?:types|functions)\.h"
    r"|driver_types\.h|builtin_types\.h|math_functions\.h|sm_\d+_intrinsics\.h|host_defines\.h|cuda_device_runtime_api\.h"
    r"|(?:cublas|cublasLt|cublas_v2|cublas_api|cudnn|cusparse|cusolverDn|cufft|curand|nvrtc|nvToolsExt|cuda_profiler_api)\.h"
    r"|(?:assert|complex|ctype|errno|fenv|float|inttypes|iso646|limits|locale|math|setjmp|signal|stdarg|stdbool|stddef|stdint"
    r"|stdio|stdlib|string|tgmath|time|uchar|wchar|wctype|unistd|omp)\.h"
    r"|[a-z_]+"
)
# CUDA's own headers that hold device code.
_DEVICE_HEADERS = re.compile(
    r"cuda_(?:fp16|bf16|fp8|fp6|fp4|pipeline|awbarrier)\.h|cuda_pipeline_(?:primitives|helpers)\.h|mma\.h|cuComplex\.h"
    r"|cooperative_groups\.h|cooperative_groups/[\w./]+|cub/[\w./]+|cuda/[\w./]+|thrust/[\w./]+|curand_\w+\.h"
    r"|math_constants\.h|nv/target"
)
_GPU_ATEN = re.compile(
    r"ATen/cuda/(?:Atomic|DeviceUtils|CUDAGraphsUtils)\.cuh|ATen/(?:native|cuda/detail)/.*|c10/cuda/CUDAMathCompat\.h"
)


def classify_include(path: str) -> str:
    """`host`, `device` or `unsupported` for what stands behind `#include`, delimiters included.

    Raises:
        CompileFailure: the path leads out of the include folders, or is no path at all.
    """
    match = re.fullmatch(r"[<\"]([^<>\"]+)[>\"]", path)
    if match is None:
        raise CompileFailure("forbidden-include", f'#include {path}: only <header> and "header" are accepted')
    name = match.group(1).strip()
    if name.startswith(("/", "~")) or ".." in name.split("/") or "\\" in name:
        raise CompileFailure("forbidden-include", f"#include {path}: paths outside the include folders are not allowed")
    if _GPU_ATEN.fullmatch(name):
        return "unsupported"
    if _DEVICE_HEADERS.fullmatch(name):
        return "device"
    if _HOST_HEADERS.fullmatch(name):
        return "host"
    return "unsupported"


def _require(header: str) -> None:
    if not any((folder / header).is_file() for folder in include_folders()):
        raise Unsupported(
            "cuda-headers", f"CUDA's header {header} was not found (NVIDIA's wheels or a toolkit have it)"
        )


def _device_headers(name: str, code: str) -> list[str]:
    """Headers for one include. `cub/cub.cuh` drags in host code, so what the device code uses of it is named singly."""
    if name != "cub/cub.cuh":
        return [name]
    found = []
    for kind, rest in re.findall(r"\b(Block|Warp)([A-Z][A-Za-z]+)\s*<", code):
        snake = re.sub(r"(?<!^)(?=[A-Z])", "_", rest).lower()
        header = f"cub/{kind.lower()}/{kind.lower()}_{snake}.cuh"
        if any((folder / header).is_file() for folder in include_folders()):
            found.append(header)
    return [*found, "cub/thread/thread_operators.cuh"] if "cub::" in code else []


_CCCL = re.compile(r"<(?:cub|cuda|thrust)/|<cooperative_groups|<cuda_pipeline|<cuda_awbarrier")
_HALF = re.compile(r"\b(?:__)?(?:nv_)?(?:half2?|bfloat16\d?|bfloat162)\b|\b(?:Half|BFloat16)\b")


@lru_cache
def our_header(name: str) -> str:
    """Text of `kernelward/<name>`."""
    return (INCLUDE_DIR / "kernelward" / name).read_text()


def device_program(
    extension: ExtensionSource, split: SplitSource, arch: str, expressions: Sequence[str], strict: bool = False
) -> DeviceProgram:
    """The whole program: the device headers that the code needs, ours, then the code with its `#line` directives.

    Args:
        extension, split: the candidate's extension and what `split` made of it.
        arch: real architecture, `sm_90`.
        expressions: kernels to instantiate (`instantiations`).
        strict: with pauses and poison (`instrument`).

    Raises:
        CompileFailure: a forbidden include.
        Unsupported: a header or option that device code cannot have here.
    """
    wanted: list[str] = []
    for include in split.includes:
        name = include.path[1:-1].strip()
        if name not in extension.headers:
            kind = classify_include(include.path)
            if kind == "unsupported":
                raise Unsupported("include", f"#include {include.path}")
            if kind == "device":
                for header in _device_headers(name, split.device):
                    _require(header)
                    line = f"#include <{header}>"
                    if line not in wanted:
                        wanted.append(line)
    half = any(_HALF.search(text) for text in (split.device, *expressions))
    lines = ["#include <cuda_fp16.h>", "#include <cuda_bf16.h>", "#define KW_WITH_HALF 1"] if half else []
    if any(_CCCL.search(line) for line in wanted):
        lines.append("#define KW_WITH_CCCL 1")
    lines += ["#include <kernelward/device.h>", *wanted, "#define pow(...) kw_pow(__VA_ARGS__)"]
    headers = {"kernelward/device.h": our_header("device.h")}
    if strict:
        lines += ["#include <kernelward/strict.h>", BARRIERS]
        headers["kernelward/strict.h"] = our_header("strict.h")
    lines.append(split.line_map.annotate(instrumented(split.device) if strict else split.device))
    if half:
        _require("cuda_fp16.h")
    return DeviceProgram(
        source="\n".join(lines),
        arch=arch,
        options=device_options(extension.flags.cuda_cflags),
        headers=headers,
        expressions=tuple(expressions),
    )


# ---- options ---------------------------------------------------------------------------------------------------------

_IGNORED = re.compile(
    r"-O[0-3s]?|-g|-w|-Wall|-Wextra|-Wno-.*|-v|--verbose|-lineinfo|--generate-line-info|--ptxas-options=-(?:v|O3|warn-\S+)"
    r"|--expt-relaxed-constexpr|-expt-relaxed-constexpr|--expt-extended-lambda|-expt-extended-lambda|--extended-lambda"
    r"|-fPIC|-l\w+|--compiler-options=.*|--threads=?\d*|-t\d+|--diag-suppress=.*|-diag-suppress=.*|--optimize=?\d"
)
_IGNORED_WITH_VALUE = {
    "-Xcompiler",
    "--compiler-options",
    "-Xcudafe",
    "--threads",
    "-t",
    "--diag-suppress",
    "-diag-suppress",
}
_PASSED = re.compile(
    r"-D\w+(?:=.*)?|-U\w+|-?-use_fast_math|-?-(?:fmad|ftz|prec-div|prec-sqrt)=(?:true|false)|-?-restrict"
    r"|-?-maxrregcount=\d+|-?-extra-device-vectorization|-?-std=(?:c|gnu)\+\+(?:11|14|17|20)"
)
_PASSED_WITH_VALUE = {
    "-maxrregcount": "--maxrregcount",
    "--maxrregcount": "--maxrregcount",
    "-std": "--std",
    "--std": "--std",
}
_DEFINE = re.compile(r"-[DU]\w+(?:=.*)?")


def device_options(flags: Sequence[str]) -> tuple[str, ...]:
    """A candidate's nvcc options as NVRTC options.

    Raises:
        Unsupported: an option that changes the result and that NVRTC does not have.
    """
    options: list[str] = [*TORCH_NVCC_FLAGS]
    standard = "--std=c++20"
    words = list(flags)
    while words:
        word = words.pop(0)
        if word in ("-D", "-U") and words:
            word += words.pop(0)
        ptxas = word in ("-Xptxas", "--ptxas-options") and words and re.fullmatch(r"-(?:v|O3|warn-\S+)", words[0])
        if ptxas or (word in _IGNORED_WITH_VALUE and words):
            words.pop(0)
        elif word in _PASSED_WITH_VALUE and words:
            words.insert(0, f"{_PASSED_WITH_VALUE[word]}={words.pop(0)}")
        elif _PASSED.fullmatch(word):
            if "std=" in word:
                standard = "--std=" + word.split("=")[1].replace("gnu", "c")
            elif _DEFINE.fullmatch(word):
                options.append(word)
            else:
                options.append("--" + word.lstrip("-"))
        elif not _IGNORED.fullmatch(word):
            raise Unsupported("option", f"nvcc option {word}")
    options.append(standard)
    options.extend(f"--include-path={folder}" for folder in include_folders())
    return tuple(dict.fromkeys(options))


# ---- instantiations --------------------------------------------------------------------------------------------------

_FLOATING = ("float", "double")
_INTEGRAL = ("unsigned char", "signed char", "int", "long", "short")
_TYPE_WORDS = frozenset(
    (
        *("scalar_t", "float", "double", "int", "long", "short", "char", "bool", "unsigned", "signed", "true", "false"),
        *("half", "__half", "__nv_bfloat16", "float2", "float4", "double2", "int4"),
        *("at", "c10", "torch", "Half", "BFloat16"),
    )
)
_SIMPLE = re.compile(r"[\w:]+(?:\s+[\w:]+)*|-?\d+[uUlL]*")


def instantiations(split: SplitSource) -> tuple[str, ...]:
    """Expressions for the kernels that the host code will launch, as far as its text says.

    Kernels that are no templates are all of them. Of templates, those whose arguments can be written down: literals,
    types and constants at namespace scope, and `scalar_t` inside `AT_DISPATCH_*`. Others are compiled when the host
    code launches them.
    """
    found: dict[str, None] = {}
    by_name = {kernel.name: kernel for kernel in split.kernels}
    for kernel in split.kernels:
        if not kernel.template_params:
            found[kernel.qualified] = None
    for launch in split.launches:
        named = by_name.get(re.split(r"<", launch.kernel)[0].split("::")[-1].strip())
        if named is None or not named.template_params or not launch.template_args:
            continue
        for arguments in _written_down(launch.template_args, launch.dispatch, split.names):
            found[f"{named.qualified}<{', '.join(arguments)}>"] = None
    # Kernels that are named without being launched there: pointers, cudaFuncSetAttribute.
    for kernel in split.kernels:
        if kernel.template_params:
            for match in re.finditer(rf"\b{kernel.name}\s*<([^<>;(){{}}]+)>", split.host):
                arguments = [argument.strip() for argument in match.group(1).split(",")]
                for written in _written_down(arguments, "", split.names):
                    found[f"{kernel.qualified}<{', '.join(written)}>"] = None
    return tuple(found)


def _written_down(template_args: Sequence[str], dispatch: str, names: frozenset[str]) -> list[list[str]]:
    """Template arguments with `scalar_t` replaced by each type of its dispatch; [] where unknown."""
    for argument in template_args:
        words = re.findall(r"[A-Za-z_]\w*", re.sub(r"\d+[uUlL]*", "", argument))
        if not _SIMPLE.fullmatch(argument.strip()) or not all(word in _TYPE_WORDS or word in names for word in words):
            return []
    if "scalar_t" not in template_args:
        return [list(template_args)]
    dispatch = dispatch.removeprefix("AT_DISPATCH_")
    types: tuple[str, ...] = ()
    if dispatch.startswith("FLOATING_TYPES"):
        types = _FLOATING + (("c10::Half",) if dispatch.endswith("_HALF") else ())
    elif dispatch.startswith("ALL_TYPES"):
        types = _FLOATING + _INTEGRAL
    elif dispatch.startswith("INTEGRAL_TYPES"):
        types = _INTEGRAL
    return [[t if argument == "scalar_t" else argument for argument in template_args] for t in types]
