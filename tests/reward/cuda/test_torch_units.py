"""What torch's build refuses is refused: a helper without its header, a function that the C++ part does not declare."""

from dataclasses import replace
from pathlib import Path

import pytest
from kernelward.reward.cuda.builder import Builder
from kernelward.reward.cuda.emulator_translate import translate
from kernelward.reward.cuda.frontend import ExtensionSource, Flags
from kernelward.reward.cuda.torch_units import check_units
from kernelward.reward.sandbox.engine import CompileFailure

DECLARED = "torch::Tensor run(torch::Tensor x);"
HEAD = "#include <torch/extension.h>\n#include <cuda_runtime.h>\n"
BODY = "__global__ void k(float* x) { x[0] = 1.f; }\ntorch::Tensor run(torch::Tensor x) {\n  USE\n  return x;\n}\n"


def inline(use: str, head: str = HEAD, cpp: str = DECLARED) -> ExtensionSource:
    return ExtensionSource("e", (cpp,), (head + BODY.replace("USE", use),), ("run",), labels=("cpp", "cuda"))


@pytest.mark.parametrize(
    ("use", "header"),
    [
        ("C10_CUDA_KERNEL_LAUNCH_CHECK();", "c10/cuda/CUDAException.h"),
        ("C10_CUDA_CHECK(cudaGetLastError());", "c10/cuda/CUDAException.h"),
        ("AT_CUDA_CHECK(cudaGetLastError());", "ATen/cuda/Exceptions.h"),
        ("cudaStream_t s = at::cuda::getCurrentCUDAStream();", "ATen/cuda/CUDAContext.h"),
        ("auto s = c10::cuda::getCurrentCUDAStream();", "ATen/cuda/CUDAContext.h"),
        ("const at::cuda::OptionalCUDAGuard guard(device_of(x));", "c10/cuda/CUDAGuard.h"),
        ("using namespace at::cuda; auto s = getCurrentCUDAStream();", "ATen/cuda/CUDAContext.h"),
        ("auto s = torch::cuda::getCurrentCUDAStream();", "ATen/cuda/CUDAContext.h"),
        ("auto* g = new c10::cuda::CUDAGuard(0); using namespace c10::cuda; new CUDAGuard(0);", "c10/cuda/CUDAGuard.h"),
        ("namespace ac = at::cuda; auto s = ac::getCurrentCUDAStream();", "ATen/cuda/CUDAContext.h"),
        ("\n#define CHECK() C10_CUDA_CHECK(cudaGetLastError())\nCHECK();", "c10/cuda/CUDAException.h"),
    ],
)
def test_a_helper_without_its_header_is_refused_by_every_path(use: str, header: str, tmp_path: Path) -> None:
    source = inline(use)
    with pytest.raises(CompileFailure, match=header) as failure:
        check_units(source)
    assert failure.value.reason == "compile"
    assert str(failure.value).startswith("cuda: error: ")
    with pytest.raises(CompileFailure, match=header):
        translate(source)
    with pytest.raises(CompileFailure, match=header):
        Builder(object(), "sm_90").fast(source, tmp_path)  # type: ignore[arg-type]  # no compiler is asked
    check_units(inline(use, f"#include <{header}>\n"))


@pytest.mark.parametrize(
    "use",
    [
        "cudaError_t e = cudaGetLastError(); TORCH_CHECK(e == cudaSuccess, cudaGetErrorString(e));",
        "// C10_CUDA_KERNEL_LAUNCH_CHECK();",
        'TORCH_CHECK(true, "see C10_CUDA_CHECK");',
        "bool some = torch::cuda::is_available();",
        "int MY_C10_CUDA_CHECK_COUNT = 0;",
        "\n#if 0\n  C10_CUDA_KERNEL_LAUNCH_CHECK();\n#endif",
        "\n#ifdef USE_ROCM\n  auto s = at::cuda::getCurrentCUDAStream();\n#endif",
        "\n#define CHECK() \\\n  C10_CUDA_CHECK(cudaGetLastError())\n",
        "using namespace at::cuda;",
    ],
)
def test_what_needs_no_header_is_let_pass(use: str) -> None:
    check_units(inline(use))


@pytest.mark.parametrize(
    ("own", "use"),
    [
        ("#define C10_CUDA_CHECK(e) TORCH_CHECK((e) == cudaSuccess)\n", "C10_CUDA_CHECK(cudaGetLastError());"),
        ("static cudaStream_t getCurrentCUDAStream() { return 0; }\n", "auto s = getCurrentCUDAStream();"),
        ("struct CUDAGuard { CUDAGuard(int) {} };\n", "CUDAGuard guard(0);"),
        ("namespace at { namespace cuda { extern cudaStream_t mine; } }\n", "auto s = at::cuda::mine;"),
        ("#include \\\n  <c10/cuda/CUDAException.h>\n", "C10_CUDA_KERNEL_LAUNCH_CHECK();"),
    ],
)
def test_what_the_candidate_declares_itself_needs_no_header(own: str, use: str) -> None:
    check_units(inline(use, HEAD + own))


def test_a_guard_around_the_whole_file_hides_nothing() -> None:
    guarded = "#ifndef K_CU\n#define K_CU\n" + HEAD
    with pytest.raises(CompileFailure, match="C10_CUDA"):
        check_units(inline("C10_CUDA_KERNEL_LAUNCH_CHECK();\n", guarded))
    check_units(inline("\n#if 0\n C10_CUDA_KERNEL_LAUNCH_CHECK();\n#endif\n", guarded))


def test_a_flag_that_has_nothing_to_do_with_it_changes_nothing() -> None:
    source = replace(inline("C10_CUDA_KERNEL_LAUNCH_CHECK();"), flags=Flags(cflags=("-O3",), cuda_cflags=("-DNDEBUG",)))
    with pytest.raises(CompileFailure, match="C10_CUDA"):
        check_units(source)


@pytest.mark.parametrize(
    "flag", ["-include", "-Drun=ran", "-DC10_CUDA_KERNEL_LAUNCH_CHECK()=0", "--pre-include=c10/cuda/CUDAException.h"]
)
def test_flags_that_may_bring_in_anything_leave_it_to_the_compilers(flag: str) -> None:
    source = inline("C10_CUDA_KERNEL_LAUNCH_CHECK();", cpp="")
    check_units(replace(source, flags=Flags(cuda_cflags=(flag, "c10/cuda/CUDAException.h"))))


@pytest.mark.parametrize("header", ["ATen/cuda/CUDAContext.h", "c10/cuda/CUDAStream.h", "ATen/native/cuda/Loops.cuh"])
def test_any_of_torchs_cuda_headers_leaves_the_rest_to_the_compiler(header: str) -> None:
    check_units(inline("C10_CUDA_KERNEL_LAUNCH_CHECK();", f'{HEAD}# include "{header}"  // all of it\n'))


def test_a_header_counts_for_its_own_unit() -> None:
    use, header = "C10_CUDA_KERNEL_LAUNCH_CHECK();", "#include <c10/cuda/CUDAException.h>\n"
    with pytest.raises(CompileFailure, match="cuda: error"):
        check_units(inline(use, cpp=header + DECLARED))
    split = ExtensionSource("e", (DECLARED,), (header, BODY.replace("USE", use)), ("run",))
    check_units(split)  # load_inline joins the CUDA sources
    with pytest.raises(CompileFailure, match=r"source\[1\]: error"):
        check_units(ExtensionSource("e", (), split.cuda, ("run",), origin="load"))
    beside = {"own.h": header}
    check_units(ExtensionSource("e", (), split.cuda[1:], ("run",), origin="load", headers=beside))


def test_a_function_that_the_cpp_sources_do_not_declare_is_refused_where_torch_binds_it() -> None:
    for cpp in ((), ("",), ("// torch::Tensor run(torch::Tensor x);",), ("torch::Tensor run2(torch::Tensor x);",)):
        source = ExtensionSource("e", cpp, (HEAD + BODY,), ("run",))
        with pytest.raises(CompileFailure, match="run was not declared"):
            check_units(source)
        check_units(replace(source, functions=()))  # a PYBIND11_MODULE of its own
        check_units(replace(source, origin="load"))
    check_units(ExtensionSource("e", (BODY,), (), ("run",)))
    made = "#define F(n) torch::Tensor n##un(torch::Tensor x);\nF(r)"
    for cpp in (made, '#include "own.h"', "torch::Tensor run (\n torch::Tensor x);"):
        check_units(ExtensionSource("e", (cpp,), (HEAD + BODY.replace("USE", ""),), ("run",)))
    check_units(ExtensionSource("e", ("namespace ns { void run(torch::Tensor x); }",), (BODY,), ("ns::run",)))
