"""Tensor cores in three TF32 products: the weights are the second operand as they lie, column by column.

problem: linear_gelu_scale
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
constexpr int TILE = 16, DEPTH = 8;

template <typename Fragment>
__device__ void split(Fragment& high, Fragment& low) {
    for (int i = 0; i < high.num_elements; ++i) {
        const float value = high.x[i];
        high.x[i] = wmma::__float_to_tf32(value);
        low.x[i] = wmma::__float_to_tf32(value - high.x[i]);
    }
}

__global__ void linear_kernel(const float* __restrict__ x, const float* __restrict__ weight,
                              const float* __restrict__ bias, float* __restrict__ y, int rows, int features,
                              int outputs, float scale) {
    __shared__ __align__(32) float xs[TILE][DEPTH];
    __shared__ __align__(32) float ws[TILE][DEPTH];
    __shared__ __align__(32) float sums[TILE][TILE];
    const int row0 = blockIdx.y * TILE, out0 = blockIdx.x * TILE;
    wmma::fragment<wmma::accumulator, 16, 16, 8, float> total, part;
    wmma::fill_fragment(total, 0.0f);
    for (int k0 = 0; k0 < features; k0 += DEPTH) {
        for (int i = threadIdx.x; i < TILE * DEPTH; i += 32) {
            const int r = i / DEPTH, k = k0 + i % DEPTH;
            xs[r][i % DEPTH] = row0 + r < rows && k < features ? x[(int64_t)(row0 + r) * features + k] : 0.0f;
            ws[r][i % DEPTH] = out0 + r < outputs && k < features ? weight[(int64_t)(out0 + r) * features + k] : 0.0f;
        }
        __syncwarp();
        wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major> a, a_low;
        wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::col_major> b, b_low;
        wmma::load_matrix_sync(a, &xs[0][0], DEPTH);
        wmma::load_matrix_sync(b, &ws[0][0], DEPTH);
        split(a, a_low);
        split(b, b_low);
        wmma::fill_fragment(part, 0.0f);
        wmma::mma_sync(part, a_low, b, part);
        wmma::mma_sync(part, a, b_low, part);
        wmma::mma_sync(part, a, b, part);
        for (int i = 0; i < total.num_elements; ++i) total.x[i] += part.x[i];
        __syncwarp();
    }
    wmma::store_matrix_sync(&sums[0][0], total, TILE, wmma::mem_row_major);
    __syncwarp();
    for (int i = threadIdx.x; i < TILE * TILE; i += 32) {
        const int row = row0 + i / TILE, out = out0 + i % TILE;
        if (row < rows && out < outputs) {
            const float v = sums[i / TILE][i % TILE] + bias[out];
            y[(int64_t)row * outputs + out] = fminf(fmaxf(0.5f * v * erfcf(-0.70710678f * v) * scale, -2.0f), 2.0f);
        }
    }
}

torch::Tensor linear_cuda(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, double scale) {
    const int rows = x.size(0), features = x.size(1), outputs = weight.size(0);
    auto y = torch::empty({rows, outputs}, x.options());
    const dim3 grid((outputs + TILE - 1) / TILE, (rows + TILE - 1) / TILE);
    linear_kernel<<<grid, 32>>>(x.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(),
                                y.data_ptr<float>(), rows, features, outputs, (float)scale);
    return y;
}
"""

CPP = """
torch::Tensor linear_cuda(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, double scale);
"""

extension = load_inline(
    name="linear_gelu_scale__wmma_3xtf32", cpp_sources=CPP, cuda_sources=CUDA, functions=["linear_cuda"]
)


class ModelNew(nn.Module):
    def __init__(self, in_features: int, out_features: int, scaling_factor: float):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.scaling_factor = scaling_factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self.linear.weight.contiguous(), self.linear.bias.contiguous()
        return extension.linear_cuda(x.contiguous(), weight, bias, self.scaling_factor)
