"""Tensor cores: every operand is split in two TF32 numbers, three products give float accuracy.

Tensor cores cut off what does not fit into their accumulator, so sums over K are kept outside of them (Ootomo and
Yokota, arXiv 2203.03341).

problem: matmul
style: tensor-core
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <mma.h>

using namespace nvcuda;
constexpr int BLOCK = 32, DEPTH = 16;

using FragmentA = wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major>;
using FragmentB = wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::row_major>;

template <typename Fragment>
__device__ void split(Fragment& high, Fragment& low) {
    for (int i = 0; i < high.num_elements; ++i) {
        const float value = high.x[i];
        high.x[i] = wmma::__float_to_tf32(value);
        low.x[i] = wmma::__float_to_tf32(value - high.x[i]);
    }
}

__global__ void matmul_kernel(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int M,
                              int N, int K) {
    __shared__ __align__(32) float As[BLOCK][DEPTH];
    __shared__ __align__(32) float Bs[DEPTH][BLOCK];
    __shared__ __align__(32) float Cs[BLOCK][BLOCK];
    const int warp = threadIdx.x / 32, wy = warp / 2 * 16, wx = warp % 2 * 16;
    const int row0 = blockIdx.y * BLOCK, col0 = blockIdx.x * BLOCK;
    wmma::fragment<wmma::accumulator, 16, 16, 8, float> sum, part;
    wmma::fill_fragment(sum, 0.0f);
    for (int k0 = 0; k0 < K; k0 += DEPTH) {
        for (int i = threadIdx.x; i < BLOCK * DEPTH; i += blockDim.x) {
            const int r = i / DEPTH, k = i % DEPTH;
            As[r][k] = (row0 + r < M && k0 + k < K) ? A[(int64_t)(row0 + r) * K + k0 + k] : 0.0f;
        }
        for (int i = threadIdx.x; i < DEPTH * BLOCK; i += blockDim.x) {
            const int k = i / BLOCK, c = i % BLOCK;
            Bs[k][c] = (k0 + k < K && col0 + c < N) ? B[(int64_t)(k0 + k) * N + col0 + c] : 0.0f;
        }
        __syncthreads();
        for (int k = 0; k < DEPTH; k += 8) {
            FragmentA a, a_low;
            FragmentB b, b_low;
            wmma::load_matrix_sync(a, &As[wy][k], DEPTH);
            wmma::load_matrix_sync(b, &Bs[k][wx], BLOCK);
            split(a, a_low);
            split(b, b_low);
            wmma::fill_fragment(part, 0.0f);
            wmma::mma_sync(part, a_low, b, part);
            wmma::mma_sync(part, a, b_low, part);
            wmma::mma_sync(part, a, b, part);
            for (int i = 0; i < sum.num_elements; ++i) sum.x[i] += part.x[i];
        }
        __syncthreads();
    }
    wmma::store_matrix_sync(&Cs[wy][wx], sum, BLOCK, wmma::mem_row_major);
    __syncthreads();
    for (int i = threadIdx.x; i < BLOCK * BLOCK; i += blockDim.x) {
        const int r = row0 + i / BLOCK, c = col0 + i % BLOCK;
        if (r < M && c < N) C[(int64_t)r * N + c] = Cs[i / BLOCK][i % BLOCK];
    }
}

torch::Tensor matmul_cuda(torch::Tensor A, torch::Tensor B) {
    const int M = A.size(0), K = A.size(1), N = B.size(1);
    auto C = torch::empty({M, N}, A.options());
    const dim3 grid((N + BLOCK - 1) / BLOCK, (M + BLOCK - 1) / BLOCK);
    matmul_kernel<<<grid, 128>>>(A.data_ptr<float>(), B.data_ptr<float>(), C.data_ptr<float>(), M, N, K);
    return C;
}
"""

CPP = """
torch::Tensor matmul_cuda(torch::Tensor A, torch::Tensor B);
"""

extension = load_inline(name="matmul__wmma_3xtf32", cpp_sources=CPP, cuda_sources=CUDA, functions=["matmul_cuda"])


class ModelNew(nn.Module):
    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        return extension.matmul_cuda(A.contiguous(), B.contiguous())
