"""Cooperative groups: a tile of sixteen threads normalises one position over its channels."""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;

__global__ void rmsnorm_kernel(const float* x, float* y, int positions, int features, int inner, float eps) {
    auto tile = cg::tiled_partition<16>(cg::this_thread_block());
    int position = (blockIdx.x * blockDim.x + threadIdx.x) / 16;
    if (position >= positions) return;
    const size_t base = (size_t)(position / inner) * features * inner + position % inner;
    float sum = 0.0f;
    for (int c = tile.thread_rank(); c < features; c += tile.size()) {
        const float v = x[base + (size_t)c * inner];
        sum += v * v;
    }
    sum = cg::reduce(tile, sum, cg::plus<float>());
    const float root = sqrtf(sum / features + eps);
    for (int c = tile.thread_rank(); c < features; c += tile.size()) {
        y[base + (size_t)c * inner] = x[base + (size_t)c * inner] / root;
    }
}

torch::Tensor rmsnorm_cuda(torch::Tensor x, double eps) {
    auto y = torch::empty_like(x);
    const int features = x.size(1), inner = x.numel() / (x.size(0) * features), positions = x.size(0) * inner;
    rmsnorm_kernel<<<(positions * 16 + 127) / 128, 128>>>(x.data_ptr<float>(), y.data_ptr<float>(), positions, features,
        inner, (float)eps);
    return y;
}
"""

CPP = """
torch::Tensor rmsnorm_cuda(torch::Tensor x, double eps);
"""

extension = load_inline(name="rmsnorm_extension", cpp_sources=CPP, cuda_sources=CUDA, functions=["rmsnorm_cuda"])


class ModelNew(nn.Module):
    def __init__(self, num_features: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.rmsnorm_cuda(x.contiguous(), self.eps)
