"""A block per row, in shared memory while it is worked on; exponentials by powers of two.

problem: softmax
style: exp2
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <cmath>

constexpr int THREADS = 128;
constexpr float LOG2E = 1.4426950408889634f;

__global__ void softmax_kernel(const float* __restrict__ x, float* __restrict__ y, int dim) {
    extern __shared__ float row[];
    __shared__ float pieces[THREADS];
    const float* in = x + (int64_t)blockIdx.x * dim;
    float largest = -INFINITY;
    for (int i = threadIdx.x; i < dim; i += THREADS) {
        row[i] = in[i];
        largest = fmaxf(largest, row[i]);
    }
    pieces[threadIdx.x] = largest;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) pieces[threadIdx.x] = fmaxf(pieces[threadIdx.x], pieces[threadIdx.x + half]);
        __syncthreads();
    }
    largest = pieces[0];
    __syncthreads();
    float sum = 0.0f;
    for (int i = threadIdx.x; i < dim; i += THREADS) {
        row[i] = exp2f((row[i] - largest) * LOG2E);
        sum += row[i];
    }
    pieces[threadIdx.x] = sum;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) pieces[threadIdx.x] += pieces[threadIdx.x + half];
        __syncthreads();
    }
    const float total = pieces[0];
    for (int i = threadIdx.x; i < dim; i += THREADS) y[(int64_t)blockIdx.x * dim + i] = row[i] / total;
}

torch::Tensor softmax_cuda(torch::Tensor x) {
    auto y = torch::empty_like(x);
    const int dim = x.size(-1);
    const int64_t rows = x.numel() / dim;
    const size_t bytes = dim * sizeof(float);
    softmax_kernel<<<rows, THREADS, bytes>>>(x.data_ptr<float>(), y.data_ptr<float>(), dim);
    return y;
}
"""

CPP = """
torch::Tensor softmax_cuda(torch::Tensor x);
"""

extension = load_inline(name="softmax__exp2_block", cpp_sources=CPP, cuda_sources=CUDA, functions=["softmax_cuda"])


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.softmax_cuda(x.contiguous())
