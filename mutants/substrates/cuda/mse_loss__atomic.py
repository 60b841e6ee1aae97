"""Warps reduce by shuffles, blocks in shared memory, and one atomic per block adds to the mean.

problem: mse_loss
style: atomics
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <algorithm>

constexpr int THREADS = 256;

__global__ void mse_kernel(const float* __restrict__ p, const float* __restrict__ t, float* __restrict__ result,
                           int64_t n) {
    __shared__ float warps[THREADS / 32];
    float sum = 0.0f;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        const float d = p[i] - t[i];
        sum += d * d;
    }
    for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, offset);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < THREADS / 32 ? warps[threadIdx.x] : 0.0f;
        for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, offset);
        if (threadIdx.x == 0) atomicAdd(result, sum / n);
    }
}

torch::Tensor mse_cuda(torch::Tensor predictions, torch::Tensor targets) {
    auto result = torch::zeros({}, predictions.options());
    const int64_t n = predictions.numel();
    const int blocks = (int)std::min<int64_t>((n + THREADS - 1) / THREADS, 48);
    mse_kernel<<<blocks, THREADS>>>(predictions.data_ptr<float>(), targets.data_ptr<float>(),
                                    result.data_ptr<float>(), n);
    return result;
}
"""

CPP = """
torch::Tensor mse_cuda(torch::Tensor predictions, torch::Tensor targets);
"""

extension = load_inline(name="mse_loss__atomic", cpp_sources=CPP, cuda_sources=CUDA, functions=["mse_cuda"])


class ModelNew(nn.Module):
    def forward(self, predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return extension.mse_cuda(predictions.contiguous(), targets.contiguous())
