"""Splitting: what goes to which compiler, and where it came from."""

import contextlib
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernelward.reward.cuda.frontend import ExtensionSource, Unsupported
from kernelward.reward.cuda.lexical import (
    Edit,
    apply_edits,
    blank_comments,
    blank_literals,
    point_into,
)
from kernelward.reward.cuda.split import split, split_text
from kernelward.reward.cuda.toolchain import preprocess
from kernelward.reward.sandbox.engine import CompileFailure

KERNELS = """#include <torch/extension.h>
#define TILE 16
constexpr int ROWS = 4;  // used by a kernel
static const float UNUSED = 1.0f;
struct Host { std::vector<float> values; };
struct Scale {
  float by;
  __device__ Scale(float b) : by(b) {}
  __device__ float operator()(float x) const { return x * by; }
  int on_host() const { return 1; }
};
__constant__ float weights[128];
__device__ __forceinline__ float twice(float x) { return 2 * x; }
__host__ __device__ inline int ceil_div(int a, int b) { return (a + b - 1) / b; }
namespace inner {
template <typename T, int N = ROWS>
__global__ void __launch_bounds__(256, 2) scale(const T* __restrict__ x, T* y, int n, Scale s) {
  extern __shared__ __align__(16) unsigned char raw[];
  __shared__ float tile[TILE][TILE + 1], other[N];
  y[0] = s(twice(x[0]));
}
}  // namespace inner
extern "C" __global__ void plain(float* x, float bias = 1.0f) { x[0] += bias; }
torch::Tensor run(torch::Tensor x) {
  const char* text = "plain<<<1, 2>>>(not code)";
  dim3 grid(ceil_div(x.numel(), 256));
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "run", ([&] {
    inner::scale<scalar_t><<<grid, dim3(256, 1), TILE * sizeof(float), at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<scalar_t>(), x.data_ptr<scalar_t>(), (1 < 2) ? 3 : 4, Scale(2.f));
  }));
  plain<<<1, 32>>>(x.data_ptr<float>());
  return x;
}
"""


def test_kernels_are_described_with_their_templates_parameters_and_bounds() -> None:
    scale, plain = split_text(KERNELS).kernels
    assert (scale.qualified, scale.launch_bounds, scale.extern_c) == ("inner::scale", "256, 2", False)
    assert [(p.name, p.kind) for p in scale.template_params] == [("T", "type"), ("N", "value")]
    assert [p.name for p in scale.params] == ["x", "y", "n", "s"]
    assert (plain.qualified, plain.extern_c, plain.line) == ("plain", True, 23)
    assert [p.type for p in plain.params] == ["float* x", "float bias"]


def test_launches_are_described_and_strings_are_not_launches() -> None:
    source = split_text(KERNELS)
    scale, plain = source.launches
    assert scale.kernel == "inner::scale<scalar_t>"
    assert scale.template_args == ("scalar_t",)
    assert (scale.grid, scale.block, scale.shared) == ("grid", "dim3(256, 1)", "TILE * sizeof(float)")
    assert scale.stream == "at::cuda::getCurrentCUDAStream()"
    assert scale.args[2] == "(1 < 2) ? 3 : 4"
    assert (scale.function, scale.dispatch) == ("run", "AT_DISPATCH_FLOATING_TYPES")
    assert source.source[slice(*plain.span)] == "plain<<<1, 32>>>(x.data_ptr<float>())"
    assert source.source[slice(*plain.config_span)] == "<<<1, 32>>>"
    assert source.source[slice(*plain.args_span)] == "x.data_ptr<float>()"


def test_shared_memory_and_variables_in_device_memory_are_listed() -> None:
    source = split_text(KERNELS)
    dynamic, static = source.shared_decls
    assert (dynamic.names, dynamic.type, dynamic.dynamic, dynamic.function) == (
        ("raw",),
        "unsigned char",
        True,
        "scale",
    )
    assert (static.names, static.dynamic) == (("tile", "other"), False)
    assert static.declarators == ("tile[TILE][TILE + 1]", "other[N]")
    assert [(s.name, s.space) for s in source.symbols] == [("weights", "constant")]


def test_the_device_text_has_device_code_and_what_it_names_and_nothing_of_the_host() -> None:
    device = split_text(KERNELS).device
    for kept in (
        "void plain",
        "scale(const T*",
        "twice",
        "ROWS = 4",
        "ceil_div",
        "weights[128]",
        "operator()",
        "#define TILE",
    ):
        assert kept in device
    for gone in ("torch", "std::vector", "UNUSED", "run(", "#include", "return 1;", "<<<"):
        assert gone not in device


def test_the_host_text_has_stubs_in_place_of_kernels_and_calls_in_place_of_launches() -> None:
    host = split_text(KERNELS).host
    assert '{ KW_KERNEL_STUB("inner::scale", "T,N", x, y, n, s); }' in host
    assert '{ KW_KERNEL_STUB("plain", "", x, bias); }' in host
    assert "(::kw::push_launch(1, 32), plain(x.data_ptr<float>()));" in host
    assert '"plain<<<1, 2>>>(not code)"' in host
    assert 'KW_SYMBOL(weights, "weights")' in host
    assert "ceil_div(int a, int b) { return" in host
    for gone in ("raw[]", "twice(x[0])", "float twice", "return x * by"):
        assert gone not in host


def test_both_texts_keep_the_line_numbers() -> None:
    source = split_text(KERNELS)
    count = KERNELS.count("\n")
    assert source.host.count("\n") == source.device.count("\n") == source.source.count("\n") == count
    for text, word in ((source.host, "torch::Tensor run"), (source.device, 'extern "C" __global__ void plain')):
        line = KERNELS[: KERNELS.index(word)].count("\n")
        assert word in text.split("\n")[line]


def test_macros_that_hide_kernels_and_launches_are_expanded_with_their_lines(tmp_path: Path) -> None:
    text = """#include <torch/extension.h>
#define KERNEL(NAME, OP) __global__ void NAME(float* x) { x[0] = OP(x[0]); }
#define RUN(NAME, X) NAME<<<1, 1>>>(X)

KERNEL(relu, fabsf)
KERNEL(wave, sinf)
void run(float* x) { RUN(relu, x); RUN(wave, x); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
"""
    extension = ExtensionSource("e", cuda=(text,), labels=("cuda_sources[0]",))
    source = split(extension, lambda code: preprocess(code, tmp_path))
    assert [k.name for k in source.kernels] == ["relu", "wave"]
    assert [launch.kernel for launch in source.launches] == ["relu", "wave"]
    assert [source.line_map.resolve(k.line) for k in source.kernels] == [("cuda_sources[0]", 5), ("cuda_sources[0]", 6)]
    assert [i.path for i in source.includes] == ["<torch/extension.h>"]


def test_exported_functions_must_be_declared_in_the_cpp_sources_as_under_torch() -> None:
    extension = ExtensionSource("e", ("void f();",), ("void f() {}",), ("f",), labels=("cpp", "cuda"))
    source = split(extension)
    assert source.host.index("void f();") < source.host.index("PYBIND11_MODULE") < source.host.index("void f() {}")


def test_a_module_that_python_could_not_import_is_a_compile_failure() -> None:
    with pytest.raises(CompileFailure, match="exports nothing"):
        split(ExtensionSource("e", ("int f();",), labels=("cpp",)))
    with pytest.raises(CompileFailure, match="PYBIND11_MODULE"):
        split(ExtensionSource("e", ("PYBIND11_MODULE(other, m) {}",), labels=("cpp",)))


def test_local_headers_are_put_in_place_once_with_their_own_lines() -> None:
    extension = ExtensionSource(
        "e",
        cuda=('#include "k.cuh"\n#include "k.cuh"\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {}\n',),
        labels=("main.cu",),
        origin="load",
        headers={"k.cuh": "#pragma once\n__global__ void k() {}\n"},
    )
    source = split(extension)
    (kernel,) = source.kernels
    assert source.line_map.resolve(kernel.line) == ("k.cuh", 2)
    module = source.source[: source.source.index("PYBIND11")].count("\n") + 1
    assert source.line_map.resolve(module) == ("main.cu", 3)


def test_compiler_messages_are_pointed_into_the_candidates_own_file() -> None:
    cuda = "#include <torch/extension.h>\n__global__ void kernel_of_mine(float* x) {\n  x[0] = undefined_name;\n}\n"
    candidate = f'import torch\n\nsource = """\n{cuda}"""\n'
    line = candidate[: candidate.index("undefined_name")].count("\n") + 1
    for message, expected in (
        ("cuda_sources[0](3): error: x", f"candidate.py({line}): error: x"),
        ("cuda_sources[0]:3:9: error: x", f"candidate.py:{line}:9: error: x"),
        ("cpp_sources[0]:3:9: error: x", "cpp_sources[0]:3:9: error: x"),
    ):
        assert point_into(message, ["int f();", cuda], ["cpp_sources[0]", "cuda_sources[0]"], candidate) == expected


@pytest.mark.parametrize(
    ("text", "feature"),
    [
        (
            "void run() { auto f = [=] __device__ (int i) { return i; }; k<<<1, 1>>>(f); }\n__global__ void k(int) {}",
            "",
        ),
        ("#if 1\n__global__ void k(const float*) {}\n#endif", "unnamed-parameter"),
    ],
)
def test_what_is_not_understood_is_said_to_be_unsupported_never_guessed(text: str, feature: str) -> None:
    with pytest.raises(Unsupported) as caught:
        split_text(text)
    assert not feature or caught.value.feature == feature


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            "__global__ void k(float* x) { x[0] = " + "(" * 100_000 + "1" + ")" * 100_000 + "; }", id="nested"
        ),
        pytest.param("__global__ void k(float* x) {" + "{" * 50_000 + "}" * 50_000 + "}", id="blocks"),
        pytest.param("__global__ void k(float* x) { x[0] = 1; }\n" + "// filler\n" * 90_000, id="comments"),
        pytest.param(
            "\n".join(f"__device__ float f{i}(float x) {{ return x + {i}; }}" for i in range(15_000)), id="many"
        ),
        pytest.param("/*" * 400_000, id="unclosed"),
        pytest.param("#define A A\n" * 60_000, id="macros"),
    ],
)
def test_large_and_deep_sources_take_bounded_time(text: str) -> None:
    started = time.process_time()
    with contextlib.suppress(Unsupported):
        split_text(text)
    assert time.process_time() - started < 20


TEXT = st.text(alphabet="ab \n\\\"'/*R()#<>é0", max_size=80)


@settings(max_examples=300, deadline=None)
@given(TEXT)
def test_blanking_keeps_length_and_lines(text: str) -> None:
    for blanked in (blank_comments(text), blank_literals(text)):
        assert len(blanked) == len(text)
        assert [i for i, c in enumerate(blanked) if c == "\n"] == [i for i, c in enumerate(text) if c == "\n"]
        assert all(b in (c, " ") for b, c in zip(blanked, text, strict=True))


def test_comments_go_and_literals_that_look_like_them_stay() -> None:
    code = "a = \"/* no */\"; // yes\nb = '\"'; /* yes */ c = R\"x(// no)x\"; d = 1'000; e = '/';"
    blanked = blank_comments(code)
    assert "yes" not in blanked
    for kept in ('"/* no */"', "'\"'", 'R"x(// no)x"', "1'000", "e = '/';"):
        assert kept in blanked


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ab\n", max_size=40), st.lists(st.tuples(st.integers(0, 40), st.integers(0, 8)), max_size=5))
def test_edits_keep_the_line_numbers_of_what_stays(text: str, places: list[tuple[int, int]]) -> None:
    edits = [Edit(min(start, len(text)), min(start + size, len(text)), "xy") for start, size in places]
    assert apply_edits(text, edits).count("\n") == text.count("\n")
