"""Block reduction in two levels: shuffles within a warp, shared memory between warps; mean, then variance."""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
__inline__ __device__ float warp_sum(float v) {
    for (int offset = 16; offset > 0; offset >>= 1) v += __shfl_xor_sync(0xffffffff, v, offset);
    return v;
}

__inline__ __device__ float block_sum(float v) {
    __shared__ float partial[32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    v = warp_sum(v);
    __syncthreads();
    if (lane == 0) partial[warp] = v;
    __syncthreads();
    v = lane < (blockDim.x >> 5) ? partial[lane] : 0.0f;
    return warp_sum(v);
}

template <int THREADS>
__global__ void __launch_bounds__(THREADS)
    layernorm_kernel(const float* __restrict__ x, const float* __restrict__ gamma, const float* __restrict__ beta,
                     float* __restrict__ y, int dim, float eps) {
    const float* row = x + (size_t)blockIdx.x * dim;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < dim; i += THREADS) sum += row[i];
    const float mean = block_sum(sum) / dim;
    float square = 0.0f;
    for (int i = threadIdx.x; i < dim; i += THREADS) {
        const float d = row[i] - mean;
        square += d * d;
    }
    const float scale = rsqrtf(block_sum(square) / dim + eps);
    for (int i = threadIdx.x; i < dim; i += THREADS) {
        y[(size_t)blockIdx.x * dim + i] = (row[i] - mean) * scale * gamma[i] + beta[i];
    }
}

torch::Tensor layernorm_cuda(torch::Tensor x, torch::Tensor gamma, torch::Tensor beta, double eps) {
    auto y = torch::empty_like(x);
    const int dim = x.size(-1);
    layernorm_kernel<128><<<x.numel() / dim, 128>>>(x.data_ptr<float>(), gamma.data_ptr<float>(),
        beta.data_ptr<float>(), y.data_ptr<float>(), dim, (float)eps);
    return y;
}
"""

CPP = """
torch::Tensor layernorm_cuda(torch::Tensor x, torch::Tensor gamma, torch::Tensor beta, double eps);
"""

extension = load_inline(name="layernorm_extension", cpp_sources=CPP, cuda_sources=CUDA, functions=["layernorm_cuda"])


class ModelNew(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.layernorm_cuda(x.contiguous(), self.norm.weight, self.norm.bias, self.norm.eps)
