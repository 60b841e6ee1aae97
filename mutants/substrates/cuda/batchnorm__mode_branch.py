"""A block per channel; one kernel for training and for evaluation, which takes the running statistics.

problem: batchnorm
style: mode-branch
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

constexpr int THREADS = 128;

__device__ float block_sum(float v, float* pieces) {
    pieces[threadIdx.x] = v;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) pieces[threadIdx.x] += pieces[threadIdx.x + half];
        __syncthreads();
    }
    const float total = pieces[0];
    __syncthreads();
    return total;
}

__global__ void batchnorm_kernel(const float* __restrict__ x, const float* __restrict__ weight,
                                 const float* __restrict__ bias, const float* __restrict__ running_mean,
                                 const float* __restrict__ running_var, float* __restrict__ y, int batch, int channels,
                                 int spatial, float eps, bool training) {
    __shared__ float pieces[THREADS];
    const int c = blockIdx.x;
    const int64_t plane = (int64_t)channels * spatial;
    const float* in = x + (int64_t)c * spatial;
    float* out = y + (int64_t)c * spatial;
    float mean = running_mean[c], variance = running_var[c];
    if (training) {
        const float count = (float)batch * spatial;
        float sum = 0.0f;
        for (int b = 0; b < batch; ++b) {
            for (int i = threadIdx.x; i < spatial; i += THREADS) sum += in[b * plane + i];
        }
        mean = block_sum(sum, pieces) / count;
        float squares = 0.0f;
        for (int b = 0; b < batch; ++b) {
            for (int i = threadIdx.x; i < spatial; i += THREADS) {
                const float d = in[b * plane + i] - mean;
                squares += d * d;
            }
        }
        variance = block_sum(squares, pieces) / count;
    }
    const float scale = weight[c] * rsqrtf(variance + eps), shift = bias[c];
    for (int b = 0; b < batch; ++b) {
        for (int i = threadIdx.x; i < spatial; i += THREADS) {
            out[b * plane + i] = (in[b * plane + i] - mean) * scale + shift;
        }
    }
}

torch::Tensor batchnorm_cuda(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, torch::Tensor running_mean,
                             torch::Tensor running_var, double eps, bool training) {
    auto y = torch::empty_like(x);
    const int batch = x.size(0), channels = x.size(1), spatial = x.size(2) * x.size(3);
    batchnorm_kernel<<<channels, THREADS>>>(x.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(),
                                            running_mean.data_ptr<float>(), running_var.data_ptr<float>(),
                                            y.data_ptr<float>(), batch, channels, spatial, (float)eps, training);
    return y;
}
"""

CPP = """
torch::Tensor batchnorm_cuda(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, torch::Tensor running_mean,
                             torch::Tensor running_var, double eps, bool training);
"""

extension = load_inline(name="batchnorm__mode_branch", cpp_sources=CPP, cuda_sources=CUDA, functions=["batchnorm_cuda"])


class ModelNew(nn.Module):
    def __init__(self, num_features: int):
        super().__init__()
        self.norm = nn.BatchNorm2d(num_features=num_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        norm = self.norm
        statistics = (norm.running_mean, norm.running_var)
        return extension.batchnorm_cuda(x.contiguous(), norm.weight, norm.bias, *statistics, norm.eps, self.training)
