"""Convolution as a product: rows are output channels, columns pixels; taps are gathered into tiles.

problem: conv2d
style: implicit-gemm
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

constexpr int TILE = 16;

__global__ void conv_kernel(const float* __restrict__ x, const float* __restrict__ weight,
                            const float* __restrict__ bias, float* __restrict__ y, int channels, int height,
                            int width, int out_channels, int out_height, int out_width, int size, int padding,
                            int64_t pixels) {
    __shared__ float Ws[TILE][TILE];
    __shared__ float Xs[TILE][TILE];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int o = blockIdx.y * TILE + ty;
    const int64_t pixel = (int64_t)blockIdx.x * TILE + tx;
    const int taps = channels * size * size, area = out_height * out_width;
    const int n = pixel / area, oh = pixel % area / out_width, ow = pixel % out_width;
    float sum = 0.0f;
    for (int start = 0; start < taps; start += TILE) {
        Ws[ty][tx] = o < out_channels && start + tx < taps ? weight[(int64_t)o * taps + start + tx] : 0.0f;
        const int tap = start + ty;
        const int c = tap / (size * size), a = tap / size % size, b = tap % size;
        const int h = oh + a - padding, w = ow + b - padding;
        float value = 0.0f;
        if (pixel < pixels && tap < taps && h >= 0 && h < height && w >= 0 && w < width)
            value = x[(((int64_t)n * channels + c) * height + h) * width + w];
        Xs[ty][tx] = value;
        __syncthreads();
        for (int k = 0; k < TILE; ++k) sum += Ws[ty][k] * Xs[k][tx];
        __syncthreads();
    }
    if (o < out_channels && pixel < pixels) y[((int64_t)n * out_channels + o) * area + pixel % area] = sum + bias[o];
}

torch::Tensor conv2d_cuda(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, int64_t padding) {
    const int batch = x.size(0), channels = x.size(1), height = x.size(2), width = x.size(3);
    const int out_channels = weight.size(0), size = weight.size(2);
    const int out_height = height + 2 * padding - size + 1, out_width = width + 2 * padding - size + 1;
    auto y = torch::empty({batch, out_channels, out_height, out_width}, x.options());
    const int64_t pixels = (int64_t)batch * out_height * out_width;
    const dim3 grid((pixels + TILE - 1) / TILE, (out_channels + TILE - 1) / TILE);
    conv_kernel<<<grid, dim3(TILE, TILE)>>>(x.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(),
                                            y.data_ptr<float>(), channels, height, width, out_channels, out_height,
                                            out_width, size, padding, pixels);
    return y;
}
"""

CPP = """
torch::Tensor conv2d_cuda(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, int64_t padding);
"""

extension = load_inline(name="conv2d__implicit_gemm", cpp_sources=CPP, cuda_sources=CUDA, functions=["conv2d_cuda"])


class ModelNew(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, padding: int):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=padding)
        self.padding = padding

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.conv2d_cuda(x.contiguous(), self.conv.weight, self.conv.bias, self.padding)
