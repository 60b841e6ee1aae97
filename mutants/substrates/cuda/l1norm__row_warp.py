"""A warp per row: lanes add absolute values, shuffles join the sums, no shared memory.

problem: l1norm
style: warp
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

constexpr int WARPS = 8;

__global__ void l1norm_kernel(const float* __restrict__ x, float* __restrict__ y, int rows, int dim) {
    const int lane = threadIdx.x & 31;
    const int row = blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (row >= rows) return;
    const float* in = x + (int64_t)row * dim;
    float* out = y + (int64_t)row * dim;
    float sum = 0.0f;
    for (int i = lane; i < dim; i += 32) sum += fabsf(in[i]);
    for (int mask = 1; mask < 32; mask <<= 1) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
    const float scale = (float)dim / sum;
    for (int i = lane; i < dim; i += 32) out[i] = in[i] * scale;
}

torch::Tensor l1norm_cuda(torch::Tensor x) {
    auto y = torch::empty_like(x);
    const int rows = x.size(0), dim = x.size(1);
    l1norm_kernel<<<(rows + WARPS - 1) / WARPS, WARPS * 32>>>(x.data_ptr<float>(), y.data_ptr<float>(), rows, dim);
    return y;
}
"""

CPP = """
torch::Tensor l1norm_cuda(torch::Tensor x);
"""

extension = load_inline(name="l1norm__row_warp", cpp_sources=CPP, cuda_sources=CUDA, functions=["l1norm_cuda"])


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.l1norm_cuda(x.contiguous())
