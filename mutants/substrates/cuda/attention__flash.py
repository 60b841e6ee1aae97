"""One kernel: tiles of keys and values pass through shared memory, a running softmax per query.

problem: attention
style: online softmax, tiled
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <cfloat>

constexpr int QUERIES = 32, KEYS = 16;

__global__ void attention_kernel(const float* __restrict__ Q, const float* __restrict__ K,
                                 const float* __restrict__ V, float* __restrict__ O, int queries, int keys, int dim,
                                 float scale) {
    extern __shared__ float shared[];
    float* k_tile = shared;
    float* v_tile = k_tile + KEYS * dim;
    float* q = v_tile + KEYS * dim + threadIdx.x * (dim + 1);
    float* sum = q + QUERIES * (dim + 1);
    const int i = blockIdx.x * QUERIES + threadIdx.x;
    const int64_t head = blockIdx.y;
    for (int d = 0; d < dim; ++d) {
        q[d] = i < queries ? Q[(head * queries + i) * dim + d] * scale : 0.0f;
        sum[d] = 0.0f;
    }
    float top = -FLT_MAX, total = 0.0f;
    for (int start = 0; start < keys; start += KEYS) {
        const int count = min(KEYS, keys - start);
        for (int e = threadIdx.x; e < count * dim; e += QUERIES) {
            k_tile[e] = K[(head * keys + start) * dim + e];
            v_tile[e] = V[(head * keys + start) * dim + e];
        }
        __syncthreads();
        for (int j = 0; j < count; ++j) {
            float score = 0.0f;
            for (int d = 0; d < dim; ++d) score += q[d] * k_tile[j * dim + d];
            const float next = fmaxf(top, score);
            const float shrink = expf(top - next), weight = expf(score - next);
            total = total * shrink + weight;
            for (int d = 0; d < dim; ++d) sum[d] = sum[d] * shrink + weight * v_tile[j * dim + d];
            top = next;
        }
        __syncthreads();
    }
    if (i < queries) {
        for (int d = 0; d < dim; ++d) O[(head * queries + i) * dim + d] = sum[d] / total;
    }
}

torch::Tensor attention_cuda(torch::Tensor Q, torch::Tensor K, torch::Tensor V) {
    const int heads = Q.size(0) * Q.size(1), queries = Q.size(2), keys = K.size(2), dim = Q.size(3);
    auto O = torch::empty_like(Q);
    const dim3 grid((queries + QUERIES - 1) / QUERIES, heads);
    const size_t bytes = (2 * KEYS * dim + 2 * QUERIES * (dim + 1)) * sizeof(float);
    attention_kernel<<<grid, QUERIES, bytes>>>(Q.data_ptr<float>(), K.data_ptr<float>(), V.data_ptr<float>(),
                                               O.data_ptr<float>(), queries, keys, dim, 1.0f / sqrtf((float)dim));
    return O;
}
"""

CPP = """
torch::Tensor attention_cuda(torch::Tensor Q, torch::Tensor K, torch::Tensor V);
"""

extension = load_inline(name="attention__flash", cpp_sources=CPP, cuda_sources=CUDA, functions=["attention_cuda"])


class ModelNew(nn.Module):
    def forward(self, Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
        return extension.attention_cuda(Q.contiguous(), K.contiguous(), V.contiguous())
