"""A warp per row; every lane keeps a running maximum and sum, shuffles merge them.

problem: softmax
style: warp
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <cfloat>

constexpr int WARPS = 4;

__global__ void softmax_kernel(const float* __restrict__ x, float* __restrict__ y, int64_t rows, int dim) {
    const int lane = threadIdx.x % 32;
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= rows) return;
    const float* in = x + row * dim;
    float* out = y + row * dim;
    float largest = -FLT_MAX, sum = 0.0f;
    for (int i = lane; i < dim; i += 32) {
        const float v = in[i];
        const float next = fmaxf(largest, v);
        sum = sum * expf(largest - next) + expf(v - next);
        largest = next;
    }
    for (int offset = 16; offset > 0; offset /= 2) {
        const float other_largest = __shfl_xor_sync(0xffffffffu, largest, offset);
        const float other_sum = __shfl_xor_sync(0xffffffffu, sum, offset);
        const float next = fmaxf(largest, other_largest);
        sum = sum * expf(largest - next) + other_sum * expf(other_largest - next);
        largest = next;
    }
    const float scale = 1.0f / sum;
    for (int i = lane; i < dim; i += 32) out[i] = expf(in[i] - largest) * scale;
}

torch::Tensor softmax_cuda(torch::Tensor x) {
    auto y = torch::empty_like(x);
    const int dim = x.size(-1);
    const int64_t rows = x.numel() / dim;
    softmax_kernel<<<(rows + WARPS - 1) / WARPS, WARPS * 32>>>(x.data_ptr<float>(), y.data_ptr<float>(), rows, dim);
    return y;
}
"""

CPP = """
torch::Tensor softmax_cuda(torch::Tensor x);
"""

extension = load_inline(name="softmax__online_warp", cpp_sources=CPP, cuda_sources=CUDA, functions=["softmax_cuda"])


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.softmax_cuda(x.contiguous())
