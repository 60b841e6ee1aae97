"""Filters in constant memory; every thread makes one pixel of four output channels, ReLU, then the bias.

problem: conv2d_relu_bias
style: constant memory
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

constexpr int MOST = 12288, CHANNELS = 4;

__constant__ float filters[MOST];

__global__ void conv_kernel(const float* __restrict__ x, const float* __restrict__ conv_bias,
                            const float* __restrict__ bias, float* __restrict__ y, int in_channels, int height,
                            int width, int out_channels, int out_height, int out_width, int size) {
    const int pixel = blockIdx.x * blockDim.x + threadIdx.x;
    const int first = blockIdx.y * CHANNELS, n = blockIdx.z;
    const int area = out_height * out_width;
    if (pixel >= area) return;
    const int oh = pixel / out_width, ow = pixel % out_width;
    const int count = min(CHANNELS, out_channels - first);
    float sum[CHANNELS] = {};
    for (int c = 0; c < in_channels; ++c) {
        for (int a = 0; a < size; ++a) {
            for (int b = 0; b < size; ++b) {
                const float v = x[(((int64_t)n * in_channels + c) * height + oh + a) * width + ow + b];
                for (int j = 0; j < count; ++j)
                    sum[j] += v * filters[(((first + j) * in_channels + c) * size + a) * size + b];
            }
        }
    }
    for (int j = 0; j < count; ++j) {
        const int o = first + j;
        const float v = sum[j] + conv_bias[o];
        y[((int64_t)n * out_channels + o) * area + pixel] = (v > 0.0f ? v : 0.0f) + bias[o];
    }
}

torch::Tensor conv_cuda(torch::Tensor x, torch::Tensor weight, torch::Tensor conv_bias, torch::Tensor bias) {
    TORCH_CHECK(weight.numel() <= MOST, "the filters do not fit in constant memory");
    const int batch = x.size(0), in_channels = x.size(1), height = x.size(2), width = x.size(3);
    const int out_channels = weight.size(0), size = weight.size(2);
    const int out_height = height - size + 1, out_width = width - size + 1;
    cudaMemcpyToSymbol(filters, weight.data_ptr<float>(), weight.numel() * sizeof(float), 0, cudaMemcpyDeviceToDevice);
    auto y = torch::empty({batch, out_channels, out_height, out_width}, x.options());
    const dim3 grid((out_height * out_width + 127) / 128, (out_channels + CHANNELS - 1) / CHANNELS, batch);
    conv_kernel<<<grid, 128>>>(x.data_ptr<float>(), conv_bias.data_ptr<float>(), bias.data_ptr<float>(),
                               y.data_ptr<float>(), in_channels, height, width, out_channels, out_height, out_width,
                               size);
    return y;
}
"""

CPP = """
torch::Tensor conv_cuda(torch::Tensor x, torch::Tensor weight, torch::Tensor conv_bias, torch::Tensor bias);
"""

extension = load_inline(
    name="conv2d_relu_bias__constant_memory", cpp_sources=CPP, cuda_sources=CUDA, functions=["conv_cuda"]
)


class ModelNew(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, bias_shape: tuple[int, ...]):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.bias = nn.Parameter(torch.randn(bias_shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.conv_cuda(x.contiguous(), self.conv.weight, self.conv.bias, self.bias.contiguous())
