"""float4 in a grid-stride loop; erfc keeps the digits of large negative inputs.

problem: gelu
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

__device__ __forceinline__ float gelu(float v) {
    return 0.5f * v * erfcf(-v * 0.70710678118654752f);
}

__global__ void gelu_quads(const float4* __restrict__ x, float4* __restrict__ y, int64_t quads) {
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < quads; i += (int64_t)gridDim.x * blockDim.x) {
        const float4 v = x[i];
        y[i] = make_float4(gelu(v.x), gelu(v.y), gelu(v.z), gelu(v.w));
    }
}

__global__ void gelu_rest(const float* __restrict__ x, float* __restrict__ y, int64_t start, int64_t n) {
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = start + (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        y[i] = gelu(x[i]);
    }
}

torch::Tensor gelu_cuda(torch::Tensor x) {
    auto y = torch::empty_like(x);
    const float* from = x.data_ptr<float>();
    float* to = y.data_ptr<float>();
    const int64_t n = x.numel();
    int64_t quads = n / 4;
    if ((reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to)) & 15) quads = 0;
    if (quads > 0) {
        const int blocks = (int)std::min<int64_t>((quads + 127) / 128, 64);
        gelu_quads<<<blocks, 128>>>(reinterpret_cast<const float4*>(from), reinterpret_cast<float4*>(to), quads);
    }
    if (4 * quads < n) {
        const int blocks = (int)std::min<int64_t>((n - 4 * quads + 127) / 128, 64);
        gelu_rest<<<blocks, 128>>>(from, to, 4 * quads, n);
    }
    return y;
}
"""

CPP = """
torch::Tensor gelu_cuda(torch::Tensor x);
"""

extension = load_inline(name="gelu__erfc_vec4", cpp_sources=CPP, cuda_sources=CUDA, functions=["gelu_cuda"])


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.gelu_cuda(x.contiguous())
