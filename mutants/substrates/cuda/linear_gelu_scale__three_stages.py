"""A pipeline of three stages: two asynchronous copies are under way while a tile is multiplied.

problem: linear_gelu_scale
style: pipeline
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <cuda_pipeline.h>

constexpr int TILE = 16, STAGES = 3;

__device__ __forceinline__ float finish(float v, float scale) {
    v = 0.5f * v * (1.0f + erff(v * 0.70710678f)) * scale;
    return fminf(fmaxf(v, -2.0f), 2.0f);
}

__device__ __forceinline__ void copy_or_zero(float* to, const float* from, bool valid) {
    if (valid) {
        __pipeline_memcpy_async(to, from, sizeof(float));
    } else {
        *to = 0.0f;
    }
}

__global__ void linear_kernel(const float* x, const float* weight, const float* bias, float* y, int rows, int outs,
                              int ins, float scale) {
    __shared__ float Xs[STAGES][TILE][TILE];
    __shared__ float Ws[STAGES][TILE][TILE];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int row = blockIdx.y * TILE + ty, first_out = blockIdx.x * TILE;
    const int steps = (ins + TILE - 1) / TILE;
    for (int s = 0; s < STAGES - 1; ++s) {
        const int k = s * TILE + tx;
        copy_or_zero(&Xs[s][ty][tx], x + (int64_t)row * ins + k, row < rows && k < ins);
        copy_or_zero(&Ws[s][ty][tx], weight + (int64_t)(first_out + ty) * ins + k, first_out + ty < outs && k < ins);
        __pipeline_commit();
    }
    float sum = 0.0f;
    for (int step = 0; step < steps; ++step) {
        __pipeline_wait_prior(STAGES - 2);
        __syncthreads();
        const int fill = (step + STAGES - 1) % STAGES, k = (step + STAGES - 1) * TILE + tx;
        copy_or_zero(&Xs[fill][ty][tx], x + (int64_t)row * ins + k, row < rows && k < ins);
        copy_or_zero(&Ws[fill][ty][tx], weight + (int64_t)(first_out + ty) * ins + k, first_out + ty < outs && k < ins);
        __pipeline_commit();
        const int now = step % STAGES;
        for (int i = 0; i < TILE; ++i) sum = fmaf(Xs[now][ty][i], Ws[now][tx][i], sum);
    }
    __pipeline_wait_prior(0);
    const int out = first_out + tx;
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
    name="linear_gelu_scale__three_stages", cpp_sources=CPP, cuda_sources=CUDA, functions=["linear_cuda"]
)


class ModelNew(nn.Module):
    def __init__(self, in_features: int, out_features: int, scaling_factor: float):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.scaling_factor = scaling_factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.linear_cuda(x.contiguous(), self.linear.weight, self.linear.bias, self.scaling_factor)
