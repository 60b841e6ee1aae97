"""The schedule that stands in for a GPU: what a machine with warps in lockstep lets pass, and what it does not."""

import pytest
import torch
from kernelward.reward.cuda.emulator import PLAIN, PLAIN_VARIANT, EmulatedModule, Order, Variant
from kernelward.reward.cuda.emulator_build import Toolchain
from kernelward.reward.cuda.frontend import ExtensionSource

ASCENDING = Variant(Order.ASCENDING, PLAIN)

SOURCE = """
#include <torch/extension.h>
#include <cuda_runtime.h>

__global__ void tree(const float* x, float* y) {
    __shared__ float s[256];
    int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    for (int d = 128; d > 0; d /= 2)
        if (t < d) s[t] += s[t + d];  // no barrier
    if (t == 0) y[0] = s[0];
}

template <int N> __global__ void broadcast(const float* x, float* y) {
    __shared__ float s[N], scale;
    int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    if (t == 0) scale = s[0] + s[1];  // no barrier
    y[t] = s[t] * scale;
}

template <bool FIRST, bool SECOND> __global__ void product(const float* a, const float* b, float* y, int n) {
    __shared__ float p[16][16], q[16][16];
    int r = blockIdx.y * 16 + threadIdx.y, c = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < n; k += 16) {
        p[threadIdx.y][threadIdx.x] = a[r * n + k + threadIdx.x];
        q[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + c];
        if (FIRST) __syncthreads();
        for (int i = 0; i < 16; i++) sum += p[threadIdx.y][i] * q[i][threadIdx.x];
        if (SECOND) __syncthreads();
    }
    y[r * n + c] = sum;
}

__global__ void last_lane(const float* x, float* y) {
    __shared__ float s[32];
    int t = threadIdx.x;
    s[t] = x[t];
    float mine = s[t];
    if (t == 31) s[0] = mine * 2;
    y[t] = s[0];  // the branch comes first in the code: all lanes see it
}

__global__ void lockstep(const float* x, float* y) {
    __shared__ volatile float s[64];
    int t = threadIdx.x;
    s[t] = x[t]; s[32 + t] = 0;
    s[t] += s[t + 16]; s[t] += s[t + 8]; s[t] += s[t + 4]; s[t] += s[t + 2]; s[t] += s[t + 1];
    if (t == 0) y[0] = s[0];
}

__global__ void handshake(const float* x, float* y) {
    __shared__ volatile int ready, value;
    int t = threadIdx.x;
    if (t == 0) ready = 0;
    __syncthreads();
    if (t == 63) { value = 7; ready = 1; }  // within a warp and across: whoever waits must not keep it from running
    while (ready == 0) {}
    y[t] = value;
}

torch::Tensor run(torch::Tensor x, int64_t which) {
    auto y = torch::zeros({256}, x.options());
    auto in = x.data_ptr<float>();
    auto out = y.data_ptr<float>();
    if (which == 0) tree<<<1, 256>>>(in, out);
    if (which == 1) broadcast<256><<<1, 256>>>(in, out);
    if (which == 2) broadcast<32><<<1, 32>>>(in, out);
    if (which == 3) lockstep<<<1, 32>>>(in, out);
    if (which == 4) handshake<<<1, 64>>>(in, out);
    if (which == 5) last_lane<<<1, 32>>>(in, out);
    return y;
}

torch::Tensor multiply(torch::Tensor a, torch::Tensor b, bool first, bool second) {
    auto y = torch::zeros_like(a);
    int n = a.size(0);
    dim3 grid(n / 16, n / 16), block(16, 16);
    auto p = a.data_ptr<float>(), q = b.data_ptr<float>(), z = y.data_ptr<float>();
    if (first && second) product<true, true><<<grid, block>>>(p, q, z, n);
    else if (first) product<true, false><<<grid, block>>>(p, q, z, n);
    else product<false, true><<<grid, block>>>(p, q, z, n);
    return y;
}
"""


@pytest.fixture(scope="module")
def module(toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> EmulatedModule:
    source = ExtensionSource("timed", (), (SOURCE,), ("run", "multiply"), origin="load")
    return EmulatedModule.create(source, toolchain, tmp_path_factory.mktemp("timed"))


@pytest.fixture
def x() -> torch.Tensor:
    return torch.rand(256, generator=torch.Generator().manual_seed(3)) + 1


def test_plain_mode_takes_this_schedule() -> None:
    assert PLAIN_VARIANT.order is Order.TIMED
    assert Variant.from_json({}) == PLAIN_VARIANT


@pytest.mark.parametrize(("variant", "right"), [(PLAIN_VARIANT, True), (ASCENDING, False)])
def test_a_tree_reduction_without_barriers_comes_out_right_in_step(
    module: EmulatedModule, x: torch.Tensor, variant: Variant, right: bool
) -> None:
    module.configure(variant)
    assert torch.allclose(module.run(x, 0)[0], x.sum()) == right


@pytest.mark.parametrize(("variant", "right"), [(PLAIN_VARIANT, False), (ASCENDING, True)])
def test_a_broadcast_without_barrier_reaches_its_own_warp_only(
    module: EmulatedModule, x: torch.Tensor, variant: Variant, right: bool
) -> None:
    module.configure(variant)
    y, expected = module.run(x, 1), x * (x[0] + x[1])
    assert torch.allclose(y[:32], expected[:32])
    assert torch.allclose(y[32:], expected[32:]) == right


def test_a_broadcast_within_one_warp_needs_no_barrier(module: EmulatedModule, x: torch.Tensor) -> None:
    module.configure(PLAIN_VARIANT)
    assert torch.allclose(module.run(x, 2)[:32], (x * (x[0] + x[1]))[:32])


@pytest.mark.parametrize(("first", "second", "right"), [(True, True, True), (False, True, False), (True, False, True)])
def test_a_tile_must_be_waited_for_but_is_hardly_overwritten_too_early(
    module: EmulatedModule, first: bool, second: bool, right: bool
) -> None:
    module.configure(PLAIN_VARIANT)
    a, b = torch.rand(2, 64, 64, generator=torch.Generator().manual_seed(4))
    assert torch.allclose(module.multiply(a, b, first, second), a @ b, rtol=1e-4) == right


def test_code_that_trusts_lockstep_is_right_in_lockstep(module: EmulatedModule, x: torch.Tensor) -> None:
    module.configure(PLAIN_VARIANT)
    assert torch.allclose(module.run(x, 3)[0], x[:32].sum())


def test_a_branch_of_one_lane_is_over_before_the_warp_goes_on(module: EmulatedModule, x: torch.Tensor) -> None:
    module.configure(PLAIN_VARIANT)
    assert torch.equal(module.run(x, 5)[:32], (2 * x[31]).expand(32))


def test_lanes_that_wait_in_a_loop_let_the_others_go_on(module: EmulatedModule, x: torch.Tensor) -> None:
    module.configure(PLAIN_VARIANT)
    assert module.run(x, 4)[:64].eq(7).all()


def test_the_same_call_takes_the_same_course(module: EmulatedModule) -> None:
    a, b = torch.rand(2, 64, 64, generator=torch.Generator().manual_seed(4))
    results = []
    for _ in range(2):
        module.configure(PLAIN_VARIANT)
        results.append(module.multiply(a, b, False, True))
    assert torch.equal(*results)
