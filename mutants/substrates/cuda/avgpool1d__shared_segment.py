"""A block stages a segment of the row, zeros for the padding, and every thread averages one window.

problem: avgpool1d
style: tiled
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

constexpr int THREADS = 128;

__global__ void avgpool_kernel(const float* __restrict__ x, float* __restrict__ y, int length, int out_length,
                               int size, int stride, int padding) {
    extern __shared__ float segment[];
    const int first = blockIdx.x * THREADS;
    const int start = first * stride - padding;
    const int needed = (THREADS - 1) * stride + size;
    const float* row = x + (int64_t)blockIdx.y * length;
    for (int i = threadIdx.x; i < needed; i += THREADS) {
        const int at = start + i;
        segment[i] = at >= 0 && at < length ? row[at] : 0.0f;
    }
    __syncthreads();
    const int o = first + threadIdx.x;
    if (o < out_length) {
        float sum = 0.0f;
        for (int k = 0; k < size; ++k) sum += segment[threadIdx.x * stride + k];
        y[(int64_t)blockIdx.y * out_length + o] = sum / size;
    }
}

torch::Tensor avgpool1d_cuda(torch::Tensor x, int64_t size, int64_t stride, int64_t padding) {
    const int rows = x.size(0) * x.size(1), length = x.size(2);
    const int out_length = (length + 2 * padding - size) / stride + 1;
    auto y = torch::empty({x.size(0), x.size(1), out_length}, x.options());
    const dim3 grid((out_length + THREADS - 1) / THREADS, rows);
    const size_t bytes = ((THREADS - 1) * stride + size) * sizeof(float);
    avgpool_kernel<<<grid, THREADS, bytes>>>(x.data_ptr<float>(), y.data_ptr<float>(), length, out_length, size, stride,
                                             padding);
    return y;
}
"""

CPP = """
torch::Tensor avgpool1d_cuda(torch::Tensor x, int64_t size, int64_t stride, int64_t padding);
"""

extension = load_inline(
    name="avgpool1d__shared_segment", cpp_sources=CPP, cuda_sources=CUDA, functions=["avgpool1d_cuda"]
)


class ModelNew(nn.Module):
    def __init__(self, kernel_size: int, stride: int, padding: int):
        super().__init__()
        self.shape = (kernel_size, stride, padding)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.avgpool1d_cuda(x.contiguous(), *self.shape)
