"""Channels are staged in two buffers by turns: the block loads a chunk while it squares the one before.

problem: rmsnorm
style: double-buffered
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

constexpr int PIXELS = 32, LANES = 4, CHUNK = 8;

__device__ void load(float (*to)[PIXELS], const float* image, int first, int channels, int64_t plane, int64_t pixel) {
    for (int c = threadIdx.y; c < CHUNK; c += LANES) {
        const bool inside = first + c < channels && pixel < plane;
        to[c][threadIdx.x] = inside ? image[(first + c) * plane + pixel] : 0.0f;
    }
}

__global__ void rmsnorm_kernel(const float* x, float* y, int channels, int64_t plane, float eps) {
    __shared__ float staged[2][CHUNK][PIXELS];
    __shared__ float partial[LANES][PIXELS];
    const int64_t pixel = (int64_t)blockIdx.x * PIXELS + threadIdx.x;
    const float* image = x + blockIdx.y * channels * plane;
    int now = 0;
    load(staged[0], image, 0, channels, plane, pixel);
    __syncthreads();
    float squares = 0.0f;
    for (int first = 0; first < channels; first += CHUNK) {
        if (first + CHUNK < channels) load(staged[now ^ 1], image, first + CHUNK, channels, plane, pixel);
        for (int c = 0; c < CHUNK / LANES; ++c) {
            const float v = staged[now][threadIdx.y * (CHUNK / LANES) + c][threadIdx.x];
            squares = fmaf(v, v, squares);
        }
        __syncthreads();
        now ^= 1;
    }
    partial[threadIdx.y][threadIdx.x] = squares;
    __syncthreads();
    float sum = 0.0f;
    for (int lane = 0; lane < LANES; ++lane) sum += partial[lane][threadIdx.x];
    const float rms = sqrtf(sum / channels + eps);
    if (pixel >= plane) return;
    for (int c = threadIdx.y; c < channels; c += LANES) {
        const int64_t i = (blockIdx.y * (int64_t)channels + c) * plane + pixel;
        y[i] = x[i] / rms;
    }
}

torch::Tensor rmsnorm_cuda(torch::Tensor x, double eps) {
    auto y = torch::empty_like(x);
    const int batch = x.size(0), channels = x.size(1);
    const int64_t plane = x.size(2) * x.size(3);
    const dim3 grid((plane + PIXELS - 1) / PIXELS, batch);
    const dim3 block(PIXELS, LANES);
    rmsnorm_kernel<<<grid, block>>>(x.data_ptr<float>(), y.data_ptr<float>(), channels, plane, (float)eps);
    return y;
}
"""

CPP = """
torch::Tensor rmsnorm_cuda(torch::Tensor x, double eps);
"""

extension = load_inline(name="rmsnorm__double_buffer", cpp_sources=CPP, cuda_sources=CUDA, functions=["rmsnorm_cuda"])


class ModelNew(nn.Module):
    def __init__(self, num_features: int, eps: float = 1e-5):
        super().__init__()
        self.num_features = num_features
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.rmsnorm_cuda(x.contiguous(), self.eps)
