"""A block per 16 outputs: sixteen threads share a column, a tree of (value, index) pairs decides.

problem: argmax
style: shared-memory reduction
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <climits>
#include <cmath>

constexpr int COLUMNS = 16, PARTS = 16;

__global__ void argmax_kernel(const float* __restrict__ x, int64_t* __restrict__ y, int length, int inner) {
    __shared__ float values[PARTS][COLUMNS];
    __shared__ int indices[PARTS][COLUMNS];
    const int c = threadIdx.x, part = threadIdx.y;
    const int column = blockIdx.x * COLUMNS + c;
    const float* slab = x + (int64_t)blockIdx.y * length * inner;
    float best = -INFINITY;
    int where = INT_MAX;
    if (column < inner) {
        for (int k = part; k < length; k += PARTS) {
            const float v = slab[(int64_t)k * inner + column];
            if (v > best || where == INT_MAX) {
                best = v;
                where = k;
            }
        }
    }
    values[part][c] = best;
    indices[part][c] = where;
    __syncthreads();
    for (int s = PARTS / 2; s > 0; s /= 2) {
        if (part < s) {
            const float v = values[part + s][c];
            const int k = indices[part + s][c];
            if (v > values[part][c] || (v == values[part][c] && k < indices[part][c])) {
                values[part][c] = v;
                indices[part][c] = k;
            }
        }
        __syncthreads();
    }
    if (part == 0 && column < inner) y[(int64_t)blockIdx.y * inner + column] = indices[0][c];
}

torch::Tensor argmax_cuda(torch::Tensor x) {
    const int outer = x.size(0), length = x.size(1), inner = x.size(2);
    auto y = torch::empty({outer, inner}, x.options().dtype(torch::kInt64));
    const dim3 grid((inner + COLUMNS - 1) / COLUMNS, outer), block(COLUMNS, PARTS);
    argmax_kernel<<<grid, block>>>(x.data_ptr<float>(), y.data_ptr<int64_t>(), length, inner);
    return y;
}
"""

CPP = """
torch::Tensor argmax_cuda(torch::Tensor x);
"""

extension = load_inline(name="argmax__index_tree", cpp_sources=CPP, cuda_sources=CUDA, functions=["argmax_cuda"])


class ModelNew(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.argmax_cuda(x.contiguous())
