"""Mean over one dimension: neighbouring threads read neighbouring columns, eight of them share a column.

problem: level1/48
style: coalesced columns
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

#define COLUMNS 32
#define SHARERS 8

__global__ void mean_kernel(const float* __restrict__ x, float* __restrict__ y, int64_t reduce, int64_t inner,
                            int64_t strips) {
    __shared__ float partial[SHARERS][COLUMNS];
    int64_t outer = blockIdx.x / strips;
    int64_t column = blockIdx.x % strips * COLUMNS + threadIdx.x;

    float sum = 0.0f;
    if (column < inner) {
        const float* in = x + outer * reduce * inner + column;
        for (int64_t r = threadIdx.y; r < reduce; r += SHARERS) sum += in[r * inner];
    }
    partial[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    for (int s = SHARERS / 2; s > 0; s >>= 1) {
        if (threadIdx.y < s) partial[threadIdx.y][threadIdx.x] += partial[threadIdx.y + s][threadIdx.x];
        __syncthreads();
    }
    if (threadIdx.y == 0 && column < inner) y[outer * inner + column] = partial[0][threadIdx.x] / reduce;
}

torch::Tensor mean_cuda(torch::Tensor x, int64_t dim) {
    if (dim < 0) dim += x.dim();
    int64_t outer = 1, inner = 1;
    std::vector<int64_t> shape;
    for (int64_t d = 0; d < x.dim(); ++d) {
        if (d < dim) outer *= x.size(d);
        if (d > dim) inner *= x.size(d);
        if (d != dim) shape.push_back(x.size(d));
    }
    auto y = torch::empty(shape, x.options());
    if (y.numel() == 0) return y;
    int64_t strips = (inner + COLUMNS - 1) / COLUMNS;
    mean_kernel<<<outer * strips, dim3(COLUMNS, SHARERS)>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(dim),
                                                            inner, strips);
    return y;
}
"""

CPP = "torch::Tensor mean_cuda(torch::Tensor x, int64_t dim);"

extension = load_inline(name="kb48_mean_columns", cpp_sources=CPP, cuda_sources=CUDA, functions=["mean_cuda"])


class ModelNew(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.mean_cuda(x.contiguous(), self.dim)
