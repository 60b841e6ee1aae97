"""Scan: each block scans one row in chunks (Hillis and Steele) and carries the total along."""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
constexpr int THREADS = 128;

__global__ void cumsum_kernel(const float* x, float* y, int length) {
    __shared__ float buffer[2][THREADS];
    const float* row = x + (size_t)blockIdx.x * length;
    float* out = y + (size_t)blockIdx.x * length;
    const int t = threadIdx.x;
    float carry = 0.0f;
    for (int start = 0; start < length; start += THREADS) {
        int in = 0;
        buffer[0][t] = start + t < length ? row[start + t] : 0.0f;
        __syncthreads();
        for (int offset = 1; offset < THREADS; offset *= 2) {
            buffer[in ^ 1][t] = buffer[in][t] + (t >= offset ? buffer[in][t - offset] : 0.0f);
            in ^= 1;
            __syncthreads();
        }
        if (start + t < length) out[start + t] = carry + buffer[in][t];
        carry += buffer[in][THREADS - 1];
        __syncthreads();
    }
}

torch::Tensor cumsum_cuda(torch::Tensor x) {
    auto y = torch::empty_like(x);
    const int length = x.size(-1);
    cumsum_kernel<<<x.numel() / length, THREADS>>>(x.data_ptr<float>(), y.data_ptr<float>(), length);
    return y;
}
"""

CPP = """
torch::Tensor cumsum_cuda(torch::Tensor x);
"""

extension = load_inline(name="cumsum_extension", cpp_sources=CPP, cuda_sources=CUDA, functions=["cumsum_cuda"])


class ModelNew(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.transpose(self.dim, -1).contiguous()
        return extension.cumsum_cuda(rows).transpose(self.dim, -1).contiguous()
