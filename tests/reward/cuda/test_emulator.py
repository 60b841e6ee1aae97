"""The emulator's device side: values, schedules, memory faults, errors as CUDA reports them, races."""

import contextlib
from typing import Any

import pytest
import torch
from emulated import codes, host
from kernelward.reward.cuda.emulator import (
    NAN_POISON,
    PLAIN_VARIANT,
    RACE_VARIANT,
    STRICT_VARIANTS,
    CudaError,
    Order,
    Variant,
)

ALL_ORDERS = [Variant(order, NAN_POISON, at_end=bool(order % 2), seed=9) for order in Order]


WARP = """
__global__ void k(const float* x, float* y) {
    int t = threadIdx.x;
    unsigned all = 0xffffffff;
    float v = x[t];
    y[0 * 32 + t] = __shfl_sync(all, v, (t + 5) % 32);
    y[1 * 32 + t] = __shfl_up_sync(all, v, 3);
    y[2 * 32 + t] = __shfl_down_sync(all, v, 3, 8);
    y[3 * 32 + t] = __shfl_xor_sync(all, v, 9);
    y[4 * 32 + t] = (float)__popc(__ballot_sync(all, t % 3 == 0));
    y[5 * 32 + t] = (float)__any_sync(all, t == 31) + 2 * __all_sync(all, t < 31);
    y[6 * 32 + t] = (float)__reduce_add_sync(all, t);
    y[7 * 32 + t] = (float)__popc(__match_any_sync(all, t / 4));
    if (t % 2) y[8 * 32 + t] = (float)__popc(__activemask());
    else y[8 * 32 + t] = -(float)__reduce_max_sync(0x55555555u, t);
}"""


@pytest.mark.parametrize("variant", [PLAIN_VARIANT, *ALL_ORDERS], ids=lambda v: f"{v.order.name}-{v.poison}")
def test_warp_operations_have_cudas_values_under_every_schedule(build: Any, variant: Variant) -> None:
    module = build(host(WARP, "k<<<1, 32>>>(X_PTR, Y_PTR)", "torch::empty({9, 32}, x.options())"))
    module.configure(variant)
    x = torch.arange(32.0)
    y = module.f(x)
    lanes = torch.arange(32)
    assert torch.equal(y[0], x[(lanes + 5) % 32])
    assert torch.equal(y[1], torch.where(lanes < 3, x, x[(lanes - 3).clamp(min=0)]))
    assert torch.equal(y[2], torch.where(lanes % 8 + 3 < 8, x[(lanes + 3) % 32], x))
    assert torch.equal(y[3], x[lanes ^ 9])
    assert y[4].unique().item() == 11
    assert y[5].unique().item() == 1
    assert y[6].unique().item() == 31 * 16
    assert y[7].unique().item() == 4
    assert torch.equal(y[8], torch.where(lanes % 2 == 1, torch.tensor(16.0), torch.tensor(-30.0)))
    assert not codes(module)


HALF = """
__global__ void k(const __half* x, __half* y) {
    int t = threadIdx.x;
    __half2 pair = __halves2half2(x[t], x[t]);
    y[t] = __hfma(x[t], x[t], __float2half(0.1f));
    y[64 + t] = __high2half(__hmul2(pair, pair));
}
torch::Tensor f(torch::Tensor x) {
    auto y = torch::empty({128}, x.options());
    auto in = reinterpret_cast<const __half*>(x.data_ptr<at::Half>());
    k<<<1, 64>>>(in, reinterpret_cast<__half*>(y.data_ptr<at::Half>()));
    return y;
}"""


def test_half_arithmetic_rounds_once_from_float(build: Any) -> None:
    module = build(HALF)
    x = torch.randn(64, generator=torch.Generator().manual_seed(1)).half()
    y = module.f(x)
    expected = (x.double() * x.double() + torch.tensor(0.1).half().double()).float().half()
    assert torch.equal(y[:64], expected)
    assert torch.equal(y[64:], (x.float() * x.float()).half())


def test_half_conversion_matches_torch_for_every_bit_pattern(build: Any) -> None:
    module = build("""
__global__ void k(const float* x, __half* y, float* z, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { y[i] = __float2half(x[i]); z[i] = __half2float(y[i]); }
}
std::vector<torch::Tensor> f(torch::Tensor x) {
    auto y = torch::empty({x.numel()}, x.options().dtype(torch::kHalf));
    auto z = torch::empty_like(x);
    auto h = (__half*)y.data_ptr<at::Half>();
    k<<<(x.numel() + 255) / 256, 256>>>(x.data_ptr<float>(), h, z.data_ptr<float>(), x.numel());
    return {y, z};
}""")
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.float16).float()
    between = (every[:-1] + every[1:]) / 2
    x = torch.cat([every, between, every * 1.0001])
    y, z = module.f(x)
    assert torch.equal(y.nan_to_num(7), x.half().nan_to_num(7))
    assert torch.equal(z.nan_to_num(7), x.half().float().nan_to_num(7))


ATOMICS = """
__global__ void k(const int* x, int* y) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&y[0], x[t]); atomicSub(&y[1], 1); atomicMax(&y[2], x[t]); atomicMin(&y[3], x[t]);
    atomicOr(&y[4], 1 << (t % 8)); atomicXor(&y[5], 3); atomicInc((unsigned*)&y[6], 100u);
    int old = y[7], seen;
    do { seen = old; old = atomicCAS(&y[7], seen, seen + 2); } while (old != seen);
}"""


def test_atomics_of_many_blocks_and_no_race_is_reported_for_them(build: Any) -> None:
    module = build(host(ATOMICS, "k<<<4, 64>>>(X_PTR, Y_PTR)", "torch::zeros({8}, x.options())", "int"))
    x = torch.arange(256, dtype=torch.int32) - 100
    for variant in (*STRICT_VARIANTS, RACE_VARIANT):
        module.configure(variant)
        assert module.f(x).tolist() == [x.sum().item(), -256, 155, -100, 255, 0, 54, 512]
        assert not codes(module)


BEFORE = "__global__ void k(const float* x, float* y) { int t = threadIdx.x; y[t] = x[t] + x[SHIFT]; }"


@pytest.mark.parametrize("shift", ["-1", "64"])
@pytest.mark.parametrize("elements", [64, 1024 + 64])
def test_reading_one_element_outside_a_tensor_is_seen(build: Any, shift: str, elements: int) -> None:
    place = "-1" if shift == "-1" else "NUM"
    kernel = "__global__ void k(const float* x, float* y, int n) { y[threadIdx.x] = x[threadIdx.x] + x[INDEX]; }"
    kernel = kernel.replace("INDEX", "n" if place == "NUM" else "-1")
    module = build(host(kernel, "k<<<1, 64>>>(X_PTR, Y_PTR, x.numel())"))
    outcomes = []
    for variant in STRICT_VARIANTS:
        module.configure(variant)
        try:
            y = module.f(torch.ones(elements))
            outcomes.append("value" if not torch.equal(y, torch.full((64,), 2.0)) else "ok")
        except CudaError as error:
            outcomes.append(f"{error.code} {codes(module)}")
        module.reset()
    assert "700 {'illegal-access'}" in outcomes


@pytest.mark.parametrize("index", ["-1", "n"])
def test_writing_one_element_outside_a_tensor_is_found_in_every_placement(build: Any, index: str) -> None:
    kernel = f"__global__ void k(float* y, int n) {{ y[threadIdx.x] = 1; if (threadIdx.x == 0) y[{index}] = 2; }}"
    module = build(host(kernel, "k<<<1, 64>>>(Y_PTR, 64)"))
    for variant in STRICT_VARIANTS:
        module.configure(variant)
        with contextlib.suppress(CudaError):
            module.f(torch.ones(1))
        assert codes(module) == {"illegal-access"}
        module.reset()


def test_plain_mode_lets_small_overruns_pass_like_a_gpu(build: Any) -> None:
    kernel = "__global__ void k(float* y, int n) { y[threadIdx.x] = 1; if (threadIdx.x == 0) y[n] = 2; }"
    module = build(host(kernel, "k<<<1, 64>>>(Y_PTR, 64)"))
    assert torch.equal(module.f(torch.ones(1)), torch.ones(64))
    assert not codes(module)


def test_the_process_survives_a_wild_access_and_says_where(build: Any) -> None:
    kernel = "__global__ void k(float* y) {\n  if (threadIdx.x == 3)\n    y[1l << 40] = 1;\n}"
    module = build(host(kernel, "k<<<2, 64>>>(Y_PTR)"))
    with pytest.raises(CudaError, match="illegal memory access"):
        module.f(torch.ones(1))
    (finding,) = module.report()["findings"]
    assert finding.code == "illegal-access"
    assert "kernel k, block (0,0,0), thread (3,0,0)" in finding.message
    assert "cuda_sources[0]:6" in finding.message or "source[0]:6" in finding.message
    with pytest.raises(CudaError):  # the error is sticky, as in a real context
        module.f(torch.ones(1))
    module.reset()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("1, 1025", "invalid configuration"),
        ("0, 64", "invalid configuration"),
        ("dim3(1, 70000), 64", "invalid configuration"),
        ("1, dim3(1, 1, 65)", "invalid configuration"),
        ("1, 64, 49153", "invalid argument"),
    ],
)
def test_launches_outside_sm90_limits_fail_and_are_reported(build: Any, config: str, message: str) -> None:
    module = build(host("__global__ void k(float* y) { y[threadIdx.x] = 1; }", f"k<<<{config}>>>(Y_PTR)"))
    with pytest.raises(CudaError, match=message):
        module.f(torch.ones(1))
    assert codes(module) == {"launch-error"}


def test_launch_errors_are_cleared_by_cuda_get_last_error(build: Any) -> None:
    module = build("""
__global__ void k(float* y) { y[threadIdx.x] = 1; }
std::vector<int64_t> f(torch::Tensor x) {
    k<<<1, 2000>>>(x.data_ptr<float>());
    int64_t peek = cudaPeekAtLastError(), first = cudaGetLastError(), second = cudaGetLastError();
    k<<<1, 4>>>(x.data_ptr<float>());
    return {peek, first, second, (int64_t)cudaDeviceSynchronize()};
}""")
    x = torch.zeros(4)
    assert module.f(x) == [9, 9, 0, 0]
    assert torch.equal(x, torch.ones(4))


def test_a_barrier_in_a_divergent_branch_is_found(build: Any) -> None:
    kernel = """__global__ void k(float* y) {
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
    y[threadIdx.x] = 1;
}"""
    module = build(host(kernel, "k<<<1, 64>>>(Y_PTR)"))
    module.configure(STRICT_VARIANTS[0])
    module.f(torch.ones(1))
    assert codes(module) == {"divergent-barrier"}


def test_a_thread_spinning_on_a_lock_lets_the_holder_run(build: Any) -> None:
    kernel = """__device__ int lock = 0;
__global__ void k(float* y) {
    bool done = false;
    while (!done) {
        if (atomicCAS(&lock, 0, 1) == 0) { y[0] += 1; __threadfence(); atomicExch(&lock, 0); done = true; }
    }
}"""
    module = build(host(kernel, "k<<<2, 64>>>(Y_PTR)"))
    for variant in (STRICT_VARIANTS[2], RACE_VARIANT):
        module.configure(variant)
        assert module.f(torch.ones(1))[0] == 128
        assert not codes(module)


def test_waiting_for_a_lock_nobody_frees_is_a_deadlock(build: Any) -> None:
    kernel = """__global__ void k(int* y) {
    if (threadIdx.x) while (atomicCAS(&y[0], 1, 2) != 1) __nanosleep(10);
    else y[1] = 1;
}"""
    module = build(host(kernel, "k<<<1, 2>>>(Y_PTR)", "torch::zeros({4}, x.options())", "int"))
    with pytest.raises(CudaError):
        module.f(torch.ones(1, dtype=torch.int32))
    assert codes(module) == {"deadlock"}
    module.reset()


def test_racy_read_modify_write_names_both_lines_and_the_threads(build: Any) -> None:
    module = build(
        host(
            "__global__ void k(const float* x, float* y) {\n  y[0] += x[threadIdx.x];\n}", "k<<<1, 64>>>(X_PTR, Y_PTR)"
        )
    )
    module.configure(RACE_VARIANT)
    assert module.f(torch.ones(64))[0] == 64  # the value is right: no schedule of whole statements shows it
    race = next(f for f in module.report()["findings"] if f.code == "race")
    assert race.message.count("source[0]:5") == 2
    assert "in kernel k" in race.message


def test_blocks_that_store_to_the_same_place_race_unless_the_value_is_the_same(build: Any) -> None:
    kernel = "__global__ void k(float* y) {{ if (threadIdx.x == 0) y[0] = {}; y[1] = 1; }}"
    for value, found in (("blockIdx.x", {"race"}), ("3.0f", set())):
        module = build(host(kernel.format(value), "k<<<3, 64>>>(Y_PTR)"))
        module.configure(RACE_VARIANT)
        module.f(torch.ones(1))
        assert codes(module) == found


LAST_BLOCK = """
__device__ unsigned count = 0;
__global__ void k(const float* x, float* part, float* y) {
    __shared__ bool last;
    part[blockIdx.x] = x[blockIdx.x];
    FENCE
    if (threadIdx.x == 0) last = atomicInc(&count, gridDim.x - 1) == gridDim.x - 1;
    __syncthreads();
    if (last && threadIdx.x == 0) { float s = 0; for (int i = 0; i < gridDim.x; i++) s += part[i]; y[0] = s; }
}"""


@pytest.mark.parametrize(("fence", "found"), [("__threadfence();", set()), ("", {"race"})])
def test_the_last_block_may_read_what_was_fenced(build: Any, fence: str, found: set[str]) -> None:
    launch = "auto part = torch::empty({5}, x.options()); k<<<5, 32>>>(X_PTR, part.data_ptr<float>(), Y_PTR)"
    module = build(host(LAST_BLOCK.replace("FENCE", fence), launch))
    module.configure(RACE_VARIANT)
    assert module.f(torch.ones(5))[0] == 5
    assert codes(module) == found


def test_accesses_are_seen_again_after_runs_that_left_the_calls_for_them_out(build: Any) -> None:
    kernel = """__global__ void k(const float* x, float* y) {
        __shared__ float s[64];
        s[threadIdx.x] = x[threadIdx.x];
        y[threadIdx.x] = s[63 - threadIdx.x] + s[threadIdx.x];
    }"""
    module, x = build(host(kernel, "k<<<1, 64>>>(X_PTR, Y_PTR)")), torch.arange(64.0)
    seen, timed = [], []
    unwatched = STRICT_VARIANTS
    for variant in (PLAIN_VARIANT, RACE_VARIANT, *unwatched, RACE_VARIANT, *unwatched, PLAIN_VARIANT, RACE_VARIANT):
        module.configure(variant)
        y = module.f(x)
        races = [(f.message, f.count) for f in module.report()["findings"] if f.code == "race"]
        assert bool(races) == variant.races
        seen += races
        if variant.order is Order.TIMED:
            timed.append(y)
    assert seen == seen[:1] * 3
    assert torch.equal(*timed)  # by what it reads when, too
    assert timed[0].unique().numel() > 1


def test_accesses_are_seen_in_code_that_ran_before_any_kernel_and_in_threads_of_the_host(build: Any) -> None:
    module = build("""
#include <thread>
__host__ __device__ __attribute__((noinline)) float get(const float* p) { return *p; }
static float table[2] = {1, 2};
static float early = get(table) + get(table + 1);
__global__ void k(const float* x, float* y) {
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x] * early;
    y[threadIdx.x] = get(s + 63 - threadIdx.x);
}
torch::Tensor f(torch::Tensor x) {
    auto y = torch::zeros({64}, x.options());
    const float* p = x.data_ptr<float>();
    float sums[4] = {0, 0, 0, 0};
    std::thread threads[4];
    for (int t = 0; t < 4; t++)
        threads[t] = std::thread([&, t] { for (int i = 0; i < 64; i++) sums[t] += get(p + i); });
    for (auto& thread : threads) thread.join();
    k<<<1, 64>>>(p, y.data_ptr<float>());
    return y;
}""")
    for variant in (STRICT_VARIANTS[0], RACE_VARIANT, STRICT_VARIANTS[1], RACE_VARIANT):
        module.configure(variant)
        module.f(torch.arange(64.0))
        assert ("race" in codes(module)) == variant.races


def test_a_thread_that_is_suspended_hands_over_to_each_that_can_run_once_a_round(build: Any) -> None:
    kernel = """__global__ void k(const float* x, float* y) {
        __shared__ int turn;
        if (threadIdx.x == 0) turn = 0;
        __syncthreads();
        for (int round = 0; round < 3; round++) {
            y[round * 64 + threadIdx.x] = turn++;
            __syncthreads();
        }
    }"""
    module = build(host(kernel, "k<<<1, 64>>>(X_PTR, Y_PTR)", "torch::zeros({3, 64}, x.options())"))
    for order in (Order.ASCENDING, Order.REVERSED, Order.RANDOM_THREADS):
        module.configure(Variant(order, NAN_POISON, seed=3))
        turns = module.f(torch.zeros(64))
        ordered = torch.equal(turns[0], torch.arange(64.0)), torch.equal(turns[0], torch.arange(63.0, -1.0, -1.0))
        assert ordered == (order is Order.ASCENDING, order is Order.REVERSED)
        expected = torch.arange(3)[:, None] * 64 + turns[0][None]  # the same order in each round, all of them
        assert torch.equal(turns, expected.float())
        assert torch.equal(turns[0].sort().values, torch.arange(64.0))


def test_code_that_trusts_lockstep_is_told_apart_from_races(build: Any) -> None:
    kernel = """__global__ void k(const float* x, float* y) {
    __shared__ volatile float s[64];
    int t = threadIdx.x;
    s[t] = x[t]; s[32 + t] = 0;
    s[t] += s[t + 16]; s[t] += s[t + 8]; s[t] += s[t + 4]; s[t] += s[t + 2]; s[t] += s[t + 1];
    if (t == 0) y[0] = s[0];
}"""
    module = build(host(kernel, "k<<<1, 32>>>(X_PTR, Y_PTR)"))
    module.configure(RACE_VARIANT)
    module.f(torch.ones(32))
    assert codes(module) == {"warp-synchronous"}


def test_a_misaligned_vector_access_is_reported(build: Any) -> None:
    kernel = """__global__ void k(const float* x, float* y) {
    float4 v = *reinterpret_cast<const float4*>(x + 1 + threadIdx.x * 4);
    y[threadIdx.x] = v.x;
}"""
    module = build(host(kernel, "k<<<1, 8>>>(X_PTR, Y_PTR)"))
    module.configure(STRICT_VARIANTS[0])  # tensors end at a guard page: their addresses say nothing
    assert torch.equal(module.f(torch.arange(64.0))[:8], torch.arange(8.0) * 4 + 1)
    for variant in (PLAIN_VARIANT, RACE_VARIANT):
        module.configure(variant)
        with pytest.raises(CudaError, match="misaligned"):
            module.f(torch.arange(64.0))
        module.reset()


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("int a[40000]; for (int i = 0; i < 40000; i++) a[i] = i + y[0]; y[0] = a[y[1]];", "stack-overflow"),
        ("y[0] = 7 / y[1];", "integer-division"),
        ("assert(y[1] == 1);", "device-assert"),
        ("__trap();", "trap"),
        ("cooperative_groups::this_grid().sync();", "unsupported"),
    ],
)
def test_other_deaths_of_a_kernel_have_their_own_reason(build: Any, body: str, code: str) -> None:
    source = host(
        f"__global__ void k(int* y) {{ {body} }}", "k<<<1, 2>>>(Y_PTR)", "torch::zeros({4}, x.options())", "int"
    )
    module = build("#include <cooperative_groups.h>\n" + source)
    with pytest.raises(CudaError):
        module.f(torch.ones(1, dtype=torch.int32))
    assert codes(module) == {code}
    module.reset()
    module.configure(PLAIN_VARIANT)


def test_a_tile_can_be_kept_without_naming_its_parent(build: Any) -> None:
    kernel = """namespace cg = cooperative_groups;
__global__ void k(float* y) {
    cg::thread_block_tile<32> tile = cg::tiled_partition<32>(cg::this_thread_block());
    y[threadIdx.x] = tile.shfl_xor(float(threadIdx.x), 1) + 100 * tile.meta_group_rank();
}"""
    source = host(kernel, "k<<<1, 64>>>(Y_PTR)", "torch::empty({64}, x.options())")
    module = build("#include <cooperative_groups.h>\n" + source)
    assert module.f(torch.ones(1)).tolist() == [(i ^ 1) + 100 * (i // 32) for i in range(64)]


def test_recursion_without_end_does_not_take_the_process_down(build: Any) -> None:
    kernel = """__device__ int down(volatile int* y, int n) {
    volatile int keep[64];
    keep[n % 64] = n;
    return down(y, n + 1) + keep[y[0] % 64];
}
__global__ void k(int* y) { y[1] = down(y, 0); }"""
    module = build(host(kernel, "k<<<1, 2>>>(Y_PTR)", "torch::zeros({4}, x.options())", "int"))
    with pytest.raises(CudaError):
        module.f(torch.ones(1, dtype=torch.int32))
    assert codes(module) == {"stack-overflow"}
    module.reset()


def test_kernels_may_not_touch_cpu_memory(build: Any) -> None:
    module = build(
        host("__global__ void k(float* y) { y[threadIdx.x] = 1; }", "k<<<1, 64>>>(Y_PTR)", "torch::zeros({64})")
    )
    with pytest.raises(CudaError, match="illegal memory access"):
        module.f(torch.ones(1))
    module.reset()


def test_findings_do_not_outlive_configure_and_launches_are_counted(build: Any) -> None:
    module = build(
        host("__global__ void k(float* y) { y[threadIdx.x] = 1; }", "if (x.numel() > 1) k<<<3, 32>>>(Y_PTR)")
    )
    module.configure(PLAIN_VARIANT)
    module.f(torch.ones(2))
    assert (module.report()["launches"], module.report()["threads"]) == (1, 96)
    module.configure(PLAIN_VARIANT)
    module.f(torch.ones(1))
    assert module.report()["launches"] == 0
