"""Four elements per thread through float4, and the last few one by one.

problem: relu
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

__global__ void relu_kernel(const float* __restrict__ x, float* __restrict__ y, int64_t n, int64_t quads) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < quads) {
        float4 v = reinterpret_cast<const float4*>(x)[i];
        v.x = fmaxf(v.x, 0.0f);
        v.y = fmaxf(v.y, 0.0f);
        v.z = fmaxf(v.z, 0.0f);
        v.w = fmaxf(v.w, 0.0f);
        reinterpret_cast<float4*>(y)[i] = v;
    }
    const int64_t rest = 4 * quads + i;
    if (rest < n) y[rest] = fmaxf(x[rest], 0.0f);
}

torch::Tensor relu_cuda(torch::Tensor x) {
    auto y = torch::empty_like(x);
    const float* from = x.data_ptr<float>();
    float* to = y.data_ptr<float>();
    const int64_t n = x.numel();
    const bool aligned = reinterpret_cast<uintptr_t>(from) % 16 == 0 && reinterpret_cast<uintptr_t>(to) % 16 == 0;
    const int64_t quads = aligned ? n / 4 : 0;
    const int64_t wanted = std::max(quads, n - 4 * quads);
    relu_kernel<<<(wanted + 255) / 256, 256>>>(from, to, n, quads);
    return y;
}
"""

CPP = """
torch::Tensor relu_cuda(torch::Tensor x);
"""

extension = load_inline(name="relu__vec4", cpp_sources=CPP, cuda_sources=CUDA, functions=["relu_cuda"])


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.relu_cuda(x.contiguous())
