"""Tensor cores: a float is three bfloat16 numbers; the six products that matter are accumulated in float.

problem: bmm
style: tensor-core
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <mma.h>

using namespace nvcuda;
constexpr int TILE = 16, PARTS = 3;

__device__ void store_parts(__nv_bfloat16* to, int stride, float v) {
    for (int p = 0; p < PARTS; ++p) {
        const __nv_bfloat16 part = __float2bfloat16(v);
        to[p * stride] = part;
        v -= __bfloat162float(part);
    }
}

__global__ void bmm_kernel(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int M,
                           int N, int K) {
    __shared__ __align__(32) __nv_bfloat16 As[PARTS][TILE * TILE];
    __shared__ __align__(32) __nv_bfloat16 Bs[PARTS][TILE * TILE];
    __shared__ __align__(32) float Cs[TILE * TILE];
    const float* a = A + (int64_t)blockIdx.z * M * K;
    const float* b = B + (int64_t)blockIdx.z * K * N;
    const int row0 = blockIdx.y * TILE, col0 = blockIdx.x * TILE;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> left[PARTS];
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::row_major> right[PARTS];
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    for (int k0 = 0; k0 < K; k0 += TILE) {
        for (int i = threadIdx.x; i < TILE * TILE; i += 32) {
            const int r = i / TILE, c = i % TILE;
            const bool in_a = row0 + r < M && k0 + c < K, in_b = k0 + r < K && col0 + c < N;
            store_parts(&As[0][i], TILE * TILE, in_a ? a[(int64_t)(row0 + r) * K + k0 + c] : 0.0f);
            store_parts(&Bs[0][i], TILE * TILE, in_b ? b[(int64_t)(k0 + r) * N + col0 + c] : 0.0f);
        }
        __syncthreads();
        for (int p = 0; p < PARTS; ++p) {
            wmma::load_matrix_sync(left[p], As[p], TILE);
            wmma::load_matrix_sync(right[p], Bs[p], TILE);
        }
        for (int level = PARTS - 1; level >= 0; --level) {
            for (int p = 0; p <= level; ++p) wmma::mma_sync(sum, left[p], right[level - p], sum);
        }
        __syncthreads();
    }
    wmma::store_matrix_sync(Cs, sum, TILE, wmma::mem_row_major);
    __syncthreads();
    for (int i = threadIdx.x; i < TILE * TILE; i += 32) {
        const int r = row0 + i / TILE, c = col0 + i % TILE;
        if (r < M && c < N) C[((int64_t)blockIdx.z * M + r) * N + c] = Cs[i];
    }
}

torch::Tensor bmm_cuda(torch::Tensor A, torch::Tensor B) {
    const int batch = A.size(0), M = A.size(1), K = A.size(2), N = B.size(2);
    auto C = torch::empty({batch, M, N}, A.options());
    const dim3 grid((N + TILE - 1) / TILE, (M + TILE - 1) / TILE, batch);
    bmm_kernel<<<grid, 32>>>(A.data_ptr<float>(), B.data_ptr<float>(), C.data_ptr<float>(), M, N, K);
    return C;
}
"""

CPP = """
torch::Tensor bmm_cuda(torch::Tensor A, torch::Tensor B);
"""

extension = load_inline(name="bmm__wmma_bf16x3", cpp_sources=CPP, cuda_sources=CUDA, functions=["bmm_cuda"])


class ModelNew(nn.Module):
    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        return extension.bmm_cuda(A.contiguous(), B.contiguous())
