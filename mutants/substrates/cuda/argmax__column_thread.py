"""One thread per output walks down its column; a strict comparison keeps the first of equals.

problem: argmax
style: naive
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

__global__ void argmax_kernel(const float* __restrict__ x, int64_t* __restrict__ y, int64_t outputs, int length,
                              int64_t inner) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= outputs) return;
    const float* column = x + i / inner * length * inner + i % inner;
    float best = column[0];
    int64_t where = 0;
    for (int k = 1; k < length; ++k) {
        const float v = column[k * inner];
        if (v > best) {
            best = v;
            where = k;
        }
    }
    y[i] = where;
}

torch::Tensor argmax_cuda(torch::Tensor x) {
    const int64_t outer = x.size(0), length = x.size(1), inner = x.size(2);
    auto y = torch::empty({outer, inner}, x.options().dtype(torch::kLong));
    const int64_t outputs = outer * inner;
    argmax_kernel<<<(outputs + 127) / 128, 128>>>(x.data_ptr<float>(), y.data_ptr<int64_t>(), outputs, length, inner);
    return y;
}
"""

CPP = """
torch::Tensor argmax_cuda(torch::Tensor x);
"""

extension = load_inline(name="argmax__column_thread", cpp_sources=CPP, cuda_sources=CUDA, functions=["argmax_cuda"])


class ModelNew(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.argmax_cuda(x.contiguous())
