"""Which headers a candidate may include on the emulator, and what stands in for them."""

import re

from ..sandbox.engine import CompileFailure
from .frontend import Unsupported
from .lexical import Edit

# Headers whose declarations kernelward/torch.h already holds.
_KNOWN = re.compile(
    r"(?:torch|ATen|c10|pybind11|caffe2)/.*|Python\.h"
    r"|cuda(?:_runtime|_runtime_api|_fp16|_bf16|_profiler_api|_device_runtime_api|_texture_types)?\.(?:h|hpp)"
    r"|(?:device_launch_parameters|device_functions|device_atomic_functions|vector_types|vector_functions|math_constants"
    r"|math_functions|driver_types|builtin_types|host_defines|host_config|crt/\w+|sm_\d+_\w+|helper_cuda|texture_types"
    r"|nvToolsExt)\.h"
    r"|assert\.h|cassert"  # our assert ends the kernel, not the process
)
_STANDARD = re.compile(  # <vector>, <cmath>, ..., and C's
    r"[a-z_]+|(?:complex|ctype|errno|fenv|float|inttypes|limits|math|setjmp|signal|stdarg|stdbool|stddef|stdint|stdio"
    r"|stdlib|string|time|unistd|omp|memory|wchar)\.h"
)
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

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*(include|include_next|import)\b[ \t]*([^\n]*)", re.MULTILINE)


def edit_includes(text: str, code: str, headers: set[str]) -> list[Edit]:
    """Edits that drop includes of what our header holds, exchange those of emulated libraries, and keep standard ones.

    Args:
        text, code: the source, and the source with literals blanked.
        headers: the candidate's own, which are laid beside it.

    Raises:
        CompileFailure: a path that leads elsewhere, or a header that does not exist.
        Unsupported: a library that needs a GPU.
    """
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


# torch/extension.h brings in most of the standard library; ours does not, so what is used is included.
_BY_NAME = {
    "algorithm": "sort stable_sort nth_element partial_sort transform fill fill_n copy copy_n reverse find find_if "
    "count count_if all_of any_of none_of for_each unique remove remove_if max_element min_element minmax clamp "
    "lower_bound upper_bound generate equal swap_ranges iter_swap rotate shuffle next_permutation",
    "numeric": "accumulate iota inner_product partial_sum gcd lcm reduce exclusive_scan inclusive_scan",
    "functional": "function bind plus multiplies minus divides less greater hash ref cref placeholders",
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


def implicit_includes(code: str) -> str:
    """`#include` lines for what the code uses of the standard library."""
    used = set(_STD_NAME.findall(code))
    headers = sorted({header for word, header in _HEADER_OF if word in used})
    return "".join(f"#include <{header}>\n" for header in headers)
