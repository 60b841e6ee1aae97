"""Convolution: the filters of one output channel sit in shared memory; one block per channel and image."""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
__global__ void conv_kernel(const float* x, const float* weight, const float* bias, float* y, int in_channels,
                            int height, int width, int out_channels, int out_height, int out_width, int size,
                            int padding) {
    extern __shared__ float filter[];
    int o = blockIdx.x % out_channels, n = blockIdx.x / out_channels;
    int taps = in_channels * size * size;
    for (int i = threadIdx.x; i < taps; i += blockDim.x) filter[i] = weight[o * taps + i];
    __syncthreads();
    for (int p = threadIdx.x; p < out_height * out_width; p += blockDim.x) {
        int oh = p / out_width, ow = p % out_width;
        float sum = bias[o];
        for (int c = 0; c < in_channels; ++c)
            for (int i = 0; i < size; ++i)
                for (int j = 0; j < size; ++j) {
                    int h = oh - padding + i, w = ow - padding + j;
                    if (h >= 0 && h < height && w >= 0 && w < width)
                        sum += x[((n * in_channels + c) * height + h) * width + w] * filter[(c * size + i) * size + j];
                }
        y[((n * out_channels + o) * out_height + oh) * out_width + ow] = sum;
    }
}

torch::Tensor conv_cuda(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, int64_t padding) {
    int n = x.size(0), c = x.size(1), height = x.size(2), width = x.size(3), o = weight.size(0), size = weight.size(2);
    int out_height = height + 2 * padding - size + 1, out_width = width + 2 * padding - size + 1;
    auto y = torch::empty({n, o, out_height, out_width}, x.options());
    conv_kernel<<<n * o, 128, c * size * size * sizeof(float)>>>(x.data_ptr<float>(), weight.data_ptr<float>(),
        bias.data_ptr<float>(), y.data_ptr<float>(), c, height, width, o, out_height, out_width, size, padding);
    return y;
}
"""

CPP = """
torch::Tensor conv_cuda(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, int64_t padding);
"""

extension = load_inline(name="conv2d_extension", cpp_sources=CPP, cuda_sources=CUDA, functions=["conv_cuda"])


class ModelNew(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, padding: int):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=padding)
        self.padding = padding

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.conv_cuda(x.contiguous(), self.conv.weight, self.conv.bias, self.padding)
