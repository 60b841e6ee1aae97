"""The fast path on a GPU: on any machine up to the driver's door, and behind it with the marker `gpu`.

Without a GPU everything is real but the driver: the host code is compiled and called, the device code is compiled, and
a recorder stands where `cuLaunchKernel` would be.
"""

import os
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from emulated import CASES
from gpu_driver import Recorder, extension, needs_tools
from kernelward.reward.cuda.builder import Builder, Built
from kernelward.reward.cuda.engine_gpu import gpu_host_compiler, import_extension
from kernelward.reward.cuda.frontend import ExtensionSource, Unsupported, intercepted, record
from kernelward.reward.cuda.gpu_module import GpuModule
from kernelward.reward.cuda.host_code import is_gap
from kernelward.reward.cuda.toolchain import PreparedHost, ToolLimits
from kernelward.reward.sandbox.buffers import OutputSpec
from kernelward.reward.sandbox.engine import CompileFailure
from kernelward.reward.sandbox.failure import ChildFailure
from kernelward.reward.sandbox.limits import Limits
from kernelward.reward.sandbox.session import Zygote
from kernelward.suites.compare import flatten_outputs

SCALE = """
#include <torch/extension.h>
#include <cuda_runtime.h>
#define TILE 16
__constant__ float weights[4];
namespace inner {
template <typename T, int N>
__global__ void scale(const T* __restrict__ x, T* y, int n) {
  extern __shared__ unsigned char raw[];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * N;
}
}
__global__ void shift(float* y, float by, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] += by;
}
torch::Tensor run(torch::Tensor x, int64_t n) {
  TORCH_CHECK(n >= 0, "n is negative");
  auto y = torch::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "run", ([&] {
    inner::scale<scalar_t, TILE><<<(n + 31) / 32, 32, 64>>>(x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), n);
  }));
  shift<<<dim3(2, 3), dim3(8, 4)>>>(y.data_ptr<float>(), 0.5f, n);
  auto pointer = inner::scale<float, 3>;
  cudaFuncSetAttribute(pointer, cudaFuncAttributeMaxDynamicSharedMemorySize, 70000);
  pointer<<<1, 1>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
  return y;
}
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where prepared compilers and builds are kept; $KERNELWARD_CACHE keeps them between runs."""
    root = os.environ.get("KERNELWARD_CACHE")
    return Path(root) if root else tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def host(home: Path) -> PreparedHost:
    return gpu_host_compiler(home / "cuda").prepare()


@pytest.fixture
def builder(host: PreparedHost) -> Builder:
    return Builder(host, "sm_90")


def refused(gap: Unsupported) -> Any:
    raise AssertionError(f"took the other path: {gap}")


@pytest.fixture
def loaded(builder: Builder, tmp_path: Path) -> Callable[[ExtensionSource], tuple[GpuModule, Recorder]]:
    def load(source: ExtensionSource) -> tuple[GpuModule, Recorder]:
        driver = Recorder()
        built = builder.fast(source, tmp_path)
        return GpuModule(built, tmp_path, driver, lambda names: builder.more(source, names, tmp_path), refused), driver

    return load


@needs_tools
def test_launches_reach_the_driver_with_their_kernel_configuration_and_arguments(loaded: Any) -> None:
    module, driver = loaded(extension(SCALE))
    y = module.run(torch.zeros(5), 5)
    assert y.shape == (5,)
    scale, shift, attribute, pointer = driver.calls
    assert scale == ("_ZN5inner5scaleIfLi16EEEvPKT_PS1_i", (1, 1, 1), (32, 1, 1), 64, 5)
    assert shift == ("_Z5shiftPffi", (2, 3, 1), (8, 4, 1), 0, 5)
    assert attribute == ("_ZN5inner5scaleIfLi3EEEvPKT_PS1_i", 8, 70000)
    assert pointer[0] == attribute[0]
    assert (module.launches, module.errors) == (3, [])
    assert len(driver.images) == 1  # all instantiations were foreseen


@needs_tools
def test_a_check_that_fails_raises_as_torch_does_and_launches_nothing(loaded: Any) -> None:
    module, driver = loaded(extension(SCALE))
    with pytest.raises(RuntimeError, match="n is negative"):
        module.run(torch.zeros(5), -1)
    with pytest.raises(TypeError, match="incompatible function arguments"):
        module.run(torch.zeros(5))
    assert driver.calls == []


@needs_tools
def test_a_launch_error_is_seen_although_the_candidate_did_not_look(loaded: Any) -> None:
    module, driver = loaded(extension(SCALE))
    driver.code = 701  # too many resources requested for launch
    with pytest.raises(RuntimeError, match=r"CUDA error: .*scale.*not checked"):
        module.run(torch.zeros(5), 5)
    assert module.errors
    module.begin()
    driver.code = 0
    module.run(torch.zeros(5), 5)
    assert module.errors == []


@needs_tools
def test_a_launch_error_that_the_candidate_handles_is_its_own_affair(loaded: Any) -> None:
    source = SCALE.replace(
        "  auto pointer", "  if (cudaGetLastError() == cudaSuccess) return x;\n  return y;\n  auto pointer"
    )
    module, driver = loaded(extension(source))
    driver.code = 701
    module.run(torch.zeros(5), 5)
    assert module.errors == []
    assert len(module.handled) == 1


@needs_tools
def test_an_instantiation_that_only_the_host_code_knows_is_compiled_when_it_is_launched(loaded: Any) -> None:
    source = """
    template <typename T, int N> __global__ void k(T* x, int a, int n) { x[0] = N; }
    template <int N> void launch(torch::Tensor x) { k<float, 2 * N><<<1, 1>>>(x.data_ptr<float>(), 0, 7); }
    torch::Tensor run(torch::Tensor x, int64_t n) { launch<21>(x); return x; }
    """
    module, driver = loaded(extension(source))
    module.run(torch.zeros(1), 1)
    assert driver.calls[0][0] == "_Z1kIfLi42EEvPT_ii"
    assert len(driver.images) == 2


@needs_tools
def test_late_instantiations_beside_device_variables_take_the_other_path(builder: Builder, tmp_path: Path) -> None:
    source = extension(
        """
        __device__ int counter;
        template <int N> __global__ void k(float* x, int a, int n) { counter += N; }
        template <int N> void launch(float* x) { k<N + 1><<<1, 1>>>(x, 0, 0); }
        torch::Tensor run(torch::Tensor x, int64_t n) { launch<1>(x.data_ptr<float>()); return x; }
        """
    )
    gaps: list[Unsupported] = []

    class Other:
        @staticmethod
        def run(x: torch.Tensor, n: int) -> str:
            return "other"

    def replace(gap: Unsupported) -> Any:
        gaps.append(gap)
        return Other

    module = GpuModule(builder.fast(source, tmp_path), tmp_path, Recorder(), lambda names: Built("", b"", ""), replace)
    assert module.run(torch.zeros(1), 1) == "other"
    assert [gap.feature for gap in gaps] == ["late-instantiation"]
    assert module.run(torch.zeros(1), 1) == "other"


@needs_tools
def test_variables_in_device_memory_are_found_wherever_they_are_declared(loaded: Any) -> None:
    source = """
    #include <c10/cuda/CUDAException.h>
    __constant__ float weights[4];
    static __constant__ int hidden;
    namespace inner { __device__ int counter; }
    __global__ void k(float* x) { x[0] = weights[0] + hidden; atomicAdd(&inner::counter, 1); }
    torch::Tensor run(torch::Tensor x, int64_t n) {
      size_t size = 0, sum = 0;
      C10_CUDA_CHECK(cudaGetSymbolSize(&size, weights)); sum += size;
      C10_CUDA_CHECK(cudaGetSymbolSize(&size, hidden)); sum += size;
      C10_CUDA_CHECK(cudaGetSymbolSize(&size, inner::counter)); sum += size;
      float* address = nullptr;
      C10_CUDA_CHECK(cudaGetSymbolAddress((void**)&address, weights));
      TORCH_CHECK(sum == 48 && (size_t)address == 64, "found ", sum);
      return x;
    }
    """
    module, _ = loaded(extension(source))
    module.run(torch.zeros(1), 1)


@needs_tools
def test_clashing_default_arguments_are_compiled_apart_as_torch_does(loaded: Any) -> None:
    cuda = "torch::Tensor run(torch::Tensor x, int64_t n = 1) { return x; }\n__global__ void k(float* x) {}"
    module, _ = loaded(extension(cuda, cpp="torch::Tensor run(torch::Tensor x, int64_t n = 1);"))
    x = torch.zeros(2)
    assert module.run(x, 3) is x


@needs_tools
def test_flags_reach_the_compilers_and_unknown_ones_take_the_other_path(builder: Builder, tmp_path: Path) -> None:
    source = "__global__ void k(float* x) { x[0] = __fdividef(1.f, FACTOR); }\n" + (
        "torch::Tensor run(torch::Tensor x, int64_t n) { return x + FACTOR; }"
    )
    assert builder.fast(extension(source, cuda_cflags=("-DFACTOR=3.f",)), tmp_path).image
    with pytest.raises(CompileFailure, match="FACTOR"):
        builder.fast(extension(source), tmp_path)
    with pytest.raises(Unsupported, match="rdc"):
        builder.fast(extension(SCALE, cuda_cflags=("-rdc=true",)), tmp_path)
    with pytest.raises(Unsupported, match="fplugin"):
        builder.fast(extension(SCALE, cflags=("-fplugin=./evil.so",)), tmp_path)


@needs_tools
@pytest.mark.parametrize(
    ("cuda", "reason", "words"),
    [
        ("__global__ void k(float* x) { x[0] = nothing; }\n", "device-compile", "nothing"),
        ("torch::Tensor run(torch::Tensor x, int64_t n) { return x }\n", "host-compile", "cuda_sources[0]:1"),
        ('#include "/etc/passwd"\n', "forbidden-include", "/etc/passwd"),
        ("#include <../secret.h>\n", "forbidden-include", "secret"),
    ],
)
def test_broken_code_fails_with_the_candidates_lines(
    builder: Builder, tmp_path: Path, cuda: str, reason: str, words: str
) -> None:
    with pytest.raises(CompileFailure) as caught:
        builder.fast(extension(cuda), tmp_path)
    assert caught.value.reason == reason
    assert words in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


MACRO_BOMB = "#define M0 1+\n" + "".join(f"#define M{i} {f'M{i - 1} ' * 10}\n" for i in range(1, 10))


@needs_tools
@pytest.mark.parametrize(
    "cuda",
    [
        pytest.param("template <int N> struct D { int v[D<N + 1>::n]; };\nD<0> d;\n", id="endless-template"),
        pytest.param(MACRO_BOMB + "int bomb = M9;\n", id="macro-bomb"),
        pytest.param(MACRO_BOMB + "#define KERNEL __global__ void k() { M9 }\nKERNEL\n", id="hidden-macro-bomb"),
        pytest.param('asm(".incbin \\"/etc/shadow-of-nothing\\"");\n', id="incbin"),
        pytest.param("#include_next <nothing.h>\n", id="include-next"),
        pytest.param("static_assert(sizeof(char[1ul << 62]) == 0);\n", id="huge-array"),
    ],
)
def test_hostile_host_code_is_refused_in_bounded_time(host: PreparedHost, tmp_path: Path, cuda: str) -> None:
    strict = Builder(host, "sm_90", limits=ToolLimits(seconds=10, memory=1 << 30))
    started = time.monotonic()
    with pytest.raises((CompileFailure, Unsupported)):
        strict.fast(extension(cuda), tmp_path)
    assert time.monotonic() - started < 60


def test_only_errors_that_torch_would_have_too_are_final() -> None:
    assert not is_gap("cuda_sources[0]:3:1: error: expected ';' before '}' token")
    assert not is_gap("cuda_sources[0]:3:1: error: 'my_helper' was not declared in this scope")
    for message in (
        "x:1:1: error: 'class at::Tensor' has no member named 'exotic'",
        "x:1:1: error: 'exotic' is not a member of 'torch'",
        "x:1:1: error: 'cooperative_groups' is not a namespace-name",
        "x:1:1: error: 'SOME_MACRO' was not declared in this scope",
        "x:1:1: error: expected ';' before 'int'\nx:2:1: error: 'deque' is not a member of 'std'",
        "x:1:1: error: no matching function for call to 'foo(int)'",
        "/a/include/kernelward/module.h:3:1: error: static assertion failed",
        "the compiler was stopped after 30 s",
    ):
        assert is_gap(message)


CANDIDATE = '''
import torch
from torch.utils.cpp_extension import load_inline

module = load_inline(name="scale", cpp_sources="torch::Tensor run(torch::Tensor x, int64_t n);", cuda_sources=r"""
{cuda}
""", functions=["run"])


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return module.run(x, x.numel())
'''


@needs_tools
@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU the tests below go all the way")
def test_in_the_sandbox_compilers_work_and_the_build_is_kept_outside_of_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, host: PreparedHost
) -> None:
    """On a machine without a GPU the candidate gets as far as the driver, which is not there."""
    monkeypatch.setenv("KERNELWARD_CACHE", str(home))
    builds = home / "cuda" / "builds"
    before = set(builds.glob("?" * 64))
    cuda = SCALE.replace("0.5f", f"{os.getpid()}.5f")
    with (
        Zygote("cuda", "cpu") as warm,
        warm.spawn(Limits(load_s=120)) as child,
        pytest.raises(ChildFailure) as caught,
    ):
        child.load(CANDIDATE.format(cuda=cuda), {"arch": "sm_90"})
    assert (caught.value.kind, caught.value.reason) == ("unrefereeable", "unsupported")
    assert "no CUDA driver" in str(caught.value)
    assert len(set(builds.glob("?" * 64)) - before) == 1


# ---- with a GPU ------------------------------------------------------------------------------------------------------

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
OWN = sorted(CASES)
UNORDERED = {"mse_loss"}  # its blocks add floats atomically, in an order that nobody fixes
LIMITS = Limits(load_s=300, run_s=60)


@pytest.fixture(scope="module")
def zygote(home: Path) -> Iterator[Zygote]:
    before = os.environ.get("KERNELWARD_CACHE")
    os.environ["KERNELWARD_CACHE"] = str(home)
    try:
        with Zygote("cuda", "cuda:0") as started:
            yield started
    finally:
        if before is None:
            del os.environ["KERNELWARD_CACHE"]


def run_once(zygote: Zygote, source: str, inputs: list[Any], outputs: list[OutputSpec], init: list[Any]) -> Any:
    """Load, build and run one candidate: (engine, seconds to load, reply)."""
    with zygote.spawn(LIMITS) as child:
        loaded = child.load(source)
        child.build(init, seed=0)
        reply = child.run(inputs, outputs)
        return loaded.engine, loaded.seconds, reply


def messages(reply: Any, code: str) -> list[str]:
    return [finding["message"] for finding in reply.findings if finding["code"] == code]


def sources_of(stem: str) -> list[ExtensionSource]:
    """The extensions of one of our own examples; they are ours, so this process may run them."""
    sources, error = record((EXAMPLES / "kernels" / "cuda" / f"{stem}.py").read_text())
    assert error is None
    return sources


def _slowly(arguments: tuple[ExtensionSource, str, str]) -> Built:
    source, arch, folder = arguments
    return Builder(None, arch).slow(source, Path(folder), "comparison")


@pytest.fixture(scope="module")
def torch_built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Built]]:
    """Every own example compiled by torch's load_inline, several at a time: a minute of compiling each."""
    arch = "sm_" + "".join(map(str, torch.cuda.get_device_capability()))
    pairs = [(stem, source) for stem in OWN for source in sources_of(stem)]
    jobs = [(source, arch, str(tmp_path_factory.mktemp("slow"))) for _, source in pairs]
    workers = max(1, min(len(jobs), (os.cpu_count() or 2) // 2))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        built = list(pool.map(_slowly, jobs))
    found: dict[str, list[Built]] = {}
    for (stem, _), result in zip(pairs, built, strict=True):
        found.setdefault(stem, []).append(result)
    return found


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("stem", OWN)
def test_outputs_are_the_same_bits_as_with_torchs_load_inline(
    stem: str, zygote: Zygote, torch_built: dict[str, list[Built]], tmp_path: Path
) -> None:
    init, inputs = list(CASES[stem].init), [x.cuda() for x in CASES[stem].inputs()]
    source = (EXAMPLES / "kernels" / "cuda" / f"{stem}.py").read_text()
    waiting = list(torch_built[stem])
    namespace: dict[str, Any] = {"__name__": "candidate"}
    with intercepted(lambda _: import_extension(waiting.pop(0), tmp_path)):
        exec(compile(source, f"{stem}.py", "exec"), namespace)
    torch.manual_seed(0)
    model = namespace["ModelNew"](*init).cuda()
    with torch.no_grad():
        expected = flatten_outputs(model(*[x.clone() for x in inputs]))
    specs = [OutputSpec(tuple(e.shape), e.dtype) for e in expected]
    with zygote.spawn(LIMITS) as child:
        engine = child.load(source).engine
        child.build(init, dict(model.state_dict()), seed=0)
        reply = child.run(inputs, specs)
    assert engine == "nvrtc"
    for got, want in zip(reply.outputs, expected, strict=True):
        if stem in UNORDERED:
            torch.testing.assert_close(got, want, rtol=1e-6, atol=0.0)
        else:
            assert torch.equal(got.reshape(-1).view(torch.uint8), want.reshape(-1).view(torch.uint8))


@pytest.mark.gpu
def test_an_unseen_candidate_is_built_within_a_second_and_a_seen_one_at_once(zygote: Zygote) -> None:
    x = torch.ones(1000, device="cuda")
    specs = [OutputSpec((1000,), torch.float32)]
    seconds = []
    for number in range(5):
        cuda = SCALE.replace("0.5f", f"{time.time_ns() % 1000}.{number}f")
        engine, first, _ = run_once(zygote, CANDIDATE.format(cuda=cuda), [x], specs, [])
        assert engine == "nvrtc"
        seconds.append(first)
    _, second, reply = run_once(zygote, CANDIDATE.format(cuda=cuda), [x], specs, [])
    assert sorted(seconds)[2] <= 1.0
    assert "(cached)" in messages(reply, "build-path")[0]
    assert second < 0.5


@pytest.mark.gpu
def test_values_launches_and_streams_are_right(zygote: Zygote) -> None:
    cuda = """
    #include <torch/extension.h>
    #include <ATen/cuda/CUDAContext.h>
    __constant__ float weights[4];
    __device__ int counter;
    __global__ void k(const float* x, float* y, int n) {
      extern __shared__ float tile[];
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      tile[threadIdx.x] = i < n ? x[i] : 0.f;
      __syncthreads();
      if (i < n) { y[i] = tile[threadIdx.x] * weights[i % 4]; atomicAdd(&counter, 1); }
    }
    torch::Tensor run(torch::Tensor x, int64_t n) {
      auto y = torch::empty_like(x);
      float host[4] = {1.f, 2.f, 3.f, 4.f};
      int zero = 0, counted = 0;
      C10_CUDA_CHECK(cudaMemcpyToSymbol(weights, host, sizeof(host)));
      C10_CUDA_CHECK(cudaMemcpyToSymbol(counter, &zero, sizeof(int)));
      C10_CUDA_CHECK(cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, 100000));
      int blocks = 0;
      C10_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, k, 256, 100000));
      TORCH_CHECK(blocks >= 1, "occupancy");
      cudaStream_t stream = at::cuda::getCurrentCUDAStream();
      k<<<(n + 255) / 256, 256, 100000, stream>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
      C10_CUDA_CHECK(cudaGetLastError());
      C10_CUDA_CHECK(cudaMemcpyFromSymbol(&counted, counter, sizeof(int)));
      TORCH_CHECK(counted == n, "counted ", counted);
      return y + 1;
    }
    """
    x = torch.randn(1001, device="cuda")
    source = CANDIDATE.format(cuda=textwrap.dedent(cuda))
    engine, _, reply = run_once(zygote, source, [x], [OutputSpec((1001,), torch.float32)], [])
    expected = x * (torch.arange(1001, device="cuda") % 4 + 1) + 1
    assert engine == "nvrtc"
    assert torch.equal(reply.outputs[0], expected)
    assert messages(reply, "launches") == ["1 kernel launches"]
    assert not messages(reply, "never-launched")
    assert not messages(reply, "launch-error")


@pytest.mark.gpu
def test_a_launch_that_fails_is_an_error_whether_or_not_the_candidate_looks(zygote: Zygote) -> None:
    x = torch.ones(8, device="cuda")
    for launch in ("shift<<<1, 2048>>>", "shift<<<1, 32, 1 << 20>>>", "shift<<<0, 32>>>"):
        cuda = SCALE.replace("shift<<<dim3(2, 3), dim3(8, 4)>>>", launch)
        with pytest.raises(ChildFailure, match=r"shift: invalid (configuration )?argument") as caught:
            run_once(zygote, CANDIDATE.format(cuda=cuda), [x], [OutputSpec((8,), torch.float32)], [])
        assert (caught.value.kind, caught.value.reason) == ("runtime_error", "launch-error")


@pytest.mark.gpu
def test_a_kernel_that_is_never_launched_is_reported(zygote: Zygote) -> None:
    cuda = "__global__ void k(float* x) {}\ntorch::Tensor run(torch::Tensor x, int64_t n) { return x + 1; }"
    x = torch.ones(8, device="cuda")
    _, _, reply = run_once(zygote, CANDIDATE.format(cuda=cuda), [x], [OutputSpec((8,), torch.float32)], [])
    assert messages(reply, "never-launched")


@pytest.mark.gpu
def test_an_illegal_access_ends_that_candidate_alone(zygote: Zygote) -> None:
    cuda = SCALE.replace("y[i] += by;", "y[i + (1LL << 40)] += by;")
    x = torch.ones(8, device="cuda")
    specs = [OutputSpec((8,), torch.float32)]
    with pytest.raises(ChildFailure) as caught:
        run_once(zygote, CANDIDATE.format(cuda=cuda), [x], specs, [])
    assert caught.value.kind == "runtime_error"
    engine, _, _ = run_once(zygote, CANDIDATE.format(cuda=SCALE), [x], specs, [])
    assert engine == "nvrtc"


@pytest.mark.gpu
@pytest.mark.slow
def test_what_the_fast_path_lacks_is_built_by_torch_and_said_so(zygote: Zygote) -> None:
    cuda = """
    #include <torch/extension.h>
    #include <ATen/cuda/Atomic.cuh>
    __global__ void k(const float* x, float* y, int n) { if (threadIdx.x < n) gpuAtomicAdd(y, x[threadIdx.x]); }
    torch::Tensor run(torch::Tensor x, int64_t n) {
      auto y = torch::zeros({1}, x.options());
      k<<<1, 32>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
      return y;
    }
    """
    x = torch.ones(8, device="cuda")
    engine, _, reply = run_once(zygote, CANDIDATE.format(cuda=cuda), [x], [OutputSpec((1,), torch.float32)], [])
    assert engine == "load-inline"
    assert reply.outputs[0].item() == 8
    assert "Atomic.cuh" in messages(reply, "build-path")[0]
