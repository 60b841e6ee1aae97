"""What strict runs on a GPU put into a candidate's device code, without a GPU."""

import pytest
from gpu_driver import extension, needs_tools
from kernelward.reward.cuda.builder import Builder
from kernelward.reward.cuda.frontend import ExtensionSource
from kernelward.reward.cuda.instrument import instrumented, unset_locals
from kernelward.reward.cuda.lexical import apply_edits
from kernelward.reward.cuda.nvrtc import nvrtc
from kernelward.reward.cuda.split import split

BODY = "__global__ void k(float* y, int n) {{ {} }}"


def inside(statement: str) -> str:
    """What becomes of a statement in a kernel's outermost block."""
    text = instrumented(BODY.format(statement))
    head, _ = BODY.format("|").split("|")
    assert text.startswith(head.rstrip() + " kw::enter(__LINE__);")
    assert text.endswith(" kw::leave(); }")
    return text.removeprefix(head.rstrip() + " kw::enter(__LINE__);").removesuffix("kw::leave(); }").strip()


@pytest.mark.parametrize(
    ("statement", "names"),
    [
        ("float s;", ["s"]),
        ("float a, b = 1, c[4];", ["a", "c"]),
        ("float acc[4][4];", ["acc"]),
        ("volatile float v;", ["v"]),
        ("float* p;", ["p"]),
        ("float4 q;", ["q"]),
        ("unsigned long long u;", ["u"]),
        ("wmma::fragment<wmma::accumulator, 16, 16, 16, float> c;", ["c"]),
        ("struct P { float m; int i; } best;", ["best"]),
    ],
)
def test_a_local_that_nobody_set_is_poisoned_behind_its_declaration(statement: str, names: list[str]) -> None:
    assert inside(statement) == statement + "".join(f" kw::unset({name});" for name in names)


@pytest.mark.parametrize(
    "statement",
    [
        "float s = 0;",
        "float s{};",
        "float s(0);",
        "dim3 g(1);",
        "const float* p;",
        "static int calls;",
        "extern __shared__ float raw[];",
        "for (int i, j = 0; j < n; j++) y[j] = 0;",
        "if (n) { __shared__ float inner[4]; }",
        "int f(int);",
        "using T = float;",
        "typedef float U;",
        "auto z = 1.f;",
        "float& r = y[0];",
    ],
)
def test_what_is_set_or_no_variable_of_its_own_stays_as_it_is(statement: str) -> None:
    assert inside(statement) == statement


def test_shared_arrays_are_poisoned_where_the_whole_block_comes_by() -> None:
    assert inside("__shared__ float a[4], b;") == "__shared__ float a[4], b; kw::unset_shared(a); kw::unset_shared(b);"
    late = "for (int i = 0; i < n; i++) y[i] = 0; __shared__ float a[4];"
    assert inside(late) == late + " kw::unset_shared(a);"
    # A warp may wait for what others do behind their declaration.
    waits = "while (*(volatile float*)y == 0); __shared__ float a[4];"
    assert inside(waits) == waits
    helper = "__device__ void f() { __shared__ float a[4]; }"
    assert instrumented(helper) == helper


def test_code_that_the_compiler_evaluates_is_left_alone() -> None:
    text = "__device__ constexpr int f() { int x; x = 1; return x; }"
    assert instrumented(text) == text


def test_a_thread_that_leaves_early_looks_at_the_guard_before() -> None:
    assert inside("if (!n) return;") == "if (!n) { kw::leave(); return; }"
    inner = "auto f = [](int a) { return a; };"
    assert inside(inner) == inner
    helper = "__device__ float f(float a) { return a; }"
    assert instrumented(helper) == helper


@pytest.mark.parametrize("meeting", ["block.sync();", "cg::sync(block);", "cooperative_groups::sync(tile);"])
def test_warps_pause_behind_meetings_of_groups_too(meeting: str) -> None:
    assert inside(meeting) == f"{meeting} kw::pause(__LINE__);"


def test_the_emulator_gets_the_locals_of_device_functions_alone() -> None:
    host = "void run() { float h; }"
    device = "__device__ void f() { float a; }"
    kernel = "__global__ void k() { __shared__ float s[4]; float b; auto g = [] { float c; }; if (b) return; }"
    text = apply_edits(f"{host}\n{device}\n{kernel}", unset_locals(f"{host}\n{device}\n{kernel}"))
    assert text.split("\n") == [
        host,
        device.replace("a;", "a; kw::unset(a);"),
        kernel.replace("b;", "b; kw::unset(b);").replace("c;", "c; kw::unset(c);"),
    ]


def test_lines_stay_where_they_are() -> None:
    text = BODY.format("\n  float a,\n    b;\n  y[0] = a;\n")
    assert [line.strip()[:4] for line in instrumented(text).split("\n")][1:4] == ["floa", "b; k", "y[0]"]


SUM = """
#include <torch/extension.h>
template <int N> __global__ void total(const float* x, float* y, int n) {
  __shared__ float part[N];
  float sum;
  sum = 0;
  for (int i = threadIdx.x; i < n; i += N) sum += x[i];
  part[threadIdx.x] = sum;
  __syncthreads();
  for (int s = N / 2; s; s /= 2) {
    if (threadIdx.x < s) part[threadIdx.x] += part[threadIdx.x + s];
    __syncthreads();
  }
  if (!threadIdx.x) y[0] = part[0];
}
torch::Tensor run(torch::Tensor x, int64_t n) {
  auto y = torch::empty({1}, x.options());
  total<64><<<1, 64>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
  return y;
}
"""


def strict_image(source: ExtensionSource) -> bytes:
    parts = split(source)
    return Builder(None, "sm_90").compile_strict(source, parts, ["total<64>"])


@needs_tools
def test_the_instrumented_kernels_have_the_same_symbols() -> None:
    source = extension(SUM)
    plain = Builder(None, "sm_90").compile_device(source, split(source), ["total<64>"])
    image = strict_image(source)
    assert image != plain.image
    assert all(symbol.encode() + b"\0" in image for symbol in plain.symbols.values())


@needs_tools
@pytest.mark.parametrize("flags", [("-std=c++17",), ("-std=c++20",), ("-use_fast_math",), ("-O3",)])
def test_they_compile_with_the_options_that_candidates_give(flags: tuple[str, ...]) -> None:
    assert strict_image(extension(SUM, cuda_cflags=flags))


@needs_tools
def test_there_are_none_beside_variables_in_device_memory_and_where_the_poison_does_not_compile() -> None:
    assert strict_image(extension(SUM.replace("template", "__device__ int calls;\ntemplate", 1))) == b""
    # A type whose address is not to be had: the plain kernel is valid, the poisoned one is not.
    odd = "struct Odd { float v; void* operator&() const = delete; };\ntemplate"
    source = extension(SUM.replace("template", odd, 1).replace("float sum;", "Odd o; float sum;"))
    assert nvrtc() is not None
    assert Builder(None, "sm_90").compile_device(source, split(source), ["total<64>"]).image
    assert strict_image(source) == b""
