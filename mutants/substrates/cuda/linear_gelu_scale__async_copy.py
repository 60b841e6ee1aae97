"""Tiles of inputs and weights by asynchronous copies, GELU, scale and clamp in the registers that hold the sums.

problem: linear_gelu_scale
style: double-buffered
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <cuda_pipeline.h>

constexpr int TILE = 16;

__device__ void copy(float* to, const float* from, bool inside) {
    if (inside)
        __pipeline_memcpy_async(to, from, sizeof(float));
    else
        *to = 0.0f;
}

__global__ void linear_kernel(const float* x, const float* weight, const float* bias, float* y, int rows, int features,
                              int outputs, float scale) {
    __shared__ float xs[2][TILE][TILE];
    __shared__ float ws[2][TILE][TILE + 1];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int row = blockIdx.y * TILE + ty, out = blockIdx.x * TILE + tx, loaded = blockIdx.x * TILE + ty;
    const float* mine = x + (int64_t)row * features;
    const float* theirs = weight + (int64_t)loaded * features;
    const int steps = (features + TILE - 1) / TILE;
    copy(&xs[0][ty][tx], mine + tx, row < rows && tx < features);
    copy(&ws[0][ty][tx], theirs + tx, loaded < outputs && tx < features);
    __pipeline_commit();
    float sum = out < outputs ? bias[out] : 0.0f;
    for (int step = 0; step < steps; ++step) {
        const int stage = step & 1;
        if (step + 1 < steps) {
            const int next = (step + 1) % 2, k = (step + 1) * TILE + tx;
            copy(&xs[next][ty][tx], mine + k, row < rows && k < features);
            copy(&ws[next][ty][tx], theirs + k, loaded < outputs && k < features);
            __pipeline_commit();
            __pipeline_wait_prior(1);
        } else {
            __pipeline_wait_prior(0);
        }
        __syncthreads();
        for (int k = 0; k < TILE; ++k) sum += xs[stage][ty][k] * ws[stage][tx][k];
        __syncthreads();
    }
    if (row >= rows || out >= outputs) return;
    const float gelu = 0.5f * sum * erfcf(-0.70710678f * sum);
    y[(int64_t)row * outputs + out] = fminf(fmaxf(gelu * scale, -2.0f), 2.0f);
}

torch::Tensor linear_cuda(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, double scale) {
    const int rows = x.size(0), features = x.size(1), outputs = weight.size(0);
    auto y = torch::empty({rows, outputs}, x.options());
    const dim3 block(TILE, TILE), grid((outputs + TILE - 1) / TILE, (rows + TILE - 1) / TILE);
    linear_kernel<<<grid, block>>>(x.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(),
                                   y.data_ptr<float>(), rows, features, outputs, (float)scale);
    return y;
}
"""

CPP = """
torch::Tensor linear_cuda(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, double scale);
"""

extension = load_inline(
    name="linear_gelu_scale__async_copy", cpp_sources=CPP, cuda_sources=CUDA, functions=["linear_cuda"]
)


class ModelNew(nn.Module):
    def __init__(self, in_features: int, out_features: int, scaling_factor: float):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.scaling_factor = scaling_factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self.linear.weight.contiguous(), self.linear.bias.contiguous()
        return extension.linear_cuda(x.contiguous(), weight, bias, self.scaling_factor)
