"""CUDA text into C++, and hostile sources: everything refused is refused with a clear error."""

import time
from pathlib import Path

import pytest
import torch
from kernelward.reward.cuda.emulator import PLAIN_VARIANT, CudaError, EmulatedModule
from kernelward.reward.cuda.emulator_build import Toolchain
from kernelward.reward.cuda.emulator_translate import translate, translate_text
from kernelward.reward.cuda.frontend import ExtensionSource, Unsupported
from kernelward.reward.cuda.gaps import emulator_gap
from kernelward.reward.sandbox.engine import CompileFailure

HEAD = "#include <torch/extension.h>\n"
ADD = """__global__ void k(float* x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] += 1; }
torch::Tensor f(torch::Tensor x) { k<<<(x.numel() + 63) / 64, 64>>>(x.data_ptr<float>(), x.numel()); return x; }
"""


def make(
    toolchain: Toolchain, folder: Path, cuda: str, cpp: tuple[str, ...] = (), functions: tuple[str, ...] = ("f",)
) -> EmulatedModule:
    return EmulatedModule.create(
        ExtensionSource("extension", cpp, (cuda,), functions, origin="load"), toolchain, folder
    )


@pytest.mark.parametrize(
    "launch",
    [
        "k<<<1, 2>>>(p)",
        "k <<< dim3(a, b), dim3(c), s >>> (p, f(q))",
        "ns::k<float, 4><<<g, b, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<float>())",
        "k<(N > 2)><<<(n + 1) >> 2, b>>>(p)",
        "k<std::vector<int>><<<1, 1>>>()",
    ],
)
def test_launches_become_calls_on_the_same_line(launch: str) -> None:
    text = f"void g() {{\n  {launch};\n}}\n"
    out = translate_text(text, "0_")
    assert "<<<" not in out
    assert ">>>" not in out
    assert "::kw::emu::launch(::kw::emu::Config(" in out.split("\n")[1]
    assert out.count("\n") == text.count("\n")


def test_text_in_comments_and_strings_is_left_alone() -> None:
    text = (
        'const char* s = "k<<<1, 2>>>(p); __shared__ float a[2];"; // k<<<1, 2>>>(p)\n/* asm("x") */ int asm_count;\n'
    )
    out = translate_text(text, "0_")
    assert '"k<<<1, 2>>>(p); __shared__ float a[2];"' in out
    assert "launch" not in out


def test_shared_declarations_of_every_shape_compile_and_run(toolchain: Toolchain, tmp_path: Path) -> None:
    module = make(
        toolchain,
        tmp_path,
        HEAD
        + """#define DECLARE(T) __shared__ T macro_array[32];
namespace outer { __shared__ float global_array[32]; extern __shared__ float global_dynamic[]; }
template <typename T, int N> __device__ T inner(T v) {
    __shared__ __align__(16) T a[N][N + 1], b[N];
    static __shared__ volatile int flag;
    __shared__ struct { T x; int y; } pair[N];
    __shared__ T* pointer;
    DECLARE(T)
    int t = threadIdx.x;
    a[t][0] = v; b[t] = v; flag = 1; pair[t].x = v; pointer = b; macro_array[t] = v; outer::global_array[t] = v;
    outer::global_dynamic[t] = v;
    __syncthreads();
    return a[31 - t][0] + b[t] + flag + pair[t].x + pointer[t] + macro_array[t] + outer::global_array[t]
        + outer::global_dynamic[t] + (T)(sizeof(a) / sizeof(T));
}
__global__ void k(float* x) {
    extern __shared__ __align__(16) unsigned char raw[];
    float* second = reinterpret_cast<float*>(raw);
    float v = inner<float, 32>(x[threadIdx.x]);
    __syncthreads();
    second[threadIdx.x] = v;
    x[threadIdx.x] = second[threadIdx.x];
}
void f(torch::Tensor x) { k<<<1, 32, 128>>>(x.data_ptr<float>()); }
""",
    )
    x = torch.ones(32)
    module.f(x)
    assert torch.equal(x, torch.full((32,), 8.0 + 32 * 33))


def test_repeated_default_arguments_in_both_sources_are_accepted(toolchain: Toolchain, tmp_path: Path) -> None:
    cpp = "torch::Tensor f(torch::Tensor x, float by = 2.0f, std::vector<int64_t> pad = {1, 2});"
    cuda = (
        HEAD + "torch::Tensor f(torch::Tensor x, float by = 2.0f, std::vector<int64_t> pad = {1, 2}) { return x * by; }"
    )
    module = make(toolchain, tmp_path, cuda, (cpp,))
    assert torch.equal(module.f(torch.ones(3), 3.0, [1, 2]), torch.full((3,), 3.0))


@pytest.mark.parametrize(
    "line",
    [
        '#include "/etc/passwd"',
        "#include </etc/passwd>",
        '#include "../../secret.h"',
        "#include MACRO",
        "#include_next <vector>",
        '#import "x.h"',
        '#include "no_such_header.h"',
    ],
)
def test_includes_that_lead_elsewhere_are_refused(line: str) -> None:
    with pytest.raises(CompileFailure):
        translate_text(line + "\n", "0_")


@pytest.mark.parametrize(
    ("text", "feature"),
    [
        ('__device__ void g() { asm volatile("mov.u32 %0, 1;" : "=r"(x)); }', "inline-assembly"),
        ("#include <curand_kernel.h>\n", "curand"),
        ("#include <thrust/device_vector.h>\n", "library"),
    ],
)
def test_what_needs_a_gpu_is_unsupported_and_the_judge_knows_without_running(text: str, feature: str) -> None:
    with pytest.raises(Unsupported) as caught:
        translate_text(text, "0_")
    assert caught.value.feature == feature
    assert emulator_gap(f'source = """\n{text}\n"""') is not None
    assert emulator_gap(f'source = """\n// {text.splitlines()[0]}\n"""') is None


def test_torchs_cpp_modules_are_beyond_our_header_and_the_judge_knows() -> None:
    text = "auto options = torch::nn::functional::LayerNormFuncOptions({4});"
    assert emulator_gap(f'source = """\n{text}\n"""') == "torch's C++ modules"
    assert emulator_gap("import torch\nlayer = torch.nn.Linear(2, 3)\n") is None


def test_hostile_macros_and_pragmas_end_as_ordinary_errors(toolchain: Toolchain, tmp_path: Path) -> None:
    hostile = """#pragma GCC poison launch
#pragma GCC optimize("O0")
#define kw gone
#define static
#define return throw 1; return
"""
    with pytest.raises(CompileFailure) as caught:
        make(toolchain, tmp_path, HEAD + hostile + ADD)
    assert caught.value.reason == "compile"
    assert str(tmp_path) not in str(caught.value)


def test_a_compile_error_names_the_line_of_the_candidates_source(toolchain: Toolchain, tmp_path: Path) -> None:
    with pytest.raises(CompileFailure, match=r"source\[0\]:4"):
        make(
            toolchain,
            tmp_path,
            HEAD
            + "__global__ void k(float* x) {\n  x[0] = 1;\n  y[0] = 2;\n}\n"
            + "void f(torch::Tensor x) { k<<<1, 1>>>(x.data_ptr<float>()); }",
        )


def test_endless_templates_are_refused(toolchain: Toolchain, tmp_path: Path) -> None:
    with pytest.raises(CompileFailure):
        make(
            toolchain,
            tmp_path,
            HEAD
            + "template <int N> struct A { static const int v = A<N + 1>::v; };\n"
            + "void f(torch::Tensor x) { int i = A<0>::v; }",
        )


def test_a_source_of_a_megabyte_is_translated_in_seconds() -> None:
    text = HEAD + "\n".join(
        f"__global__ void k{i}(float* x) {{ __shared__ float s[4]; s[0] = x[{i}]; }}" for i in range(12000)
    )
    started = time.process_time()
    translate(ExtensionSource("extension", (), (text,), ()))
    assert time.process_time() - started < 20


def test_host_exceptions_and_wrong_arguments_have_pythons_types(toolchain: Toolchain, tmp_path: Path) -> None:
    module = make(
        toolchain,
        tmp_path,
        HEAD
        + """
void fail(int64_t how) {
    if (how == 0) TORCH_CHECK(false, "value ", how, " is wrong");
    if (how == 1) throw std::invalid_argument("bad");
    if (how == 2) throw std::out_of_range("far");
    if (how == 3) throw 7;
    torch::empty({1}, torch::kCUDA).data_ptr<double>();
}
torch::Tensor f(torch::Tensor x, int n, double y, bool flag, std::optional<torch::Tensor> z,
                std::vector<int64_t> sizes, std::string name) {
    return x * (n + y + (z ? 100 : 0) + sizes[1] + (flag ? name.size() : 0));
}
""",
        functions=("f", "fail"),
    )
    for how, kind in ((0, RuntimeError), (1, ValueError), (2, IndexError), (3, RuntimeError), (4, RuntimeError)):
        with pytest.raises(kind):
            module.fail(how)
    x = torch.ones(2)
    assert module.f(x, 1, 2, True, None, [0, 5], "abc").tolist() == [11, 11]
    assert module.f(x, 1, 0.5, False, x, (0, 5), "abc").tolist() == [106.5, 106.5]
    for wrong in (
        (x, 1.5, 2.0, True, None, [1, 2], "a"),
        (None, 1, 2.0, True, None, [1, 2], "a"),
        (x, 1),
        (x, 2**40, 1.0, True, None, [1, 2], ""),
    ):
        with pytest.raises(TypeError):
            module.f(*wrong)
    with pytest.raises(TypeError):
        module.f(x=x)


def test_modules_keep_their_names_defaults_and_results(toolchain: Toolchain, tmp_path: Path) -> None:
    module = make(
        toolchain,
        tmp_path,
        HEAD
        + """
std::tuple<torch::Tensor, int64_t> scale(torch::Tensor x, double by, c10::optional<torch::Tensor> bias) {
    auto y = x * by;
    return {bias.has_value() ? y + *bias : y, x.numel()};
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("scale", &scale, "scales", py::arg("x"), py::arg("by") = 2.0, py::arg("bias") = py::none());
    m.def("twice", [](std::vector<torch::Tensor> xs) { for (auto& x : xs) x.mul_(2); return xs; });
}""",
        functions=(),
    )
    x = torch.arange(3.0)
    y, n = module.scale(x)
    assert y.tolist() == [0, 2, 4]
    assert n == 3
    assert module.scale(x, bias=x, by=1)[0].tolist() == [0, 2, 4]
    a, b = torch.ones(2), torch.ones(3)
    out = module.twice([a, b])
    assert a.tolist() == [2, 2]
    assert out[1] is b


def test_torch_operators_are_called_with_their_c_plus_plus_signatures(toolchain: Toolchain, tmp_path: Path) -> None:
    module = make(
        toolchain,
        tmp_path,
        HEAD
        + """
std::vector<torch::Tensor> f(torch::Tensor x, torch::Tensor w) {
    auto o = x.options();
    auto [largest, where] = x.max(1);
    auto made = torch::zeros({2, 3}, torch::TensorOptions().dtype(torch::kInt64).device(x.device()));
    made.index_put_({0, torch::indexing::Slice(1, 3)}, 5);
    return {
        x.sum({1, 2}, true), torch::conv2d(x.unsqueeze(0), w, {}, {1, 1}, {1, 1}), torch::softmax(x, -1),
        largest, where, 1.0 - x / 2.0, x.transpose(0, 1).contiguous(), torch::cat({x, x}, 1),
        x.to(torch::kFloat64).mean(),
        made, torch::full({2}, 3.5, o), x.view({-1}).slice(0, 1, 4), torch::empty_like(x).fill_(2),
        x.permute({2, 0, 1}),
        torch::arange(3, o), x.clamp(0.25, 0.5), torch::zeros({}, o), (x > 0.5).to(torch::kInt)
    };
}""",
    )
    g = torch.Generator().manual_seed(3)
    x, w = torch.rand(3, 4, 5, generator=g), torch.rand(2, 3, 3, 3, generator=g)
    made = torch.zeros(2, 3, dtype=torch.int64)
    made[0, 1:3] = 5
    expected = [
        x.sum((1, 2), keepdim=True), torch.conv2d(x[None], w, None, (1, 1), (1, 1)), x.softmax(-1),
        x.max(1)[0], x.max(1)[1], 1 - x / 2,
        x.transpose(0, 1), torch.cat([x, x], 1), x.double().mean(), made, torch.full((2,), 3.5),
        x.view(-1)[1:4], torch.full_like(x, 2),
        x.permute(2, 0, 1), torch.arange(3.0), x.clamp(0.25, 0.5), torch.zeros(()), (x > 0.5).int(),
    ]  # fmt: skip
    for got, want in zip(module.f(x, w), expected, strict=True):
        assert got.dtype == want.dtype
        assert torch.equal(got, want)


def test_assigning_to_a_part_of_a_tensor_writes_into_it(toolchain: Toolchain, tmp_path: Path) -> None:
    module = make(
        toolchain,
        tmp_path,
        HEAD
        + """torch::Tensor f(torch::Tensor x) {
    auto y = torch::zeros_like(x);
    y[0] = x[1];
    y[1] = 3.0f;
    y.select(0, 2) = x[0] * 2;
    auto row = y[0];
    row = x[2];  // a name is bound anew
    torch::Tensor a, b;
    std::tie(a, b) = std::make_tuple(x[0], x[1]);
    y[3] = b.flatten();
    return y;
}
""",
    )
    x = torch.arange(8.0).reshape(4, 2)
    assert torch.equal(module.f(x), torch.stack([x[1], torch.full((2,), 3.0), 2 * x[0], x[1]]))


def test_overlapping_arguments_share_memory_and_writes_come_back(toolchain: Toolchain, tmp_path: Path) -> None:
    module = make(
        toolchain,
        tmp_path,
        HEAD
        + "__global__ void k(float* a, const float* b, int s) { int i = threadIdx.x; a[i * s] = 2 * b[i * s]; }\n"
        + "torch::Tensor f(torch::Tensor a, torch::Tensor b) {"
        + " k<<<1, 4>>>(a.data_ptr<float>(), b.data_ptr<float>(), a.stride(0)); return a; }",
    )
    base = torch.arange(8.0)
    a, b = base[1::2], base[0::2]
    assert module.f(a, b) is a
    assert base.tolist() == [0, 0, 2, 4, 4, 8, 6, 12]
    module.configure(PLAIN_VARIANT)
    with pytest.raises(CudaError):
        module.f(torch.empty(0), torch.empty(0).expand(0))  # a null pointer in a kernel
    module.reset()


VARIES = "__global__ void k(float* y, int n) {{\n  {}\n  for (int i = 0; i < 4; i++) a[i] = i;\n  y[0] = a[3];\n}}\n"
CALLS = "torch::Tensor f(torch::Tensor x) { k<<<1, 1>>>(x.data_ptr<float>(), 4); return x; }\n"


@pytest.mark.parametrize(
    "array", ["float a[n];", "const int m = n + 1; float a[m];", "int m = 4; float a[m][2]; (void)a;"]
)
def test_an_array_of_variable_length_is_refused_as_by_nvcc(toolchain: Toolchain, tmp_path: Path, array: str) -> None:
    with pytest.raises(CompileFailure, match="variable length") as caught:
        make(toolchain, tmp_path, HEAD + VARIES.format(array) + CALLS)
    assert "warning" not in str(caught.value)


@pytest.mark.parametrize(
    "array", ["float a[4];", "const int m = 4; float a[m];", "constexpr int m = 2; float a[m * m];", "float* a = y;"]
)
def test_an_array_of_constant_length_is_taken(toolchain: Toolchain, tmp_path: Path, array: str) -> None:
    assert make(toolchain, tmp_path, HEAD + VARIES.format(array) + CALLS).f(torch.zeros(4))[0] == 3


def test_the_cpp_sources_are_compiled_by_gxx_which_takes_it(toolchain: Toolchain, tmp_path: Path) -> None:
    own = HEAD + "inline float third(int n) { float a[n]; for (int i = 0; i < n; i++) a[i] = i; return a[3]; }\n"
    built = EmulatedModule.create(
        ExtensionSource(
            "e", (own,), (HEAD + "torch::Tensor f(torch::Tensor x) { return x + third(4); }",), ("f",), origin="load"
        ),
        toolchain,
        tmp_path,
    )
    assert built.f(torch.zeros(1))[0] == 3


def test_only_the_errors_of_a_compiler_are_told(toolchain: Toolchain, tmp_path: Path) -> None:
    warned = "int g(int n) { switch (n) { case 1: return 2; } }\nvoid h() { undeclared(1); }\n"
    with pytest.raises(CompileFailure, match="undeclared") as caught:
        make(toolchain, tmp_path, HEAD + warned)
    assert "warning" not in str(caught.value)
    assert "return 2" not in str(caught.value)


@pytest.mark.parametrize("code", ["__device__ __noinline__ int f();", "__noinline__ __device__ int f();"])
def test_cudas_keyword_noinline_is_an_attribute(code: str) -> None:
    assert "__attribute__((noinline))" in translate_text(code, "")
    for given in ("__attribute__((__noinline__)) int f();", "__attribute__((cold, __noinline__)) int f();"):
        assert translate_text(given, "") == given
