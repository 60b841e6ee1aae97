"""RMS norm over the channels: one thread per position walks through them twice.

problem: level1/36
style: naive
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

__global__ void rmsnorm_kernel(const float* x, float* y, int64_t positions, int features, int64_t area, float eps) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= positions) return;
    int64_t base = i / area * features * area + i % area;

    float squares = 0.0f;
    for (int f = 0; f < features; f++) {
        float v = x[base + f * area];
        squares += v * v;
    }
    float rms = sqrtf(squares / features + eps);
    for (int f = 0; f < features; f++) {
        y[base + f * area] = x[base + f * area] / rms;
    }
}

torch::Tensor rmsnorm_cuda(torch::Tensor x, double eps) {
    auto y = torch::empty_like(x);
    if (x.numel() == 0) return y;
    int features = x.size(1);
    int64_t positions = x.numel() / features;
    int64_t area = positions / x.size(0);
    rmsnorm_kernel<<<(positions + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), positions, features,
                                                     area, eps);
    return y;
}
"""

CPP = "torch::Tensor rmsnorm_cuda(torch::Tensor x, double eps);"

extension = load_inline(name="kb36_rmsnorm_naive", cpp_sources=CPP, cuda_sources=CUDA, functions=["rmsnorm_cuda"])


class ModelNew(nn.Module):
    def __init__(self, num_features: int, eps: float = 1e-5):
        super().__init__()
        self.num_features = num_features
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.rmsnorm_cuda(x.contiguous(), self.eps)
