"""RMS norm over the channels: eight threads share a position, their sums meet in shared memory.

problem: level1/36
style: cooperative
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <c10/cuda/CUDAStream.h>

constexpr int COLUMNS = 32;
constexpr int SHARERS = 8;

__global__ void rmsnorm_kernel(const float* __restrict__ x, float* __restrict__ y, int features, int64_t area,
                               int64_t strips, float eps) {
    __shared__ float sums[SHARERS][COLUMNS];
    const int64_t image = blockIdx.x / strips;
    const int64_t position = blockIdx.x % strips * COLUMNS + threadIdx.x;
    const bool inside = position < area;
    const float* in = x + image * features * area + position;
    float* out = y + image * features * area + position;

    float squares = 0.0f;
    if (inside)
        for (int f = threadIdx.y; f < features; f += SHARERS) {
            const float v = in[f * area];
            squares = fmaf(v, v, squares);
        }
    sums[threadIdx.y][threadIdx.x] = squares;
    __syncthreads();

    // All eight add the same numbers in the same order, so nobody has to wait for a result again.
    float total = 0.0f;
#pragma unroll
    for (int s = 0; s < SHARERS; ++s) total += sums[s][threadIdx.x];
    const float factor = 1.0f / sqrtf(total / features + eps);
    if (inside)
        for (int f = threadIdx.y; f < features; f += SHARERS) out[f * area] = in[f * area] * factor;
}

torch::Tensor rmsnorm_cuda(torch::Tensor x, double eps) {
    auto y = torch::empty_like(x);
    if (x.numel() == 0) return y;
    const int64_t images = x.size(0);
    const int features = x.size(1);
    const int64_t area = x.numel() / (images * features);
    const int64_t strips = (area + COLUMNS - 1) / COLUMNS;
    rmsnorm_kernel<<<images * strips, dim3(COLUMNS, SHARERS), 0, c10::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), y.data_ptr<float>(), features, area, strips, static_cast<float>(eps));
    return y;
}
"""

CPP = "torch::Tensor rmsnorm_cuda(torch::Tensor x, double eps);"

extension = load_inline(name="kb36_rmsnorm_cooperative", cpp_sources=CPP, cuda_sources=CUDA, functions=["rmsnorm_cuda"])


class ModelNew(nn.Module):
    def __init__(self, num_features: int, eps: float = 1e-5):
        super().__init__()
        self.num_features = num_features
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.rmsnorm_cuda(x.contiguous(), self.eps)
