"""Blocks of 32 columns by 8 rows: threads stride down the rows, shared memory joins the eight.

problem: min_dim
style: shared-memory reduction
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <cmath>

constexpr int WIDTH = 32, HEIGHT = 8;

__global__ void min_kernel(const float* __restrict__ x, float* __restrict__ y, int length, int inner) {
    __shared__ float lowest[HEIGHT][WIDTH];
    const int column = blockIdx.x * WIDTH + threadIdx.x;
    float low = INFINITY;
    if (column < inner) {
        const float* top = x + (int64_t)blockIdx.y * length * inner + column;
        for (int k = threadIdx.y; k < length; k += HEIGHT) low = fminf(low, top[(int64_t)k * inner]);
    }
    lowest[threadIdx.y][threadIdx.x] = low;
    __syncthreads();
    if (threadIdx.y == 0 && column < inner) {
        for (int r = 1; r < HEIGHT; ++r) low = fminf(low, lowest[r][threadIdx.x]);
        y[(int64_t)blockIdx.y * inner + column] = low;
    }
}

torch::Tensor min_cuda(torch::Tensor x) {
    const int outer = x.size(0), length = x.size(1), inner = x.size(2);
    auto y = torch::empty({outer, inner}, x.options());
    min_kernel<<<dim3((inner + WIDTH - 1) / WIDTH, outer), dim3(WIDTH, HEIGHT)>>>(x.data_ptr<float>(),
                                                                                  y.data_ptr<float>(), length, inner);
    return y;
}
"""

CPP = """
torch::Tensor min_cuda(torch::Tensor x);
"""

extension = load_inline(name="min_dim__row_lanes", cpp_sources=CPP, cuda_sources=CUDA, functions=["min_cuda"])


class ModelNew(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.min_cuda(x.contiguous())
