"""A block per row: Hillis and Steele's scan of one chunk after another, with a carry.

problem: cumsum
style: block scan
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

constexpr int THREADS = 128;

__global__ void cumsum_kernel(const float* __restrict__ x, float* __restrict__ y, int length) {
    __shared__ float buffer[2][THREADS];
    const int t = threadIdx.x;
    const float* in = x + (int64_t)blockIdx.x * length;
    float* out = y + (int64_t)blockIdx.x * length;
    float carry = 0.0f;
    for (int start = 0; start < length; start += THREADS) {
        int from = 0;
        buffer[from][t] = start + t < length ? in[start + t] : 0.0f;
        __syncthreads();
        for (int offset = 1; offset < THREADS; offset *= 2) {
            const int to = 1 - from;
            buffer[to][t] = t >= offset ? buffer[from][t] + buffer[from][t - offset] : buffer[from][t];
            from = to;
            __syncthreads();
        }
        if (start + t < length) out[start + t] = carry + buffer[from][t];
        carry += buffer[from][THREADS - 1];
        __syncthreads();
    }
}

torch::Tensor cumsum_cuda(torch::Tensor x) {
    auto y = torch::empty_like(x);
    const int rows = x.size(0), length = x.size(1);
    cumsum_kernel<<<rows, THREADS>>>(x.data_ptr<float>(), y.data_ptr<float>(), length);
    return y;
}
"""

CPP = """
torch::Tensor cumsum_cuda(torch::Tensor x);
"""

extension = load_inline(name="cumsum__hillis_steele", cpp_sources=CPP, cuda_sources=CUDA, functions=["cumsum_cuda"])


class ModelNew(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.cumsum_cuda(x.contiguous())
