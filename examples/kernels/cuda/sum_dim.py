"""Warp reduction: one warp sums one output element with shuffles, no shared memory."""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
__global__ void sum_kernel(const float* x, float* y, int outer, int length, int inner) {
    int warp = (blockIdx.x * blockDim.x + threadIdx.x) / warpSize;
    int lane = threadIdx.x % warpSize;
    if (warp >= outer * inner) return;
    const float* base = x + (size_t)(warp / inner) * length * inner + warp % inner;
    float sum = 0.0f;
    for (int i = lane; i < length; i += warpSize) sum += base[(size_t)i * inner];
    for (int offset = warpSize / 2; offset > 0; offset /= 2) {
        sum += __shfl_down_sync(0xffffffff, sum, offset);
    }
    if (lane == 0) y[warp] = sum;
}

torch::Tensor sum_cuda(torch::Tensor x, int64_t dim) {
    if (dim < 0) dim += x.dim();
    std::vector<int64_t> sizes = x.sizes().vec();
    int outer = 1, inner = 1;
    for (int i = 0; i < dim; ++i) outer *= sizes[i];
    for (int i = dim + 1; i < x.dim(); ++i) inner *= sizes[i];
    const int length = sizes[dim];
    sizes[dim] = 1;
    auto y = torch::empty(sizes, x.options());
    const int threads = 128, warps = threads / 32;
    sum_kernel<<<(outer * inner + warps - 1) / warps, threads>>>(
        x.data_ptr<float>(), y.data_ptr<float>(), outer, length, inner);
    return y;
}
"""

CPP = """
torch::Tensor sum_cuda(torch::Tensor x, int64_t dim);
"""

extension = load_inline(name="sum_dim_extension", cpp_sources=CPP, cuda_sources=CUDA, functions=["sum_cuda"])


class ModelNew(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.sum_cuda(x.contiguous(), self.dim)
