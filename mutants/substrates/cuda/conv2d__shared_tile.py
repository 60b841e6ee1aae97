"""A tile of every input channel with its halo, and that channel's filter, pass through shared memory.

problem: conv2d
style: tiled
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

constexpr int TILE = 16;

__global__ void conv_kernel(const float* __restrict__ x, const float* __restrict__ weight,
                            const float* __restrict__ bias, float* __restrict__ y, int in_channels, int height,
                            int width, int out_channels, int out_height, int out_width, int size, int padding) {
    extern __shared__ float shared[];
    const int side = TILE + size - 1;
    float* tile = shared;
    float* filter = shared + side * side;
    const int n = blockIdx.z / out_channels, o = blockIdx.z % out_channels;
    const int oh = blockIdx.y * TILE + threadIdx.y, ow = blockIdx.x * TILE + threadIdx.x;
    const int tid = threadIdx.y * TILE + threadIdx.x;
    float sum = bias[o];
    for (int c = 0; c < in_channels; ++c) {
        const float* plane = x + ((int64_t)n * in_channels + c) * height * width;
        for (int i = tid; i < side * side; i += TILE * TILE) {
            const int h = (int)blockIdx.y * TILE + i / side - padding;
            const int w = (int)blockIdx.x * TILE + i % side - padding;
            tile[i] = h >= 0 && h < height && w >= 0 && w < width ? plane[h * width + w] : 0.0f;
        }
        for (int i = tid; i < size * size; i += TILE * TILE)
            filter[i] = weight[((int64_t)o * in_channels + c) * size * size + i];
        __syncthreads();
        for (int a = 0; a < size; ++a)
            for (int b = 0; b < size; ++b)
                sum += tile[(threadIdx.y + a) * side + threadIdx.x + b] * filter[a * size + b];
        __syncthreads();
    }
    if (oh < out_height && ow < out_width)
        y[(((int64_t)n * out_channels + o) * out_height + oh) * out_width + ow] = sum;
}

torch::Tensor conv2d_cuda(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, int64_t padding) {
    const int batch = x.size(0), in_channels = x.size(1), height = x.size(2), width = x.size(3);
    const int out_channels = weight.size(0), size = weight.size(2);
    const int out_height = height + 2 * padding - size + 1, out_width = width + 2 * padding - size + 1;
    auto y = torch::empty({batch, out_channels, out_height, out_width}, x.options());
    const dim3 grid((out_width + TILE - 1) / TILE, (out_height + TILE - 1) / TILE, batch * out_channels);
    const int side = TILE + size - 1;
    const size_t bytes = (side * side + size * size) * sizeof(float);
    conv_kernel<<<grid, dim3(TILE, TILE), bytes>>>(x.data_ptr<float>(), weight.data_ptr<float>(),
                                                   bias.data_ptr<float>(), y.data_ptr<float>(), in_channels, height,
                                                   width, out_channels, out_height, out_width, size, padding);
    return y;
}
"""

CPP = """
torch::Tensor conv2d_cuda(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, int64_t padding);
"""

extension = load_inline(name="conv2d__shared_tile", cpp_sources=CPP, cuda_sources=CUDA, functions=["conv2d_cuda"])


class ModelNew(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, padding: int):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=padding)
        self.padding = padding

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.conv2d_cuda(x.contiguous(), self.conv.weight, self.conv.bias, self.padding)
