"""A block per image and group: the mean, then the squared deviations, both as trees.

problem: groupnorm
style: shared-memory reduction
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

__global__ void groupnorm_kernel(const float* x, const float* gamma, const float* beta, float* y, int groups,
                                 int group_channels, int spatial, float eps) {
    extern __shared__ float shared[];
    const int tid = threadIdx.x, threads = blockDim.x;
    const int n = group_channels * spatial;
    const int first_channel = (blockIdx.x % groups) * group_channels;
    const float* in = x + (int64_t)blockIdx.x * n;
    float* out = y + (int64_t)blockIdx.x * n;
    float value = 0.0f;
    for (int i = tid; i < n; i += threads) value += in[i];
    shared[tid] = value;
    __syncthreads();
    for (int half = threads / 2; half > 0; half /= 2) {
        if (tid < half) shared[tid] += shared[tid + half];
        __syncthreads();
    }
    const float mean = shared[0] / n;
    __syncthreads();
    value = 0.0f;
    for (int i = tid; i < n; i += threads) value += (in[i] - mean) * (in[i] - mean);
    shared[tid] = value;
    __syncthreads();
    for (int half = threads / 2; half > 0; half /= 2) {
        if (tid < half) shared[tid] += shared[tid + half];
        __syncthreads();
    }
    const float inverse = rsqrtf(shared[0] / n + eps);
    for (int i = tid; i < n; i += threads) {
        const int channel = first_channel + i / spatial;
        out[i] = (in[i] - mean) * inverse * gamma[channel] + beta[channel];
    }
}

torch::Tensor groupnorm_cuda(torch::Tensor x, torch::Tensor gamma, torch::Tensor beta, int64_t groups, double eps) {
    auto y = torch::empty_like(x);
    const int batch = x.size(0), channels = x.size(1), spatial = x.numel() / (batch * channels), threads = 128;
    groupnorm_kernel<<<batch * groups, threads, threads * sizeof(float)>>>(
        x.data_ptr<float>(), gamma.data_ptr<float>(), beta.data_ptr<float>(), y.data_ptr<float>(), groups,
        channels / groups, spatial, eps);
    return y;
}
"""

CPP = """
torch::Tensor groupnorm_cuda(torch::Tensor x, torch::Tensor gamma, torch::Tensor beta, int64_t groups, double eps);
"""

extension = load_inline(name="groupnorm__two_pass", cpp_sources=CPP, cuda_sources=CUDA, functions=["groupnorm_cuda"])


class ModelNew(nn.Module):
    def __init__(self, num_features: int, num_groups: int):
        super().__init__()
        self.norm = nn.GroupNorm(num_groups=num_groups, num_channels=num_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        norm = self.norm
        return extension.groupnorm_cuda(x.contiguous(), norm.weight, norm.bias, norm.num_groups, norm.eps)
