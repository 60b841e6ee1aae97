"""Tiles above the diagonal are only zeroed; the others are multiplied and masked.

problem: tril_matmul
style: tiled
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

constexpr int TILE = 16;

__global__ void tril_kernel(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int n) {
    __shared__ float As[TILE][TILE];
    __shared__ float Bs[TILE][TILE];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int row = blockIdx.y * TILE + ty, col = blockIdx.x * TILE + tx;
    const bool inside = row < n && col < n;
    if (blockIdx.x > blockIdx.y) {
        if (inside) C[(int64_t)row * n + col] = 0.0f;
        return;
    }
    float sum = 0.0f;
    for (int tile = 0; tile * TILE < n; ++tile) {
        const int a = tile * TILE + tx, b = tile * TILE + ty;
        As[ty][tx] = row < n && a < n ? A[(int64_t)row * n + a] : 0.0f;
        Bs[ty][tx] = b < n && col < n ? B[(int64_t)b * n + col] : 0.0f;
        __syncthreads();
        for (int k = 0; k < TILE; ++k) sum += As[ty][k] * Bs[k][tx];
        __syncthreads();
    }
    if (inside) C[(int64_t)row * n + col] = col <= row ? sum : 0.0f;
}

torch::Tensor tril_matmul_cuda(torch::Tensor A, torch::Tensor B) {
    const int n = A.size(0), tiles = (n + TILE - 1) / TILE;
    auto C = torch::empty_like(A);
    tril_kernel<<<dim3(tiles, tiles), dim3(TILE, TILE)>>>(A.data_ptr<float>(), B.data_ptr<float>(),
                                                          C.data_ptr<float>(), n);
    return C;
}
"""

CPP = """
torch::Tensor tril_matmul_cuda(torch::Tensor A, torch::Tensor B);
"""

extension = load_inline(
    name="tril_matmul__tile_skip", cpp_sources=CPP, cuda_sources=CUDA, functions=["tril_matmul_cuda"]
)


class ModelNew(nn.Module):
    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        return extension.tril_matmul_cuda(A.contiguous(), B.contiguous())
