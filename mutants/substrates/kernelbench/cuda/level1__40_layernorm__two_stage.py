"""Layer norm over millions of elements: moments of chunks, their combination by Chan's formula, then the scaling.

problem: level1/40
style: two-stage
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <c10/cuda/CUDAStream.h>

constexpr int THREADS = 256;
constexpr int PER_THREAD = 16;
constexpr int CHUNK = THREADS * PER_THREAD;

__device__ float sum_block(float value, float* of_warp) {
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) value += __shfl_xor_sync(0xffffffff, value, mask);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    float total = 0.0f;
    for (int w = 0; w < THREADS / 32; ++w) total += of_warp[w];
    __syncthreads();
    return total;
}

// A chunk's elements stay in registers between its mean and its squared deviations.
__global__ void chunk_moments(const float* __restrict__ x, float2* __restrict__ moments, int64_t dim, int chunks) {
    __shared__ float of_warp[THREADS / 32];
    const int64_t row = blockIdx.x / chunks;
    const int64_t begin = int64_t(blockIdx.x % chunks) * CHUNK;
    const int count = int(min(dim - begin, int64_t(CHUNK)));
    const float* in = x + row * dim + begin;

    float v[PER_THREAD], sum = 0.0f;
#pragma unroll
    for (int j = 0; j < PER_THREAD; ++j) {
        const int i = j * THREADS + threadIdx.x;
        v[j] = i < count ? in[i] : 0.0f;
        sum += v[j];
    }
    const float mean = sum_block(sum, of_warp) / count;
    float squares = 0.0f;
#pragma unroll
    for (int j = 0; j < PER_THREAD; ++j)
        if (j * THREADS + threadIdx.x < count) squares += (v[j] - mean) * (v[j] - mean);
    squares = sum_block(squares, of_warp);
    if (threadIdx.x == 0) moments[blockIdx.x] = make_float2(mean, squares);
}

__global__ void row_moments(const float2* __restrict__ moments, float2* __restrict__ result, int64_t dim, int chunks,
                            float epsilon) {
    __shared__ float of_warp[THREADS / 32];
    const float2* in = moments + int64_t(blockIdx.x) * chunks;

    // Means are averaged by their distance from the first one, which keeps large offsets exact.
    const float origin = in[0].x;
    float shift = 0.0f;
    for (int c = threadIdx.x; c < chunks; c += THREADS) {
        const float count = float(min(dim - int64_t(c) * CHUNK, int64_t(CHUNK)));
        shift += (in[c].x - origin) * count;
    }
    const float mean = origin + sum_block(shift, of_warp) / float(dim);

    float squares = 0.0f;
    for (int c = threadIdx.x; c < chunks; c += THREADS) {
        const float count = float(min(dim - int64_t(c) * CHUNK, int64_t(CHUNK)));
        const float distance = in[c].x - mean;
        squares += in[c].y + distance * distance * count;
    }
    squares = sum_block(squares, of_warp);
    if (threadIdx.x == 0) result[blockIdx.x] = make_float2(mean, 1.0f / sqrtf(squares / float(dim) + epsilon));
}

__global__ void scale_rows(const float* __restrict__ x, const float2* __restrict__ row_result,
                           const float* __restrict__ weight, const float* __restrict__ bias, float* __restrict__ y,
                           int64_t dim, int chunks) {
    const int64_t row = blockIdx.x / chunks;
    const float2 r = row_result[row];
    const int64_t begin = int64_t(blockIdx.x % chunks) * CHUNK;
    for (int j = 0; j < PER_THREAD; ++j) {
        const int64_t i = begin + j * THREADS + threadIdx.x;
        if (i < dim) y[row * dim + i] = (x[row * dim + i] - r.x) * r.y * weight[i] + bias[i];
    }
}

torch::Tensor layernorm_cuda(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, double epsilon) {
    auto y = torch::empty_like(x);
    if (x.numel() == 0) return y;
    const int64_t dim = weight.numel(), rows = x.numel() / dim;
    const int chunks = (dim + CHUNK - 1) / CHUNK;
    auto moments = torch::empty({rows * chunks, 2}, x.options());
    auto result = torch::empty({rows, 2}, x.options());
    auto* chunk_result = reinterpret_cast<float2*>(moments.data_ptr<float>());
    auto* row_result = reinterpret_cast<float2*>(result.data_ptr<float>());
    cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
    chunk_moments<<<rows * chunks, THREADS, 0, stream>>>(x.data_ptr<float>(), chunk_result, dim, chunks);
    row_moments<<<rows, THREADS, 0, stream>>>(chunk_result, row_result, dim, chunks, static_cast<float>(epsilon));
    scale_rows<<<rows * chunks, THREADS, 0, stream>>>(x.data_ptr<float>(), row_result, weight.data_ptr<float>(),
                                                      bias.data_ptr<float>(), y.data_ptr<float>(), dim, chunks);
    return y;
}
"""

CPP = "torch::Tensor layernorm_cuda(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, double epsilon);"

extension = load_inline(
    name="kb40_layernorm_two_stage", cpp_sources=CPP, cuda_sources=CUDA, functions=["layernorm_cuda"]
)


class ModelNew(nn.Module):
    def __init__(self, normalized_shape: tuple):
        super().__init__()
        self.ln = nn.LayerNorm(normalized_shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.layernorm_cuda(x.contiguous(), self.ln.weight, self.ln.bias, self.ln.eps)
