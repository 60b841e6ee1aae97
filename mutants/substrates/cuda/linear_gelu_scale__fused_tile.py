"""A tiled product whose epilogue adds the bias and does GELU, scale and clamp in registers.

problem: linear_gelu_scale
style: tiled, fused
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

constexpr int TILE = 16;

__device__ __forceinline__ float finish(float v, float scale) {
    v = 0.5f * v * (1.0f + erff(v * 0.70710678f)) * scale;
    return fminf(fmaxf(v, -2.0f), 2.0f);
}

__global__ void linear_kernel(const float* __restrict__ x, const float* __restrict__ weight,
                              const float* __restrict__ bias, float* __restrict__ y, int rows, int outs, int ins,
                              float scale) {
    __shared__ float Xs[TILE][TILE];
    __shared__ float Ws[TILE][TILE + 1];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int row = blockIdx.y * TILE + ty, out = blockIdx.x * TILE + tx;
    const int out_loaded = blockIdx.x * TILE + ty;
    float sum = 0.0f;
    for (int k0 = 0; k0 < ins; k0 += TILE) {
        const int k = k0 + tx;
        Xs[ty][tx] = row < rows && k < ins ? x[(int64_t)row * ins + k] : 0.0f;
        Ws[ty][tx] = out_loaded < outs && k < ins ? weight[(int64_t)out_loaded * ins + k] : 0.0f;
        __syncthreads();
        for (int i = 0; i < TILE; ++i) sum += Xs[ty][i] * Ws[tx][i];
        __syncthreads();
    }
    if (row < rows && out < outs) y[(int64_t)row * outs + out] = finish(sum + bias[out], scale);
}

torch::Tensor linear_cuda(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, double scale) {
    const int rows = x.size(0), ins = x.size(1), outs = weight.size(0);
    auto y = torch::empty({rows, outs}, x.options());
    const dim3 block(TILE, TILE), grid((outs + TILE - 1) / TILE, (rows + TILE - 1) / TILE);
    linear_kernel<<<grid, block>>>(x.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(),
                                   y.data_ptr<float>(), rows, outs, ins, (float)scale);
    return y;
}
"""

CPP = """
torch::Tensor linear_cuda(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, double scale);
"""

extension = load_inline(
    name="linear_gelu_scale__fused_tile", cpp_sources=CPP, cuda_sources=CUDA, functions=["linear_cuda"]
)


class ModelNew(nn.Module):
    def __init__(self, in_features: int, out_features: int, scaling_factor: float):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.scaling_factor = scaling_factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.linear_cuda(x.contiguous(), self.linear.weight, self.linear.bias, self.scaling_factor)
