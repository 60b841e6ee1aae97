"""Device code through NVRTC: what candidates may use, and what they are told when they may not."""

import time

import pytest
from kernelward.reward.cuda.demangle import canonical, demangle, expression_of, template_id
from kernelward.reward.cuda.device_code import classify_include, device_options, device_program, instantiations
from kernelward.reward.cuda.frontend import ExtensionSource, Flags, Unsupported
from kernelward.reward.cuda.nvrtc import Cubin, NvrtcMissing, include_folders, nvrtc
from kernelward.reward.cuda.split import split
from kernelward.reward.sandbox.engine import CompileFailure


def _available() -> bool:
    try:
        nvrtc()
    except NvrtcMissing:
        return False
    return True


needs_nvrtc = pytest.mark.skipif(not _available(), reason="needs NVRTC (pip install nvidia-cuda-nvrtc)")
needs_headers = pytest.mark.skipif(not include_folders(), reason="needs CUDA's headers (a toolkit or NVIDIA's wheels)")
EXPORT = 'void run(torch::Tensor x);\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }\n'


def extension(cuda: str, *flags: str) -> ExtensionSource:
    return ExtensionSource("e", (EXPORT,), (cuda,), flags=Flags(cuda_cflags=flags), labels=("cpp", "cuda_sources[0]"))


def compiled(cuda: str, *flags: str) -> Cubin:
    source = extension(cuda, *flags)
    parts = split(source)
    return nvrtc().compile(device_program(source, parts, "sm_90", instantiations(parts)))


@needs_nvrtc
def test_kernels_of_every_kind_are_compiled_and_found_by_name() -> None:
    cubin = compiled(
        """
        #include <torch/extension.h>
        constexpr int BLOCK = 64;
        enum class Mode { Sum, Max };
        extern "C" __global__ void plain(float* x) { x[0] = 1; }
        namespace inner { template <typename T, int N> __global__ void scale(T* x) { x[0] *= N; } }
        template <Mode M> __global__ void reduce(float* x) { if (M == Mode::Max) x[0] = 0; }
        void run(torch::Tensor x) {
          plain<<<1, 1>>>(x.data_ptr<float>());
          AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "run", [&] { inner::scale<scalar_t, BLOCK><<<1, 1>>>(p); });
          auto pointer = inner::scale<float, 8>;
        }
        """
    )
    assert cubin.image.startswith(b"\x7fELF")
    assert cubin.symbols["plain"] == "plain"
    names = {template_id(symbol) for symbol in cubin.symbols.values()}
    assert {"inner::scale<float,64>", "inner::scale<double,64>", "inner::scale<float,8>"} <= names


@needs_nvrtc
@needs_headers
def test_what_torch_and_the_standard_headers_declare_is_there_for_device_code() -> None:
    compiled(
        """
        #include <torch/extension.h>
        #include <cuda_fp16.h>
        #include <cmath>
        #include <limits>
        #include <algorithm>
        #include <cfloat>
        #include <cooperative_groups.h>
        namespace cg = cooperative_groups;
        template <typename T> __global__ void k(torch::PackedTensorAccessor32<T, 2, torch::RestrictPtrTraits> a, T* y) {
          cg::thread_block block = cg::this_thread_block();
          CUDA_KERNEL_LOOP(i, 4) {
            T best = -std::numeric_limits<T>::infinity();
            best = std::max(best, a[i][0]) + static_cast<T>(FLT_MAX) + static_cast<T>(M_PI) + INFINITY;
            y[i] = std::is_same<T, float>::value ? std::exp(best) : std::fmod(best, 2);
          }
          block.sync();
        }
        __global__ void halves(half* x, at::Half* y, int64_t n) {
          x[0] = __hadd(x[0], __float2half(1.f));
          y[0] = static_cast<at::Half>(static_cast<float>(y[0]) * 2.f) + y[1];
        }
        void run(torch::Tensor x) { k<float><<<1, 1>>>(a, b); halves<<<1, 1>>>(c, d, 4); }
        """
    )


@needs_nvrtc
def test_mixed_powers_have_the_standard_librarys_type() -> None:
    # NVRTC's own pow(float, int) is a float; nvcc's, through the standard library, is a double.
    compiled(
        """
        __global__ void k(float x, double* y) {
          static_assert(sizeof(pow(x, 2)) == 8);
          static_assert(sizeof(pow(x, 2.0f)) == 4);
          static_assert(sizeof(std::pow(x, 3.0)) == 8);
          static_assert(sizeof(sqrt(2)) == 8);
          static_assert(sizeof(fmax(x, 1.0)) == 8);
          y[0] = pow(x, 2);
        }
        void run(torch::Tensor x) { k<<<1, 1>>>(1.f, y); }
        """
    )


@needs_nvrtc
@needs_headers
@pytest.mark.parametrize("source", ["x[0] = x[0] + x[1];", "x[0] = 1.0f * x[0];"])
def test_half_operators_are_off_as_torch_builds_them(source: str) -> None:
    with pytest.raises(CompileFailure):
        compiled(f"#include <cuda_fp16.h>\n__global__ void k(half* x) {{ {source} }}\nvoid run(torch::Tensor x) {{}}")


@needs_nvrtc
def test_errors_name_the_candidates_source_and_line() -> None:
    with pytest.raises(CompileFailure) as caught:
        compiled("// one\n__global__ void k(float* x) {\n  x[0] = not_declared;\n}\nvoid run(torch::Tensor x) {}\n")
    assert caught.value.reason == "device-compile"
    assert "cuda_sources[0](3): error" in str(caught.value)
    assert "not_declared" in str(caught.value)


@needs_nvrtc
def test_host_functions_are_not_there_for_device_code() -> None:
    with pytest.raises(CompileFailure, match="helper"):
        compiled("float helper(float x) { return x; }\n__global__ void k(float* x) { x[0] = helper(x[0]); }\n")


@needs_nvrtc
@pytest.mark.parametrize(
    "source",
    [
        pytest.param(
            "template <int N> struct D { static const int v = D<N - 1>::v + D<N - 2>::v; };\n"
            "__global__ void k(int* x) { x[0] = D<100000>::v; }",
            id="template-recursion",
        ),
        pytest.param(
            "template <int N> __device__ int f() { return f<N + 1>(); }\n__global__ void k(int* x) { x[0] = f<0>(); }",
            id="endless-template",
        ),
        pytest.param(
            "constexpr int f(int n) { return f(n + 1); }\n"
            "__global__ void k(int* x) { constexpr int v = f(0); x[0] = v; }",
            id="endless-constexpr",
        ),
        pytest.param("#include __FILE__\n__global__ void k() {}", id="include-macro"),
        pytest.param("#error stop\n__global__ void k() {}", id="error-directive"),
        pytest.param('__global__ void k() { asm volatile("not an instruction;"); }', id="bad-asm"),
    ],
)
def test_hostile_device_code_is_a_compile_failure_in_bounded_time(source: str) -> None:
    started = time.process_time()
    with pytest.raises(CompileFailure):
        compiled(source)
    assert time.process_time() - started < 20


@needs_nvrtc
def test_inline_assembly_that_is_right_is_right() -> None:
    source = '__global__ void k(int* x) { int r; asm volatile("mov.u32 %0, %laneid;" : "=r"(r)); x[0] = r; }'
    assert compiled(source).image


@pytest.mark.parametrize(
    "path", ["</etc/passwd>", '"/etc/passwd"', '"../secret.h"', "<a/../../b.h>", "MACRO", '"a\\b"']
)
def test_includes_that_lead_out_of_the_include_folders_are_forbidden(path: str) -> None:
    with pytest.raises(CompileFailure) as caught:
        classify_include(path)
    assert caught.value.reason == "forbidden-include"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("<torch/extension.h>", "host"),
        ("<vector>", "host"),
        ("<ATen/cuda/Atomic.cuh>", "unsupported"),
        ("<cub/block/block_reduce.cuh>", "device"),
        ('"mine.h"', "unsupported"),
    ],
)
def test_includes_are_told_apart(path: str, kind: str) -> None:
    assert classify_include(path) == kind


def test_nvcc_options_become_nvrtcs_or_are_unsupported() -> None:
    options = device_options(
        [
            "-O3",
            "--use_fast_math",
            "-DN=4",
            "-D",
            "M",
            "-std=c++17",
            "-Xcompiler",
            "-fPIC",
            "-maxrregcount",
            "64",
            "-lineinfo",
        ]
    )
    for wanted in ("--use_fast_math", "-DN=4", "-DM", "--std=c++17", "--maxrregcount=64"):
        assert wanted in options
    assert "--std=c++20" in device_options([])
    for unknown in ("-gencode=arch=compute_80,code=sm_80", "-rdc=true", "-include=/etc/passwd", "-I/tmp", "@file"):
        with pytest.raises(Unsupported):
            device_options([unknown])


@pytest.mark.parametrize(
    ("name", "parameters", "signature", "expression"),
    [
        ("k", "", "void k(float*)", "k"),
        ("a::k", "T,N", "void a::k(const T*, T*) [with T = float; int N = 4]", "a::k<float,4>"),
        ("k", "T", "void k(T*) [with T = long int; int64_t = long int]", "k<long>"),
        ("k", "T,...Rest", "void k(T, Rest ...) [with T = c10::Half; Rest = {float, int}]", "k<c10::Half,float,int>"),
        ("k", "...Rest", "void k(Rest ...) [with Rest = {}]", "k<>"),
        ("k", "F", "void k(F) [with F = {anonymous}::Add<float>]", "k<Add<float>>"),
        ("k", "B,M", "void k() [with bool B = true; Mode M = (Mode)1]", "k<true,(Mode)1>"),
        ("k", "F", "void k(F) [with F = run(at::Tensor)::<lambda(int)>]", None),
        ("k", "F", "void k(F) [with F = run(at::Tensor)::Local]", None),
    ],
)
def test_an_instantiation_is_named_as_the_device_compiler_must_be_asked(
    name: str, parameters: str, signature: str, expression: str | None
) -> None:
    assert expression_of(name, parameters, signature) == expression


def test_symbols_and_spellings_meet_in_one_form() -> None:
    assert demangle("_Z1kIfLi4EEvPT_") == "void k<float, 4>(float*)"
    assert template_id("_ZN5inner5scaleIfLi64EEEvPT_") == "inner::scale<float,64>"
    assert template_id("plain") == "plain"
    assert canonical("k < long unsigned int , 4u >") == "k<unsigned long,4>"
