"""Strict runs on a GPU: what a lucky run hides is seen, and a correct kernel computes the same.

Up to the driver's door on any machine; behind it with the marker `gpu`.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from emulated import CASES
from gpu_driver import Recorder, extension, needs_tools
from kernelward.reward.cuda import gpu_module
from kernelward.reward.cuda.builder import Builder, Built
from kernelward.reward.cuda.engine_gpu import gpu_host_compiler, variants
from kernelward.reward.cuda.frontend import ExtensionSource, Unsupported
from kernelward.reward.cuda.gpu_module import GpuModule
from kernelward.reward.sandbox.buffers import OutputSpec
from kernelward.reward.sandbox.failure import ChildFailure
from kernelward.reward.sandbox.limits import Limits
from kernelward.reward.sandbox.session import ChildSession, RunReply, Zygote
from kernelward.suites.compare import flatten_outputs

(STRICT,) = variants(True)
(PLAIN,) = variants(False)

TWO = """
#include <torch/extension.h>
template <int N> __global__ void add(float* x, int n, int by) { if (threadIdx.x < n) x[threadIdx.x] += N; }
template <int N> void late(torch::Tensor x) { add<2 * N><<<1, 32>>>(x.data_ptr<float>(), 5, 7); }
torch::Tensor run(torch::Tensor x, int64_t n) {
  cudaFuncSetAttribute(add<3>, cudaFuncAttributeMaxDynamicSharedMemorySize, 70000);
  add<3><<<1, 32, n>>>(x.data_ptr<float>(), 5, 7);
  late<21>(x);
  return x;
}
"""


CARVEOUT = "cudaFuncAttributePreferredSharedMemoryCarveout, 50"


def set_to(driver: Recorder, attribute: int) -> list[int]:
    return [call[2] for call in driver.calls if len(call) == 3 and call[1] == attribute]


# ---- up to the driver's door ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    root = os.environ.get("KERNELWARD_CACHE")
    home = Path(root) if root else tmp_path_factory.mktemp("home")
    return Builder(gpu_host_compiler(home / "cuda").prepare(), "sm_90")


def refused(gap: Unsupported) -> Any:
    raise AssertionError(f"took the other path: {gap}")


def load(builder: Builder, source: ExtensionSource, folder: Path, driver: Recorder, strict: bool = True) -> GpuModule:
    def more(names: list[str]) -> Built:
        return builder.more(source, names, folder, strict)

    return GpuModule(builder.fast(source, folder, strict), folder, driver, more, refused)


@needs_tools
def test_a_strict_run_launches_the_instrumented_kernels_and_a_plain_one_those_that_were_written(
    builder: Builder, tmp_path: Path
) -> None:
    driver = Recorder()
    module = load(builder, extension(TWO), tmp_path, driver)
    images: list[list[int]] = []
    for strict in (False, True, False):
        driver.launched.clear()
        module.begin(strict)
        module.run(torch.zeros(5), 64)
        images.append(list(driver.launched))
        assert module.launches == 2
    plain, poisoned, again = images
    assert plain == again
    assert not set(plain) & set(poisoned)


@needs_tools
def test_what_a_candidate_sets_once_holds_for_the_instrumented_kernel_too(builder: Builder, tmp_path: Path) -> None:
    first = "  static bool first = true;\n  if (first) cudaFuncSetAttribute"
    once = TWO.replace("  cudaFuncSetAttribute", first)
    once = once.replace("cudaFuncAttributeMaxDynamicSharedMemorySize, 70000", CARVEOUT)
    once = once.replace("  add<3><<<", "  first = false;\n  add<3><<<")
    driver = Recorder()
    module = load(builder, extension(once), tmp_path, driver)
    module.begin(False)
    module.run(torch.zeros(5), 64)
    assert set_to(driver, 9) == [50]
    module.begin(True)
    module.run(torch.zeros(5), 64)
    assert set_to(driver, 9) == [50, 50]  # once for each of the two
    # What shared memory it may have is the device's most, less what is static: the guard comes on top of its own.
    assert set_to(driver, 8) == [227 * 1024 - 64] * 2


@needs_tools
def test_where_the_instrumented_kernel_does_not_fit_the_one_that_was_written_runs(
    builder: Builder, tmp_path: Path
) -> None:
    driver = Recorder()
    driver.codes = [701, 0, 0]  # too many resources requested for launch; then it goes
    module = load(builder, extension(TWO), tmp_path, driver)
    module.begin(True)
    module.run(torch.zeros(5), 64)
    assert (module.launches, module.errors) == (2, [])
    assert len(set(driver.launched[:2])) == 2


@needs_tools
def test_a_launch_in_a_strict_run_has_a_guard_behind_its_shared_memory(builder: Builder, tmp_path: Path) -> None:
    driver = Recorder()
    module = load(builder, extension(TWO), tmp_path, driver)
    module.begin(True)
    module.run(torch.zeros(5), 61)
    assert [call[3] for call in driver.calls if len(call) == 5] == [64 + 1024, 1024]
    driver.calls.clear()
    module.run(torch.zeros(5), 49153)  # more than it has asked for: the kernel itself, and its error
    assert [call[3] for call in driver.calls if len(call) == 5] == [49153, 1024]


@needs_tools
def test_what_a_graph_records_is_the_kernel_that_was_written(
    builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Recorder()
    module = load(builder, extension(TWO), tmp_path, driver)
    module.begin(True)
    monkeypatch.setattr(gpu_module, "capturing", lambda: True)
    module.run(torch.zeros(5), 64)
    assert [call[3] for call in driver.calls if len(call) == 5] == [64, 0]
    monkeypatch.setattr(gpu_module, "capturing", lambda: False)
    module.run(torch.zeros(5), 64)
    assert [call[3] for call in driver.calls if len(call) == 5][2:] == [64 + 1024, 1024]


@needs_tools
def test_who_asks_how_many_blocks_fit_hears_of_the_kernel_that_will_run(builder: Builder, tmp_path: Path) -> None:
    asks = """
    __global__ void k(float* x, int a, int n) { x[0] = n; }
    torch::Tensor run(torch::Tensor x, int64_t n) {
      int blocks = 0;
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, k, 256, 0);
      k<<<blocks, 256>>>(x.data_ptr<float>(), 0, blocks);
      return x;
    }
    """
    driver = Recorder()
    module = load(builder, extension("#include <torch/extension.h>" + asks), tmp_path, driver)
    for strict, blocks in ((False, 8), (True, 7)):
        driver.calls.clear()
        module.begin(strict)
        module.run(torch.zeros(5), 64)
        assert driver.calls[-1][1] == (blocks, 1, 1)


@needs_tools
def test_what_was_written_there_is_counted_once_for_each_call(builder: Builder, tmp_path: Path) -> None:
    driver = Recorder()
    module = load(builder, extension(TWO), tmp_path, driver)
    module.begin(True)
    module.run(torch.zeros(5), 64)
    assert module.strays == 0
    driver.strays = dict.fromkeys(set(driver.launched), 7)
    module.run(torch.zeros(5), 64)
    module.run(torch.zeros(5), 64)
    assert module.strays == len(set(driver.launched))
    module.begin(True)
    assert module.strays == 0


@needs_tools
def test_a_launch_that_is_wrong_in_itself_stays_so(builder: Builder, tmp_path: Path) -> None:
    driver = Recorder()
    driver.code = 1
    module = load(builder, extension(TWO), tmp_path, driver)
    module.begin(True)
    with pytest.raises(RuntimeError, match="CUDA error"):
        module.run(torch.zeros(5), 64)


@needs_tools
def test_nothing_is_instrumented_where_nobody_asked(builder: Builder, tmp_path: Path) -> None:
    driver = Recorder()
    module = load(builder, extension(TWO), tmp_path, driver, strict=False)
    module.begin(True)
    module.run(torch.zeros(5), 64)
    assert len(driver.images) == 2  # what was foreseen, and what only the host code knew


# ---- with a GPU ----------------------------------------------------------------------------------------------------

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
LIMITS = Limits(load_s=300, run_s=60)
CANDIDATE = '''
import torch
from torch.utils.cpp_extension import load_inline
module = load_inline("e", "torch::Tensor run(torch::Tensor x);", """{cuda}""", functions=["run"])
class ModelNew(torch.nn.Module):
    def forward(self, x):
        return module.run(x)
'''
HOST = """
#include <torch/extension.h>
%s
torch::Tensor run(torch::Tensor x) {
  int n = x.numel();
  auto y = torch::empty_like(x);
  %s
  return y;
}
"""
N = 4096 + 5  # no multiple of anything


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    with pytest.MonkeyPatch.context() as patch:
        if "KERNELWARD_CACHE" not in os.environ:
            patch.setenv("KERNELWARD_CACHE", str(tmp_path_factory.mktemp("home")))
        with Zygote("cuda", "cuda:0") as started:
            yield started


def opened(zygote: Zygote, source: str) -> ChildSession:
    child = zygote.spawn(LIMITS)
    try:
        assert child.load(source, {"strict": True}).engine == "nvrtc"
        child.build([])
    except BaseException:
        child.close()
        raise
    return child


def asked(zygote: Zygote, device: str, host: str, variant: dict[str, Any], n: int = N) -> tuple[RunReply, torch.Tensor]:
    x = torch.randn(n, generator=torch.Generator().manual_seed(0)).cuda()
    with opened(zygote, CANDIDATE.format(cuda=HOST % (device, host))) as child:
        return child.run([x], [OutputSpec((n,), torch.float32)], variant=variant), x


def codes(reply: RunReply) -> set[str]:
    return {str(f["code"]) for f in reply.findings}


REVERSE = """
__global__ void k(const float* x, float* y, int n) {
  __shared__ float tile[256];
  int base = blockIdx.x * 256, i = base + threadIdx.x;
  if (i < n) tile[threadIdx.x] = x[i];
  __syncthreads();
  int from = (n - base < 256 ? n - base : 256) - 1 - threadIdx.x;
  if (i < n) y[i] = tile[from];
}
"""
SUM = """
__global__ void k(const float* x, float* y, int n) {
  __shared__ float part[256];
  int i = blockIdx.x * 256 + threadIdx.x;
  part[threadIdx.x] = i < n ? x[i] : 0.f;
  __syncthreads();
  for (int s = 128; s; s >>= 1) {
    if (threadIdx.x < s) part[threadIdx.x] += part[threadIdx.x + s];
    __syncthreads(); // step
  }
  if (i < n) y[i] = part[0];
}
"""
TILES = """
__global__ void k(const float* x, float* y, int n) {
  __shared__ float tile[256];
  int i = blockIdx.x * 256 + threadIdx.x;
  float sum = 0;
  for (int t = 0; t < 8; t++) {
    int j = (i + t * 512) % n;
    tile[threadIdx.x] = x[j];
    __syncthreads();
    for (int r = 0; r < 256; r++) sum += tile[(threadIdx.x + r) % 256] * (r + 1);
    __syncthreads(); // step
  }
  if (i < n) y[i] = sum;
}
"""
STEP = "    __syncthreads(); // step\n"
EACH = "__global__ void k(const float* x, float* y, int n) {{ int i = blockIdx.x * 256 + threadIdx.x; {} }}"
COPY = EACH.format("if (i < n) y[i] = x[i];")
LAUNCH = "k<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);"


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("kernel", "barrier"),
    [
        (REVERSE, "  __syncthreads();\n"),
        (SUM, "    __syncthreads(); // step\n"),
        (TILES, "    __syncthreads(); // step\n"),
    ],
    ids=["before-use", "in-a-reduction", "before-overwriting"],
)
def test_a_missing_barrier_shows_and_a_correct_kernel_computes_the_same(
    kernel: str, barrier: str, zygote: Zygote
) -> None:
    plain, _ = asked(zygote, kernel, LAUNCH, PLAIN)
    strict, _ = asked(zygote, kernel, LAUNCH, STRICT)
    assert torch.equal(plain.outputs[0], strict.outputs[0])
    broken, _ = asked(zygote, kernel.replace(barrier, ""), LAUNCH, STRICT)
    assert not torch.equal(plain.outputs[0], broken.outputs[0])


@pytest.mark.gpu
@pytest.mark.parametrize(
    "statement",
    [
        "if (i < n) y[i] = x[i] + (i == n - 1 ? 0.f * x[n + 8] : 0.f);",
        "if (i < n) y[i] = x[i]; if (i == 0) y[n + 8] = 1.f;",
        "y[i] = i < n ? x[i] : 0.f;",
    ],
    ids=["reads", "writes", "no-guard"],
)
def test_an_access_beyond_a_tensors_end_faults_where_a_plain_run_does_not_see_it(
    statement: str, zygote: Zygote
) -> None:
    asked(zygote, EACH.format(statement), LAUNCH, PLAIN)
    with pytest.raises(ChildFailure) as caught:
        asked(zygote, EACH.format(statement), LAUNCH, STRICT)
    assert (caught.value.kind, caught.value.reason) == ("runtime_error", "cuda-error")


@pytest.mark.gpu
@pytest.mark.parametrize("where", ["y - 1", "y + n", "y - 1000"])
def test_a_write_beside_a_tensor_that_does_not_fault_is_found_afterwards(where: str, zygote: Zygote) -> None:
    write = f"if (i < n) y[i] = x[i]; if (i == 0) *({where}) = 1.f;"
    reply, x = asked(zygote, EACH.format(write), LAUNCH, STRICT)
    assert torch.equal(reply.outputs[0], x)
    assert "illegal-access" in codes(reply)
    reply, _ = asked(zygote, COPY, LAUNCH, STRICT)
    assert "illegal-access" not in codes(reply)


@pytest.mark.gpu
@pytest.mark.parametrize("shared", ["__shared__ float s[256];", "extern __shared__ float s[];"])
@pytest.mark.parametrize("leaves", ["", "if (threadIdx.x == 5 && n < 0) return;"])
def test_a_write_behind_a_blocks_shared_memory_is_found(shared: str, leaves: str, zygote: Zygote) -> None:
    body = f"{shared} s[threadIdx.x] = x[i % n]; __syncthreads(); {leaves} if (i < n) y[i] = s[threadIdx.x];"
    launch = LAUNCH.replace("256>>>", "256, 1024>>>") if "extern" in shared else LAUNCH
    reply, x = asked(zygote, EACH.format(body), launch, STRICT)
    assert torch.equal(reply.outputs[0], x)
    assert "shared-out-of-bounds" not in codes(reply)
    for stray in ("s[256 + threadIdx.x % 8] = 1.f;", "if (blockIdx.x == 3 && threadIdx.x == 255) s[300] = 1.f;"):
        reply, x = asked(zygote, EACH.format(body + stray), launch, STRICT)
        assert torch.equal(reply.outputs[0], x)
        assert "shared-out-of-bounds" in codes(reply)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("missing", "kernel"),
    [
        ("sum = 0; ", "float sum; sum = 0; for (int k = 0; k < 4; k++) sum += x[(i + k) % n]; if (i < n) y[i] = sum;"),
        (
            "acc[0] = acc[1] = 0; ",
            "float acc[2]; acc[0] = acc[1] = 0; for (int k = 0; k < 4; k++) acc[k % 2] += x[(i + k) % n];"
            " if (i < n) y[i] = acc[0] + acc[1];",
        ),
        (
            "s[threadIdx.x] = 0; ",
            "__shared__ float s[256]; s[threadIdx.x] = 0; s[threadIdx.x] += x[i % n]; y[i % n] = s[threadIdx.x];",
        ),
        ("y[i] = 0; ", "if (i < n) { y[i] = 0; y[i] += x[i]; }"),
    ],
    ids=["local", "array", "shared", "output"],
)
def test_memory_that_nobody_wrote_shows(missing: str, kernel: str, zygote: Zygote) -> None:
    whole = EACH.format(kernel)
    plain, _ = asked(zygote, whole, LAUNCH, PLAIN)
    strict, _ = asked(zygote, whole, LAUNCH, STRICT)
    assert torch.equal(plain.outputs[0], strict.outputs[0])
    broken, _ = asked(zygote, whole.replace(missing, ""), LAUNCH, STRICT)
    assert not torch.allclose(plain.outputs[0], broken.outputs[0], equal_nan=False)


@pytest.mark.gpu
def test_dynamic_shared_memory_that_nobody_wrote_shows(zygote: Zygote) -> None:
    kernel = """
    __global__ void k(const float* x, float* y, int n) {
      extern __shared__ float s[];
      int i = blockIdx.x * 256 + threadIdx.x;
      s[threadIdx.x] = 0;
      if (i < n) { s[threadIdx.x] += x[i]; y[i] = s[threadIdx.x]; }
    }
    """
    launch = LAUNCH.replace("256>>>", "256, 1024>>>")
    reply, x = asked(zygote, kernel, launch, STRICT)
    assert torch.equal(reply.outputs[0], x)
    broken, _ = asked(zygote, kernel.replace("s[threadIdx.x] = 0;", ""), launch, STRICT)
    assert not torch.allclose(broken.outputs[0], x)


@pytest.mark.gpu
def test_a_kernel_that_fills_a_block_with_its_registers_is_right(zygote: Zygote) -> None:
    kernel = """
    __global__ void k(const float* x, float* y, int n) {
      __shared__ float s[1024];
      float a[40];
      #pragma unroll
      for (int j = 0; j < 40; j++) a[j] = x[(blockIdx.x * 1024 + threadIdx.x + j * 37) % n];
      s[threadIdx.x] = a[0];
      __syncthreads();
      float sum = s[1023 - threadIdx.x] * 0.f;
      #pragma unroll
      for (int j = 0; j < 40; j++) sum += a[j] * a[(j * 7) % 40];
      int i = blockIdx.x * 1024 + threadIdx.x;
      if (i < n) y[i] = sum;
    }
    """
    launch = "k<<<(n + 1023) / 1024, 1024>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);"
    plain, _ = asked(zygote, kernel, launch, PLAIN)
    strict, _ = asked(zygote, kernel, launch, STRICT)
    assert torch.equal(plain.outputs[0], strict.outputs[0])


@pytest.mark.gpu
@pytest.mark.parametrize("tail", ["return x;", "return x.view({n});", "return x.slice(0, 0, n);"])
def test_an_input_that_is_written_and_handed_back_stays_the_callers(tail: str, zygote: Zygote) -> None:
    kernel = "__global__ void k(float* x, int n) { int i = blockIdx.x * 256 + threadIdx.x; if (i < n) x[i] += 1; }"
    host = f"k<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), n); {tail}"
    replies = [asked(zygote, kernel, host, variant) for variant in (PLAIN, STRICT)]
    for reply, x in replies:
        assert torch.equal(reply.outputs[0], x + 1)
        assert reply.inputs_changed
        assert "output-aliases-input" in codes(reply)


@pytest.mark.gpu
def test_operators_of_torch_views_and_several_tensors_keep_their_meaning(zygote: Zygote) -> None:
    host = """
    auto wide = torch::zeros({n, 2}, x.options());
    auto column = wide.select(1, 1);
    column.copy_(x);
    auto dense = column.contiguous();
    k<<<(n + 255) / 256, 256>>>(dense.data_ptr<float>(), y.data_ptr<float>(), n);
    y.add_(wide.sum(1)).sub_(x);
    """
    for variant in (PLAIN, STRICT):
        reply, x = asked(zygote, COPY, host, variant)
        assert torch.equal(reply.outputs[0], x)
        assert not reply.inputs_changed
        assert "illegal-access" not in codes(reply)


@pytest.mark.gpu
def test_what_an_extension_keeps_for_the_next_call_is_still_there(zygote: Zygote) -> None:
    host = """
    static torch::Tensor ones;
    if (!ones.defined()) ones = torch::ones_like(x);
    k<<<(n + 255) / 256, 256>>>(ones.data_ptr<float>(), y.data_ptr<float>(), n);
    """
    x = torch.randn(N, device="cuda")
    with opened(zygote, CANDIDATE.format(cuda=HOST % (COPY, host))) as child:
        for variant in (STRICT, PLAIN, STRICT, STRICT):
            reply = child.run([x], [OutputSpec((N,), torch.float32)], variant=variant)
            assert torch.equal(reply.outputs[0], torch.ones_like(x))
            assert "illegal-access" not in codes(reply)


@pytest.mark.gpu
def test_kernels_beside_variables_in_device_memory_are_guarded_all_the_same(zygote: Zygote) -> None:
    kernel = """
    __constant__ float factor;
    __global__ void k(const float* x, float* y, int n) {
      int i = blockIdx.x * 256 + threadIdx.x;
      if (GUARD) y[i] = x[i] * factor;
    }
    """
    host = "float two = 2; cudaMemcpyToSymbol(factor, &two, sizeof two);" + LAUNCH
    reply, x = asked(zygote, kernel.replace("GUARD", "i < n"), host, STRICT)
    assert torch.equal(reply.outputs[0], x * 2)
    with pytest.raises(ChildFailure):
        asked(zygote, kernel.replace("GUARD", "i <= n + 8"), host, STRICT)


@pytest.mark.gpu
@pytest.mark.parametrize("stem", [s for s in sorted(CASES) if (EXAMPLES / "problems" / f"{s}.py").is_file()])
def test_our_examples_compute_the_same_bits(stem: str, zygote: Zygote) -> None:
    init, inputs = list(CASES[stem].init), [x.cuda() for x in CASES[stem].inputs()]
    source = (EXAMPLES / "kernels" / "cuda" / f"{stem}.py").read_text()
    problem: dict[str, Any] = {"__name__": "problem"}
    exec((EXAMPLES / "problems" / f"{stem}.py").read_text(), problem)
    torch.manual_seed(0)
    model = problem["Model"](*init).cuda()
    with torch.no_grad():
        expected = flatten_outputs(model(*[x.clone() for x in inputs]))
    specs = [OutputSpec(tuple(e.shape), e.dtype) for e in expected]
    with zygote.spawn(LIMITS) as child:
        child.load(source, {"strict": True})
        child.build(init, dict(model.state_dict()), seed=0)
        plain, strict = (child.run(inputs, specs, variant=variant) for variant in (PLAIN, STRICT))
    assert codes(strict) == codes(plain)
    for got, want in zip(strict.outputs, plain.outputs, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=0.0)  # mse_loss adds atomically
