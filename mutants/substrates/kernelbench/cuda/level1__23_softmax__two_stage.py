"""Softmax with several blocks to a row: partial maxima and sums, their combination, then the division.

problem: level1/23
style: two-stage
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <math.h>

#define THREADS 256
#define CHUNK 8192

template <bool MAXIMUM>
__device__ float reduce_block(float value, float* scratch) {
    scratch[threadIdx.x] = value;
    __syncthreads();
    for (int s = THREADS / 2; s > 0; s /= 2) {
        if (threadIdx.x < s) {
            float other = scratch[threadIdx.x + s];
            scratch[threadIdx.x] = MAXIMUM ? fmaxf(scratch[threadIdx.x], other) : scratch[threadIdx.x] + other;
        }
        __syncthreads();
    }
    value = scratch[0];
    __syncthreads();
    return value;
}

__global__ void partial_kernel(const float* x, float2* partial, int64_t dim, int chunks) {
    __shared__ float scratch[THREADS];
    int64_t row = blockIdx.x / chunks;
    int64_t begin = (int64_t)(blockIdx.x % chunks) * CHUNK;
    int64_t end = min(begin + (int64_t)CHUNK, dim);
    const float* in = x + row * dim;

    float largest = -INFINITY;
    for (int64_t i = begin + threadIdx.x; i < end; i += THREADS) largest = fmaxf(largest, in[i]);
    largest = reduce_block<true>(largest, scratch);

    float sum = 0.0f;
    // A chunk of minus infinities has no terms; their differences would be NaN.
    if (largest != -INFINITY)
        for (int64_t i = begin + threadIdx.x; i < end; i += THREADS) sum += expf(in[i] - largest);
    sum = reduce_block<false>(sum, scratch);
    if (threadIdx.x == 0) partial[blockIdx.x] = make_float2(largest, sum);
}

__global__ void combine_kernel(const float2* partial, float2* total, int chunks) {
    __shared__ float scratch[THREADS];
    const float2* in = partial + (int64_t)blockIdx.x * chunks;
    float largest = -INFINITY;
    for (int i = threadIdx.x; i < chunks; i += THREADS) largest = fmaxf(largest, in[i].x);
    largest = reduce_block<true>(largest, scratch);
    float sum = 0.0f;
    for (int i = threadIdx.x; i < chunks; i += THREADS)
        if (in[i].x != -INFINITY) sum += in[i].y * expf(in[i].x - largest);
    sum = reduce_block<false>(sum, scratch);
    if (threadIdx.x == 0) total[blockIdx.x] = make_float2(largest, sum);
}

__global__ void divide_kernel(const float* x, const float2* total, float* y, int64_t dim, int chunks) {
    int64_t row = blockIdx.x / chunks;
    int64_t begin = (int64_t)(blockIdx.x % chunks) * CHUNK;
    int64_t end = min(begin + (int64_t)CHUNK, dim);
    float2 t = total[row];
    for (int64_t i = begin + threadIdx.x; i < end; i += THREADS) y[row * dim + i] = expf(x[row * dim + i] - t.x) / t.y;
}

torch::Tensor softmax_cuda(torch::Tensor x) {
    auto y = torch::empty_like(x);
    if (x.numel() == 0) return y;
    int64_t rows = x.size(0), dim = x.size(1);
    int chunks = (dim + CHUNK - 1) / CHUNK;
    auto partial = torch::empty({rows, chunks, 2}, x.options());
    auto total = torch::empty({rows, 2}, x.options());
    float2* partials = reinterpret_cast<float2*>(partial.data_ptr<float>());
    float2* totals = reinterpret_cast<float2*>(total.data_ptr<float>());
    partial_kernel<<<rows * chunks, THREADS>>>(x.data_ptr<float>(), partials, dim, chunks);
    combine_kernel<<<rows, THREADS>>>(partials, totals, chunks);
    divide_kernel<<<rows * chunks, THREADS>>>(x.data_ptr<float>(), totals, y.data_ptr<float>(), dim, chunks);
    return y;
}
"""

CPP = "torch::Tensor softmax_cuda(torch::Tensor x);"

extension = load_inline(name="kb23_softmax_two_stage", cpp_sources=CPP, cuda_sources=CUDA, functions=["softmax_cuda"])


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.softmax_cuda(x.contiguous())
