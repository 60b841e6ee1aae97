"""GELU: a grid-stride loop over vectors of four, then the elements that are left.

problem: level1/26
style: vectorised
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <algorithm>

__device__ __forceinline__ float gelu(float v) {
    return 0.5f * v * (1.0f + erff(v * 0.70710678118654752f));
}

__global__ void gelu_kernel(const float* __restrict__ x, float* __restrict__ y, size_t n, size_t vectors) {
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    const size_t first = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    const float4* x4 = reinterpret_cast<const float4*>(x);
    float4* y4 = reinterpret_cast<float4*>(y);
    for (size_t i = first; i < vectors; i += stride) {
        const float4 v = __ldg(&x4[i]);
        y4[i] = make_float4(gelu(v.x), gelu(v.y), gelu(v.z), gelu(v.w));
    }
    for (size_t i = vectors * 4 + first; i < n; i += stride) y[i] = gelu(x[i]);
}

torch::Tensor gelu_cuda(torch::Tensor x) {
    auto y = torch::empty_like(x);
    const size_t n = x.numel();
    if (n == 0) return y;
    const float* in = x.data_ptr<float>();
    float* out = y.data_ptr<float>();
    const bool aligned = (reinterpret_cast<uintptr_t>(in) | reinterpret_cast<uintptr_t>(out)) % 16 == 0;
    const size_t vectors = aligned ? n / 4 : 0;
    const int threads = 256;
    const size_t blocks = std::min<size_t>((n + threads * 4 - 1) / (threads * 4), 132 * 32);
    gelu_kernel<<<blocks, threads>>>(in, out, n, vectors);
    return y;
}
"""

CPP = "torch::Tensor gelu_cuda(torch::Tensor x);"

extension = load_inline(name="kb26_gelu_vectorised", cpp_sources=CPP, cuda_sources=CUDA, functions=["gelu_cuda"])


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.gelu_cuda(x.contiguous())
