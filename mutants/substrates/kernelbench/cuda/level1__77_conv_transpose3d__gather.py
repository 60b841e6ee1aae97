"""Transposed three-dimensional convolution: one thread per output adds up the inputs that reach it.

problem: level1/77
style: naive gather
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

// The input coordinate that reaches `out` through `tap`, or -1.
__device__ __forceinline__ int source(int out, int tap, int stride, int padding, int dilation, int size) {
    int scaled = out + padding - tap * dilation;
    if (scaled < 0 || scaled % stride != 0) return -1;
    scaled /= stride;
    return scaled < size ? scaled : -1;
}

__global__ void conv_transpose3d_kernel(const float* __restrict__ x, const float* __restrict__ weight,
                                        const float* __restrict__ bias, float* __restrict__ y, int64_t total,
                                        int in_channels, int depth, int height, int width, int out_channels,
                                        int out_depth, int out_height, int out_width, int size, int stride, int padding,
                                        int dilation) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= total) return;
    int64_t rest = i;
    int ow = rest % out_width; rest /= out_width;
    int oh = rest % out_height; rest /= out_height;
    int od = rest % out_depth; rest /= out_depth;
    int o = rest % out_channels;
    int64_t image = rest / out_channels;

    int64_t volume = (int64_t)depth * height * width;
    int64_t filter = (int64_t)size * size * size;
    float sum = bias ? bias[o] : 0.0f;
    for (int a = 0; a < size; ++a) {
        int d = source(od, a, stride, padding, dilation, depth);
        if (d < 0) continue;
        for (int b = 0; b < size; ++b) {
            int h = source(oh, b, stride, padding, dilation, height);
            if (h < 0) continue;
            for (int c = 0; c < size; ++c) {
                int w = source(ow, c, stride, padding, dilation, width);
                if (w < 0) continue;
                const float* in = x + image * in_channels * volume + ((int64_t)d * height + h) * width + w;
                const float* tap = weight + o * filter + (a * size + b) * size + c;
                for (int channel = 0; channel < in_channels; ++channel) {
                    sum += *in * *tap;
                    in += volume;
                    tap += out_channels * filter;
                }
            }
        }
    }
    y[i] = sum;
}

torch::Tensor conv_transpose3d_cuda(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, int stride, int padding,
                                    int dilation) {
    int in_channels = x.size(1), depth = x.size(2), height = x.size(3), width = x.size(4);
    int out_channels = weight.size(1), size = weight.size(2);
    int grow = dilation * (size - 1) + 1 - 2 * padding;
    int out_depth = (depth - 1) * stride + grow;
    int out_height = (height - 1) * stride + grow;
    int out_width = (width - 1) * stride + grow;
    auto y = torch::empty({x.size(0), out_channels, out_depth, out_height, out_width}, x.options());
    int64_t total = y.numel();
    if (total == 0) return y;
    const float* start = bias.numel() > 0 ? bias.data_ptr<float>() : nullptr;
    conv_transpose3d_kernel<<<(total + 127) / 128, 128>>>(
        x.data_ptr<float>(), weight.data_ptr<float>(), start, y.data_ptr<float>(), total, in_channels, depth, height,
        width, out_channels, out_depth, out_height, out_width, size, stride, padding, dilation);
    return y;
}
"""

CPP = """
torch::Tensor conv_transpose3d_cuda(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, int stride, int padding,
                                    int dilation);
"""

extension = load_inline(
    name="kb77_conv_transpose3d_gather", cpp_sources=CPP, cuda_sources=CUDA, functions=["conv_transpose3d_cuda"]
)


class ModelNew(nn.Module):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        dilation: int = 1,
        bias: bool = False,
    ):
        super().__init__()
        self.conv_transpose3d = nn.ConvTranspose3d(
            in_channels, out_channels, kernel_size, stride, padding, dilation=dilation, bias=bias
        )
        self.geometry = (stride, padding, dilation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self.conv_transpose3d.weight, self.conv_transpose3d.bias
        if bias is None:
            bias = weight.new_empty(0)
        return extension.conv_transpose3d_cuda(x.contiguous(), weight.contiguous(), bias, *self.geometry)
