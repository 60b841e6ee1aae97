"""Blocks leave partial sums, read as float4 where possible; one block adds them in a fixed order.

problem: mse_loss
style: vectorised
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <algorithm>
#include <cstdint>

constexpr int THREADS = 128;

__device__ float block_sum(float v) {
    __shared__ float scratch[THREADS];
    scratch[threadIdx.x] = v;
    __syncthreads();
    for (int s = THREADS / 2; s > 0; s >>= 1) {
        if (threadIdx.x < s) scratch[threadIdx.x] += scratch[threadIdx.x + s];
        __syncthreads();
    }
    return scratch[0];
}

__device__ __forceinline__ float squared(float a, float b) { return (a - b) * (a - b); }

__global__ void partial_kernel(const float* __restrict__ p, const float* __restrict__ t, float* __restrict__ partial,
                               int64_t n, int64_t quads) {
    const int64_t first = (int64_t)blockIdx.x * THREADS + threadIdx.x, step = (int64_t)gridDim.x * THREADS;
    const float4* p4 = reinterpret_cast<const float4*>(p);
    const float4* t4 = reinterpret_cast<const float4*>(t);
    float sum = 0.0f;
    for (int64_t i = first; i < quads; i += step) {
        const float4 a = p4[i], b = t4[i];
        sum += squared(a.x, b.x) + squared(a.y, b.y) + squared(a.z, b.z) + squared(a.w, b.w);
    }
    for (int64_t i = 4 * quads + first; i < n; i += step) sum += squared(p[i], t[i]);
    sum = block_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void mean_kernel(const float* partial, float* result, int parts, int64_t n) {
    float sum = 0.0f;
    for (int i = threadIdx.x; i < parts; i += THREADS) sum += partial[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) *result = sum / n;
}

torch::Tensor mse_cuda(torch::Tensor predictions, torch::Tensor targets) {
    const float *p = predictions.data_ptr<float>(), *t = targets.data_ptr<float>();
    const int64_t n = predictions.numel();
    const bool aligned = ((reinterpret_cast<uintptr_t>(p) | reinterpret_cast<uintptr_t>(t)) & 15) == 0;
    const int blocks = (int)std::min<int64_t>(64, (n + 1023) / 1024);
    auto partial = torch::empty({blocks}, predictions.options());
    auto result = torch::empty({}, predictions.options());
    partial_kernel<<<blocks, THREADS>>>(p, t, partial.data_ptr<float>(), n, aligned ? n / 4 : 0);
    mean_kernel<<<1, THREADS>>>(partial.data_ptr<float>(), result.data_ptr<float>(), blocks, n);
    return result;
}
"""

CPP = """
torch::Tensor mse_cuda(torch::Tensor predictions, torch::Tensor targets);
"""

extension = load_inline(name="mse_loss__two_stage", cpp_sources=CPP, cuda_sources=CUDA, functions=["mse_cuda"])


class ModelNew(nn.Module):
    def forward(self, predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return extension.mse_cuda(predictions.contiguous(), targets.contiguous())
