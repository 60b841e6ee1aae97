"""Scans within warps by shuffles, then over the warps' totals; the mask selects on load.

problem: masked_cumsum
style: warp
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

constexpr int WARPS = 4, THREADS = 32 * WARPS;

__device__ __forceinline__ float warp_scan(float v, int lane) {
#pragma unroll
    for (int offset = 1; offset < 32; offset <<= 1) {
        const float below = __shfl_up_sync(0xffffffffu, v, offset);
        if (lane >= offset) v += below;
    }
    return v;
}

__global__ void masked_cumsum_kernel(const float* __restrict__ x, const bool* __restrict__ mask,
                                     float* __restrict__ y, int length) {
    __shared__ float totals[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t row = (int64_t)blockIdx.x * length;
    float carry = 0.0f;
    for (int start = 0; start < length; start += THREADS) {
        const int i = start + threadIdx.x;
        const float v = i < length && mask[row + i] ? x[row + i] : 0.0f;
        const float scanned = warp_scan(v, lane);
        if (lane == 31) totals[warp] = scanned;
        __syncthreads();
        float before = carry, all = 0.0f;
        for (int w = 0; w < WARPS; ++w) {
            if (w < warp) before += totals[w];
            all += totals[w];
        }
        if (i < length) y[row + i] = before + scanned;
        carry += all;
        __syncthreads();
    }
}

torch::Tensor masked_cumsum_cuda(torch::Tensor x, torch::Tensor mask) {
    auto y = torch::empty_like(x);
    const int rows = x.size(0), length = x.size(1);
    masked_cumsum_kernel<<<rows, THREADS>>>(x.data_ptr<float>(), mask.data_ptr<bool>(), y.data_ptr<float>(), length);
    return y;
}
"""

CPP = """
torch::Tensor masked_cumsum_cuda(torch::Tensor x, torch::Tensor mask);
"""

extension = load_inline(
    name="masked_cumsum__warp_scan", cpp_sources=CPP, cuda_sources=CUDA, functions=["masked_cumsum_cuda"]
)


class ModelNew(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return extension.masked_cumsum_cuda(x.contiguous(), mask.contiguous())
