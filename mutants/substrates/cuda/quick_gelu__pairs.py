"""A template over the elements per thread: pairs where the length is even, single elements otherwise.

problem: quick_gelu
style: template
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

constexpr int THREADS = 128;

template <int EACH>
__global__ void quick_gelu_kernel(const float* __restrict__ x, float* __restrict__ y, int64_t n) {
    const int64_t first = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * EACH;
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        const int64_t i = first + e;
        if (i < n) {
            const float v = x[i];
            y[i] = v / (1.0f + expf(-1.702f * v));
        }
    }
}

torch::Tensor quick_gelu_cuda(torch::Tensor x) {
    auto y = torch::empty_like(x);
    const int64_t n = x.numel();
    if (n % 2 == 0) {
        const int64_t blocks = (n / 2 + THREADS - 1) / THREADS;
        quick_gelu_kernel<2><<<blocks, THREADS>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
    } else {
        const int64_t blocks = (n + THREADS - 1) / THREADS;
        quick_gelu_kernel<1><<<blocks, THREADS>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
    }
    return y;
}
"""

CPP = """
torch::Tensor quick_gelu_cuda(torch::Tensor x);
"""

extension = load_inline(name="quick_gelu__pairs", cpp_sources=CPP, cuda_sources=CUDA, functions=["quick_gelu_cuda"])


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.quick_gelu_cuda(x.contiguous())
