"""Tiles of 16 by 16; the third grid dimension is the batch.

problem: bmm
style: tiled
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

template <int TILE>
__global__ void bmm_kernel(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int M,
                           int N, int K) {
    __shared__ float As[TILE][TILE], Bs[TILE][TILE];
    const int64_t batch = blockIdx.z;
    const float* a = A + batch * M * K;
    const float* b = B + batch * K * N;
    const int row = blockIdx.y * TILE + threadIdx.y;
    const int col = blockIdx.x * TILE + threadIdx.x;
    float value = 0.0f;
    for (int t = 0; t < (K + TILE - 1) / TILE; ++t) {
        const int ka = t * TILE + threadIdx.x;
        const int kb = t * TILE + threadIdx.y;
        As[threadIdx.y][threadIdx.x] = 0.0f;
        Bs[threadIdx.y][threadIdx.x] = 0.0f;
        if (row < M && ka < K) As[threadIdx.y][threadIdx.x] = a[(int64_t)row * K + ka];
        if (kb < K && col < N) Bs[threadIdx.y][threadIdx.x] = b[(int64_t)kb * N + col];
        __syncthreads();
#pragma unroll
        for (int k = 0; k < TILE; ++k) value += As[threadIdx.y][k] * Bs[k][threadIdx.x];
        __syncthreads();
    }
    if (row < M && col < N) C[(batch * M + row) * N + col] = value;
}

torch::Tensor bmm_cuda(torch::Tensor A, torch::Tensor B) {
    constexpr int TILE = 16;
    const int batch = A.size(0), M = A.size(1), K = A.size(2), N = B.size(2);
    auto C = torch::empty({batch, M, N}, A.options());
    const dim3 threads(TILE, TILE);
    const dim3 blocks((N + TILE - 1) / TILE, (M + TILE - 1) / TILE, batch);
    bmm_kernel<TILE><<<blocks, threads>>>(A.data_ptr<float>(), B.data_ptr<float>(), C.data_ptr<float>(), M, N, K);
    return C;
}
"""

CPP = """
torch::Tensor bmm_cuda(torch::Tensor A, torch::Tensor B);
"""

extension = load_inline(name="bmm__tiled16", cpp_sources=CPP, cuda_sources=CUDA, functions=["bmm_cuda"])


class ModelNew(nn.Module):
    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        return extension.bmm_cuda(A.contiguous(), B.contiguous())
