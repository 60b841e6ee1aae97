"""One thread per output in a grid-stride loop, filters from global memory.

problem: conv2d
style: naive
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <algorithm>

struct Shape {
    int batch, in_channels, height, width, out_channels, out_height, out_width, size, padding;
};

__global__ void conv_kernel(const float* __restrict__ x, const float* __restrict__ weight,
                            const float* __restrict__ bias, float* __restrict__ y, Shape s) {
    const int64_t total = (int64_t)s.batch * s.out_channels * s.out_height * s.out_width;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += (int64_t)gridDim.x * blockDim.x) {
        const int ow = i % s.out_width;
        const int oh = i / s.out_width % s.out_height;
        const int o = i / s.out_width / s.out_height % s.out_channels;
        const int n = i / s.out_width / s.out_height / s.out_channels;
        float sum = bias[o];
        for (int c = 0; c < s.in_channels; ++c) {
            const float* plane = x + ((int64_t)n * s.in_channels + c) * s.height * s.width;
            const float* filter = weight + ((int64_t)o * s.in_channels + c) * s.size * s.size;
            for (int a = 0; a < s.size; ++a) {
                for (int b = 0; b < s.size; ++b) {
                    const int h = oh + a - s.padding, w = ow + b - s.padding;
                    if (h >= 0 && h < s.height && w >= 0 && w < s.width)
                        sum = fmaf(plane[h * s.width + w], filter[a * s.size + b], sum);
                }
            }
        }
        y[i] = sum;
    }
}

torch::Tensor conv2d_cuda(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, int64_t padding) {
    Shape s;
    s.batch = x.size(0), s.in_channels = x.size(1), s.height = x.size(2), s.width = x.size(3);
    s.out_channels = weight.size(0), s.size = weight.size(2), s.padding = padding;
    s.out_height = s.height + 2 * s.padding - s.size + 1;
    s.out_width = s.width + 2 * s.padding - s.size + 1;
    auto y = torch::empty({s.batch, s.out_channels, s.out_height, s.out_width}, x.options());
    const int blocks = (int)std::min<int64_t>((y.numel() + 127) / 128, 1024);
    conv_kernel<<<blocks, 128>>>(x.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(),
                                 y.data_ptr<float>(), s);
    return y;
}
"""

CPP = """
torch::Tensor conv2d_cuda(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, int64_t padding);
"""

extension = load_inline(name="conv2d__direct", cpp_sources=CPP, cuda_sources=CUDA, functions=["conv2d_cuda"])


class ModelNew(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, padding: int):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=padding)
        self.padding = padding

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.conv2d_cuda(x.contiguous(), self.conv.weight, self.conv.bias, self.padding)
