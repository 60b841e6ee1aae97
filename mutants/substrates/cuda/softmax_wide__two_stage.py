"""Two kernels: blocks find maximum and sum of a chunk, then every block merges its row's chunks.

problem: softmax_wide
style: two-stage reduction
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <algorithm>
#include <cfloat>

constexpr int THREADS = 128;

__global__ void chunk_kernel(const float* x, float* largest, float* sums, int64_t dim, int64_t chunk) {
    __shared__ float scratch[THREADS];
    const int t = threadIdx.x;
    const float* row = x + blockIdx.y * dim;
    const int64_t start = blockIdx.x * chunk;
    const int64_t end = start + chunk < dim ? start + chunk : dim;
    float m = -FLT_MAX;
    for (int64_t i = start + t; i < end; i += THREADS) m = fmaxf(m, row[i]);
    scratch[t] = m;
    __syncthreads();
    for (int s = THREADS / 2; s > 0; s /= 2) {
        if (t < s) scratch[t] = fmaxf(scratch[t], scratch[t + s]);
        __syncthreads();
    }
    m = scratch[0];
    __syncthreads();
    float sum = 0.0f;
    for (int64_t i = start + t; i < end; i += THREADS) sum += expf(row[i] - m);
    scratch[t] = sum;
    __syncthreads();
    for (int s = THREADS / 2; s > 0; s /= 2) {
        if (t < s) scratch[t] += scratch[t + s];
        __syncthreads();
    }
    if (t == 0) {
        largest[blockIdx.y * gridDim.x + blockIdx.x] = m;
        sums[blockIdx.y * gridDim.x + blockIdx.x] = scratch[0];
    }
}

__global__ void scale_kernel(const float* x, float* y, const float* largest, const float* sums, int64_t dim,
                             int64_t chunk) {
    const int chunks = gridDim.x;
    const float* m = largest + blockIdx.y * chunks;
    float top = m[0];
    for (int c = 1; c < chunks; ++c) top = fmaxf(top, m[c]);
    float sum = 0.0f;
    for (int c = 0; c < chunks; ++c) sum += sums[blockIdx.y * chunks + c] * expf(m[c] - top);
    const int64_t start = blockIdx.x * chunk;
    const int64_t end = start + chunk < dim ? start + chunk : dim;
    for (int64_t i = start + threadIdx.x; i < end; i += THREADS) {
        y[blockIdx.y * dim + i] = expf(x[blockIdx.y * dim + i] - top) / sum;
    }
}

torch::Tensor softmax_cuda(torch::Tensor x) {
    const int64_t rows = x.size(0), dim = x.size(1);
    const int64_t most = std::min<int64_t>(32, (dim + 255) / 256);
    const int64_t chunk = (dim + most - 1) / most, chunks = (dim + chunk - 1) / chunk;
    auto y = torch::empty_like(x);
    auto largest = torch::empty({rows, chunks}, x.options());
    auto sums = torch::empty({rows, chunks}, x.options());
    const dim3 grid(chunks, rows);
    chunk_kernel<<<grid, THREADS>>>(x.data_ptr<float>(), largest.data_ptr<float>(), sums.data_ptr<float>(), dim, chunk);
    scale_kernel<<<grid, THREADS>>>(x.data_ptr<float>(), y.data_ptr<float>(), largest.data_ptr<float>(),
                                    sums.data_ptr<float>(), dim, chunk);
    return y;
}
"""

CPP = """
torch::Tensor softmax_cuda(torch::Tensor x);
"""

extension = load_inline(name="softmax_wide__two_stage", cpp_sources=CPP, cuda_sources=CUDA, functions=["softmax_cuda"])


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.softmax_cuda(x.contiguous())
