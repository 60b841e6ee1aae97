"""A thread per output element walks over its own group of channels.

problem: conv2d_grouped
style: naive
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

__global__ void conv_kernel(const float* __restrict__ x, const float* __restrict__ weight,
                            const float* __restrict__ bias, float* __restrict__ y, int batch, int channels, int height,
                            int width, int filters, int size, int out_height, int out_width, int stride, int padding,
                            int dilation, int groups) {
    const int64_t index = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= (int64_t)batch * filters * out_height * out_width) return;
    const int column = index % out_width;
    const int row = index / out_width % out_height;
    const int filter = index / ((int64_t)out_width * out_height) % filters;
    const int n = index / ((int64_t)out_width * out_height * filters);
    const int per_group = channels / groups;
    const int group = filter / (filters / groups);
    float sum = bias[filter];
    for (int c = 0; c < per_group; ++c) {
        const float* plane = x + ((int64_t)n * channels + group * per_group + c) * height * width;
        const float* taps = weight + ((int64_t)filter * per_group + c) * size * size;
        for (int r = 0; r < size; ++r) {
            const int h = row * stride - padding + r * dilation;
            if (h < 0 || h >= height) continue;
            for (int s = 0; s < size; ++s) {
                const int w = column * stride - padding + s * dilation;
                if (w >= 0 && w < width) sum += plane[h * width + w] * taps[r * size + s];
            }
        }
    }
    y[index] = sum;
}

torch::Tensor conv_cuda(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, int64_t stride, int64_t padding,
                        int64_t dilation, int64_t groups) {
    const int batch = x.size(0), channels = x.size(1), height = x.size(2), width = x.size(3);
    const int filters = weight.size(0), size = weight.size(2);
    const int reach = dilation * (size - 1) + 1;
    const int out_height = (height + 2 * padding - reach) / stride + 1;
    const int out_width = (width + 2 * padding - reach) / stride + 1;
    auto y = torch::empty({batch, filters, out_height, out_width}, x.options());
    const int64_t outputs = y.numel();
    const int threads = 128;
    conv_kernel<<<(outputs + threads - 1) / threads, threads>>>(
        x.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(), y.data_ptr<float>(), batch, channels,
        height, width, filters, size, out_height, out_width, stride, padding, dilation, groups);
    return y;
}
"""

CPP = """
torch::Tensor conv_cuda(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, int64_t stride, int64_t padding,
                        int64_t dilation, int64_t groups);
"""

extension = load_inline(name="conv2d_grouped__direct", cpp_sources=CPP, cuda_sources=CUDA, functions=["conv_cuda"])


class ModelNew(nn.Module):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int,
        padding: int,
        dilation: int,
        groups: int,
    ):
        super().__init__()
        self.conv = nn.Conv2d(
            in_channels, out_channels, kernel_size, stride=stride, padding=padding, dilation=dilation, groups=groups
        )
        self.window = (stride, padding, dilation, groups)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.conv_cuda(x.contiguous(), self.conv.weight, self.conv.bias, *self.window)
