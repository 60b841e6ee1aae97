"""A block per channel walks over images and pixels twice; warps reduce by shuffles.

problem: batchnorm
style: warp
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

constexpr int WARPS = 8;

__device__ float block_sum(float v) {
    __shared__ float partial[WARPS];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (int offset = 16; offset > 0; offset >>= 1) v += __shfl_xor_sync(0xffffffffu, v, offset);
    if (lane == 0) partial[warp] = v;
    __syncthreads();
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) total += partial[w];
    __syncthreads();
    return total;
}

__global__ void batchnorm_kernel(const float* __restrict__ x, const float* __restrict__ gamma,
                                 const float* __restrict__ beta, float* __restrict__ y, int batch, int channels,
                                 int spatial, float eps) {
    const int c = blockIdx.x;
    const int64_t n = (int64_t)batch * spatial;
    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
        sum += x[(i / spatial * channels + c) * spatial + i % spatial];
    }
    const float mean = block_sum(sum) / n;
    float squares = 0.0f;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
        const float d = x[(i / spatial * channels + c) * spatial + i % spatial] - mean;
        squares += d * d;
    }
    const float scale = gamma[c] * rsqrtf(block_sum(squares) / n + eps);
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
        const int64_t at = (i / spatial * channels + c) * spatial + i % spatial;
        y[at] = (x[at] - mean) * scale + beta[c];
    }
}

torch::Tensor batchnorm_cuda(torch::Tensor x, torch::Tensor gamma, torch::Tensor beta, double eps) {
    auto y = torch::empty_like(x);
    const int batch = x.size(0), channels = x.size(1), spatial = x.size(2) * x.size(3);
    batchnorm_kernel<<<channels, WARPS * 32>>>(x.data_ptr<float>(), gamma.data_ptr<float>(), beta.data_ptr<float>(),
                                               y.data_ptr<float>(), batch, channels, spatial, (float)eps);
    return y;
}
"""

CPP = """
torch::Tensor batchnorm_cuda(torch::Tensor x, torch::Tensor gamma, torch::Tensor beta, double eps);
"""

extension = load_inline(
    name="batchnorm__channel_block", cpp_sources=CPP, cuda_sources=CUDA, functions=["batchnorm_cuda"]
)


class ModelNew(nn.Module):
    def __init__(self, num_features: int):
        super().__init__()
        self.norm = nn.BatchNorm2d(num_features=num_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.batchnorm_cuda(x.contiguous(), self.norm.weight, self.norm.bias, self.norm.eps)
