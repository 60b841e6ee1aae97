"""One thread per pixel sums over the channels, so that neighbouring threads read neighbours.

problem: rmsnorm
style: naive
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

__global__ void rmsnorm_kernel(const float* __restrict__ x, float* __restrict__ y, int64_t pixels, int features,
                               int spatial, float eps) {
    const int64_t pixel = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (pixel >= pixels) return;
    const int64_t start = pixel / spatial * features * spatial + pixel % spatial;
    float sum = 0.0f;
    for (int f = 0; f < features; ++f) {
        const float v = x[start + (int64_t)f * spatial];
        sum += v * v;
    }
    const float rms = sqrtf(sum / features + eps);
    for (int f = 0; f < features; ++f) {
        const int64_t at = start + (int64_t)f * spatial;
        y[at] = x[at] / rms;
    }
}

torch::Tensor rmsnorm_cuda(torch::Tensor x, double eps) {
    auto y = torch::empty_like(x);
    const int features = x.size(1);
    const int64_t pixels = x.numel() / features;
    const int spatial = pixels / x.size(0);
    rmsnorm_kernel<<<(pixels + 127) / 128, 128>>>(x.data_ptr<float>(), y.data_ptr<float>(), pixels, features, spatial,
                                                  (float)eps);
    return y;
}
"""

CPP = """
torch::Tensor rmsnorm_cuda(torch::Tensor x, double eps);
"""

extension = load_inline(name="rmsnorm__pixel", cpp_sources=CPP, cuda_sources=CUDA, functions=["rmsnorm_cuda"])


class ModelNew(nn.Module):
    def __init__(self, num_features: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.rmsnorm_cuda(x.contiguous(), self.eps)
