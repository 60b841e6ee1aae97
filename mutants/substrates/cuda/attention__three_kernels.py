"""Scores, softmax of every row, weighted values: three kernels and a matrix of scores between them.

problem: attention
style: three kernels
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <cfloat>

__global__ void scores_kernel(const float* Q, const float* K, float* S, int queries, int keys, int dim, float scale) {
    const int j = blockIdx.x * blockDim.x + threadIdx.x;
    const int i = blockIdx.y * blockDim.y + threadIdx.y;
    if (i >= queries || j >= keys) return;
    const float* q = Q + ((int64_t)blockIdx.z * queries + i) * dim;
    const float* k = K + ((int64_t)blockIdx.z * keys + j) * dim;
    float dot = 0.0f;
    for (int d = 0; d < dim; ++d) dot += q[d] * k[d];
    S[((int64_t)blockIdx.z * queries + i) * keys + j] = dot * scale;
}

__global__ void softmax_kernel(float* S, int64_t rows, int keys) {
    const int64_t row = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (row >= rows) return;
    float* s = S + row * keys;
    float top = -FLT_MAX;
    for (int j = lane; j < keys; j += 32) top = fmaxf(top, s[j]);
    for (int offset = 16; offset > 0; offset >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, offset));
    float sum = 0.0f;
    for (int j = lane; j < keys; j += 32) {
        s[j] = expf(s[j] - top);
        sum += s[j];
    }
    for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    for (int j = lane; j < keys; j += 32) s[j] /= sum;
}

__global__ void values_kernel(const float* S, const float* V, float* O, int queries, int keys, int dim) {
    const int d = blockIdx.x * blockDim.x + threadIdx.x;
    const int i = blockIdx.y * blockDim.y + threadIdx.y;
    if (i >= queries || d >= dim) return;
    const float* s = S + ((int64_t)blockIdx.z * queries + i) * keys;
    const float* v = V + (int64_t)blockIdx.z * keys * dim;
    float sum = 0.0f;
    for (int j = 0; j < keys; ++j) sum += s[j] * v[(int64_t)j * dim + d];
    O[((int64_t)blockIdx.z * queries + i) * dim + d] = sum;
}

torch::Tensor attention_cuda(torch::Tensor Q, torch::Tensor K, torch::Tensor V) {
    const int heads = Q.size(0) * Q.size(1), queries = Q.size(2), keys = K.size(2), dim = Q.size(3);
    auto S = torch::empty({heads, queries, keys}, Q.options());
    auto O = torch::empty_like(Q);
    const dim3 block(16, 8);
    const dim3 over_keys((keys + 15) / 16, (queries + 7) / 8, heads);
    const dim3 over_dim((dim + 15) / 16, (queries + 7) / 8, heads);
    const int64_t rows = (int64_t)heads * queries;
    scores_kernel<<<over_keys, block>>>(Q.data_ptr<float>(), K.data_ptr<float>(), S.data_ptr<float>(), queries, keys,
                                        dim, 1.0f / sqrtf((float)dim));
    softmax_kernel<<<(rows + 3) / 4, 128>>>(S.data_ptr<float>(), rows, keys);
    values_kernel<<<over_dim, block>>>(S.data_ptr<float>(), V.data_ptr<float>(), O.data_ptr<float>(), queries, keys,
                                       dim);
    return O;
}
"""

CPP = """
torch::Tensor attention_cuda(torch::Tensor Q, torch::Tensor K, torch::Tensor V);
"""

extension = load_inline(
    name="attention__three_kernels", cpp_sources=CPP, cuda_sources=CUDA, functions=["attention_cuda"]
)


class ModelNew(nn.Module):
    def forward(self, Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
        return extension.attention_cuda(Q.contiguous(), K.contiguous(), V.contiguous())
