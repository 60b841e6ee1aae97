"""A warp per row: Welford's recurrence in every lane, merged by shuffles.

problem: layernorm
style: warp
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

__device__ void merge(float& count, float& mean, float& m2, float count_b, float mean_b, float m2_b) {
    const float total = count + count_b;
    if (total == 0.0f) return;
    const float delta = mean_b - mean;
    mean += delta * (count_b / total);
    m2 += m2_b + delta * delta * (count * count_b / total);
    count = total;
}

__global__ void layernorm_kernel(const float* __restrict__ x, const float* __restrict__ gamma,
                                 const float* __restrict__ beta, float* __restrict__ y, int64_t rows, int dim,
                                 float eps) {
    const int lane = threadIdx.x;
    const int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    const float* in = x + row * dim;
    float count = 0.0f, mean = 0.0f, m2 = 0.0f;
    for (int i = lane; i < dim; i += warpSize) {
        const float v = in[i];
        count += 1.0f;
        const float delta = v - mean;
        mean += delta / count;
        m2 += delta * (v - mean);
    }
    for (int offset = 16; offset > 0; offset >>= 1) {
        const float count_b = __shfl_down_sync(0xffffffffu, count, offset);
        const float mean_b = __shfl_down_sync(0xffffffffu, mean, offset);
        const float m2_b = __shfl_down_sync(0xffffffffu, m2, offset);
        merge(count, mean, m2, count_b, mean_b, m2_b);
    }
    mean = __shfl_sync(0xffffffffu, mean, 0);
    const float variance = __shfl_sync(0xffffffffu, m2, 0) / dim;
    const float scale = rsqrtf(variance + eps);
    for (int i = lane; i < dim; i += warpSize) y[row * dim + i] = (in[i] - mean) * scale * gamma[i] + beta[i];
}

torch::Tensor layernorm_cuda(torch::Tensor x, torch::Tensor gamma, torch::Tensor beta, double eps) {
    auto y = torch::empty_like(x);
    const int dim = x.size(-1), warps = 4;
    const int64_t rows = x.numel() / dim;
    layernorm_kernel<<<(rows + warps - 1) / warps, dim3(32, warps)>>>(
        x.data_ptr<float>(), gamma.data_ptr<float>(), beta.data_ptr<float>(), y.data_ptr<float>(), rows, dim, eps);
    return y;
}
"""

CPP = """
torch::Tensor layernorm_cuda(torch::Tensor x, torch::Tensor gamma, torch::Tensor beta, double eps);
"""

extension = load_inline(
    name="layernorm__welford_warp", cpp_sources=CPP, cuda_sources=CUDA, functions=["layernorm_cuda"]
)


class ModelNew(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.layernorm_cuda(x.contiguous(), self.norm.weight, self.norm.bias, self.norm.eps)
