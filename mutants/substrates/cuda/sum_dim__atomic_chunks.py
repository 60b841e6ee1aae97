"""Every block sums 32 rows of its columns and adds the part to a zeroed output.

problem: sum_dim
style: atomics
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

constexpr int CHUNK = 32;

__global__ void sum_kernel(const float* __restrict__ x, float* __restrict__ y, int length, int inner) {
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= inner) return;
    const int first = blockIdx.y * CHUNK;
    const int last = min(first + CHUNK, length);
    const float* slab = x + (int64_t)blockIdx.z * length * inner;
    float sum = 0.0f;
    for (int k = first; k < last; ++k) sum += slab[(int64_t)k * inner + column];
    atomicAdd(y + (int64_t)blockIdx.z * inner + column, sum);
}

torch::Tensor sum_cuda(torch::Tensor x) {
    const int outer = x.size(0), length = x.size(1), inner = x.size(2);
    auto y = torch::zeros({outer, 1, inner}, x.options());
    const dim3 grid((inner + 63) / 64, (length + CHUNK - 1) / CHUNK, outer);
    sum_kernel<<<grid, 64>>>(x.data_ptr<float>(), y.data_ptr<float>(), length, inner);
    return y;
}
"""

CPP = """
torch::Tensor sum_cuda(torch::Tensor x);
"""

extension = load_inline(name="sum_dim__atomic_chunks", cpp_sources=CPP, cuda_sources=CUDA, functions=["sum_cuda"])


class ModelNew(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.sum_cuda(x.contiguous())
