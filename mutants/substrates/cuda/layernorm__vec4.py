"""A block per row reads float4; rows that are not made of whole, aligned quads are read one by one.

problem: layernorm
style: vectorised
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <cstdint>

constexpr int THREADS = 128;

__device__ float block_sum(float v) {
    __shared__ float partial[THREADS];
    partial[threadIdx.x] = v;
    __syncthreads();
    for (int s = THREADS / 2; s > 0; s >>= 1) {
        if (threadIdx.x < s) partial[threadIdx.x] += partial[threadIdx.x + s];
        __syncthreads();
    }
    v = partial[0];
    __syncthreads();
    return v;
}

__device__ __forceinline__ float square(float v) { return v * v; }

__global__ void layernorm_quads(const float4* x, const float4* gamma, const float4* beta, float4* y, int quads,
                                float eps) {
    const float4* row = x + (int64_t)blockIdx.x * quads;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < quads; i += THREADS) {
        const float4 v = row[i];
        sum += (v.x + v.y) + (v.z + v.w);
    }
    const float mean = block_sum(sum) / (4 * quads);
    float squares = 0.0f;
    for (int i = threadIdx.x; i < quads; i += THREADS) {
        const float4 v = row[i];
        squares += square(v.x - mean) + square(v.y - mean) + square(v.z - mean) + square(v.w - mean);
    }
    const float scale = 1.0f / sqrtf(block_sum(squares) / (4 * quads) + eps);
    for (int i = threadIdx.x; i < quads; i += THREADS) {
        const float4 v = row[i], g = gamma[i], b = beta[i];
        y[(int64_t)blockIdx.x * quads + i] =
            make_float4((v.x - mean) * scale * g.x + b.x, (v.y - mean) * scale * g.y + b.y,
                        (v.z - mean) * scale * g.z + b.z, (v.w - mean) * scale * g.w + b.w);
    }
}

__global__ void layernorm_scalar(const float* x, const float* gamma, const float* beta, float* y, int dim, float eps) {
    const float* row = x + (int64_t)blockIdx.x * dim;
    float sum = 0.0f, squares = 0.0f;
    for (int i = threadIdx.x; i < dim; i += THREADS) sum += row[i];
    const float mean = block_sum(sum) / dim;
    for (int i = threadIdx.x; i < dim; i += THREADS) squares += square(row[i] - mean);
    const float scale = 1.0f / sqrtf(block_sum(squares) / dim + eps);
    for (int i = threadIdx.x; i < dim; i += THREADS)
        y[(int64_t)blockIdx.x * dim + i] = (row[i] - mean) * scale * gamma[i] + beta[i];
}

static bool aligned(const float* p) { return reinterpret_cast<uintptr_t>(p) % sizeof(float4) == 0; }

torch::Tensor layernorm_cuda(torch::Tensor x, torch::Tensor gamma, torch::Tensor beta, double eps) {
    auto y = torch::empty_like(x);
    const int dim = x.size(-1), rows = x.numel() / dim;
    const float *in = x.data_ptr<float>(), *g = gamma.data_ptr<float>(), *b = beta.data_ptr<float>();
    float* out = y.data_ptr<float>();
    if (dim % 4 == 0 && aligned(in) && aligned(g) && aligned(b) && aligned(out)) {
        layernorm_quads<<<rows, THREADS>>>((const float4*)in, (const float4*)g, (const float4*)b, (float4*)out,
                                           dim / 4, (float)eps);
    } else {
        layernorm_scalar<<<rows, THREADS>>>(in, g, b, out, dim, (float)eps);
    }
    return y;
}
"""

CPP = """
torch::Tensor layernorm_cuda(torch::Tensor x, torch::Tensor gamma, torch::Tensor beta, double eps);
"""

extension = load_inline(name="layernorm__vec4", cpp_sources=CPP, cuda_sources=CUDA, functions=["layernorm_cuda"])


class ModelNew(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.layernorm_cuda(x.contiguous(), self.norm.weight, self.norm.bias, self.norm.eps)
