"""Poisoned memory that a kernel copies past, but never reads, is reported by no collective and no copy."""

import pytest
import torch
from kernelward.reward.cuda.emulator import PLAIN_VARIANT, RACE_VARIANT, STRICT_VARIANTS, EmulatedModule, Variant
from kernelward.reward.cuda.emulator_build import Toolchain
from kernelward.reward.cuda.frontend import ExtensionSource

VARIANTS = (PLAIN_VARIANT, *STRICT_VARIANTS, RACE_VARIANT)

SOURCE = """
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <mma.h>
#include <cub/cub.cuh>
#include <cuda_pipeline.h>
using namespace nvcuda;

// Two warps, each with a tile of its own in rows of 24 of which 8 are padding that nobody writes.
__global__ void tiles(const float* a, const float* b, float* y) {
    __shared__ __align__(16) __half p[2][16 * 24], q[2][16 * 24];
    __shared__ __align__(16) float r[2][16 * 20];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int i = lane; i < 256; i += 32) {
        p[warp][i / 16 * 24 + i % 16] = __float2half(a[warp * 256 + i]);
        q[warp][i / 16 * 24 + i % 16] = __float2half(b[warp * 256 + i]);
    }
    __syncwarp();
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> right;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum, unused;
    wmma::fill_fragment(sum, 0.0f);
    wmma::load_matrix_sync(left, p[warp], 24);
    wmma::load_matrix_sync(right, q[warp], 24);
    wmma::mma_sync(sum, left, right, sum);
    wmma::store_matrix_sync(r[warp], sum, 20, wmma::mem_row_major);
    __syncwarp();
    for (int i = lane; i < 256; i += 32) y[warp * 256 + i] = r[warp][i / 16 * 20 + i % 16];
}

// 50 of 64 threads have a value; the others hand in what shared memory held.
__global__ void collectives(const float* x, float* y, int n) {
    typedef cub::BlockReduce<float, 64> Reduce;
    typedef cub::BlockScan<float, 64> Scan;
    typedef cub::WarpReduce<float> Warp;
    __shared__ union { Reduce::TempStorage reduce; Scan::TempStorage scan; } block;
    __shared__ Warp::TempStorage warps[2];
    __shared__ float never[64];
    int t = threadIdx.x;
    float mine = t < n ? x[t] : never[t];
    float total = Reduce(block.reduce).Sum(mine, n);  // poison in all threads but the first
    if (t == 0) y[64] = total;
    __syncthreads();
    float before;
    Scan(block.scan).ExclusiveSum(t < n ? mine : 0.0f, before);
    if (t < n) y[t] = before;
    float part = Warp(warps[t / 32]).Sum(mine, t < 32 ? 32 : n - 32);
    if (t % 32 == 0) y[65 + t / 32] = part;
}

// Two stages in flight. Each copies 48 of 64 places, the last one 40 and zeros after them; the rest stays unread.
__global__ void stages(const float* x, float* y, int rounds) {
    __shared__ __align__(16) float s[2][64];
    int t = threadIdx.x;
    auto fetch = [&](int k) {
        bool last = k == rounds - 1 && t >= 10;
        if (t < 12) __pipeline_memcpy_async(&s[k % 2][t * 4], x + k * 48 + t * 4, 16, last ? 16 : 0);
        __pipeline_commit();
    };
    fetch(0);
    for (int k = 0; k < rounds; k++) {
        if (k + 1 < rounds) { fetch(k + 1); __pipeline_wait_prior(1); }
        else __pipeline_wait_prior(0);
        __syncthreads();
        if (t < 48) y[k * 48 + t] = 2 * s[k % 2][t];
        __syncthreads();
    }
}

torch::Tensor f_tiles(torch::Tensor a, torch::Tensor b) {
    auto y = torch::empty_like(a);
    tiles<<<1, 64>>>(a.data_ptr<float>(), b.data_ptr<float>(), y.data_ptr<float>());
    return y;
}
torch::Tensor f_collectives(torch::Tensor x) {
    auto y = torch::zeros({67}, x.options());
    collectives<<<1, 64>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
    return y;
}
torch::Tensor f_stages(torch::Tensor x, int64_t rounds) {
    auto y = torch::empty_like(x);
    stages<<<1, 64>>>(x.data_ptr<float>(), y.data_ptr<float>(), rounds);
    return y;
}
"""


@pytest.fixture(scope="module")
def module(toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> EmulatedModule:
    source = ExtensionSource("copies", (), (SOURCE,), ("f_tiles", "f_collectives", "f_stages"), origin="load")
    return EmulatedModule.create(source, toolchain, tmp_path_factory.mktemp("copies"))


@pytest.fixture(params=VARIANTS, ids=lambda v: f"{v.order.name}-{v.poison}{'-races' if v.races else ''}")
def configured(module: EmulatedModule, request: pytest.FixtureRequest) -> EmulatedModule:
    variant: Variant = request.param
    module.configure(variant)
    return module


def rand(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(8)) + 0.5


def test_fragments_take_no_padding_along(configured: EmulatedModule) -> None:
    a, b = rand(2, 2, 16, 16)
    y = configured.f_tiles(a, b)
    assert torch.allclose(y, a.half().float() @ b.half().float(), rtol=1e-5)
    assert configured.report()["findings"] == []


def test_collectives_leave_out_the_threads_without_a_value(configured: EmulatedModule) -> None:
    x = rand(50)
    y = configured.f_collectives(x)
    assert torch.allclose(y[:50], x.cumsum(0) - x, atol=1e-5)
    assert torch.equal(y[50:64], torch.zeros(14))
    assert torch.allclose(y[64:], torch.stack([x.sum(), x[:32].sum(), x[32:].sum()]))
    assert configured.report()["findings"] == []


def test_stages_in_flight_are_poison_only_to_those_that_read_them(configured: EmulatedModule) -> None:
    x = rand(3 * 48)
    expected = 2 * x
    expected[-8:] = 0
    assert torch.equal(configured.f_stages(x, 3), expected)
    assert configured.report()["findings"] == []


def test_a_stage_that_is_not_waited_for_is_read_as_poison(
    toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory
) -> None:
    hasty = SOURCE.replace("__pipeline_wait_prior(1);", "__pipeline_wait_prior(2);")
    source = ExtensionSource("hasty", (), (hasty,), ("f_stages",), origin="load")
    module = EmulatedModule.create(source, toolchain, tmp_path_factory.mktemp("hasty"))
    module.configure(STRICT_VARIANTS[1])
    assert module.f_stages(rand(3 * 48), 3)[:48].isnan().all()
