"""Transposed convolution in gather form: each thread keeps sixteen output channels of one position in registers.

problem: level1/57
style: register-blocked gather
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <optional>

#define THREADS 128
#define OUTPUTS 16
#define CHANNELS 32

// weight: [in_channels, out_channels / groups, size, size]
__global__ void __launch_bounds__(THREADS) conv_transpose_kernel(
    const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
    float* __restrict__ y, int64_t positions, int in_channels, int height, int width, int out_channels, int out_height,
    int out_width, int size, int stride, int padding, int groups) {
    __shared__ __align__(16) float filter[CHANNELS][OUTPUTS];
    const int group_in = in_channels / groups, group_out = out_channels / groups;
    const int group = blockIdx.z, first_output = blockIdx.y * OUTPUTS;
    const int64_t position = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const bool active = position < positions;
    const int64_t area = (int64_t)height * width;
    const int ow = position % out_width, oh = position / out_width % out_height;
    const int64_t image = position / out_width / out_height;
    const float* in = x + (image * in_channels + group * group_in) * area;

    float acc[OUTPUTS];
    for (int o = 0; o < OUTPUTS; ++o)
        acc[o] = bias != nullptr && first_output + o < group_out ? bias[group * group_out + first_output + o] : 0.0f;

    for (int tap = 0; tap < size * size; ++tap) {
        // The input that reaches this output through this tap, if there is one.
        const int th = oh + padding - tap / size, tw = ow + padding - tap % size;
        const int h = th / stride, w = tw / stride;
        const bool between = th % stride != 0 || tw % stride != 0;
        const bool reaches = active && !between && th >= 0 && tw >= 0 && h < height && w < width;
        for (int c0 = 0; c0 < group_in; c0 += CHANNELS) {
            const int channels = min(CHANNELS, group_in - c0);
            __syncthreads();
            for (int i = threadIdx.x; i < channels * OUTPUTS; i += THREADS) {
                const int c = i / OUTPUTS, o = i % OUTPUTS;
                filter[c][o] = first_output + o < group_out
                    ? weight[((int64_t)(group * group_in + c0 + c) * group_out + first_output + o) * size * size + tap]
                    : 0.0f;
            }
            __syncthreads();
            if (reaches)
                for (int c = 0; c < channels; ++c) {
                    const float value = in[(c0 + c) * area + (int64_t)h * width + w];
                    #pragma unroll
                    for (int o = 0; o < OUTPUTS; ++o) acc[o] += value * filter[c][o];
                }
        }
    }

    if (!active) return;
    const int64_t out_area = (int64_t)out_height * out_width;
    for (int o = 0; o < OUTPUTS; ++o)
        if (first_output + o < group_out)
            y[(image * out_channels + group * group_out + first_output + o) * out_area + oh * out_width + ow] = acc[o];
}

torch::Tensor conv_transpose_cuda(torch::Tensor x, torch::Tensor weight, std::optional<torch::Tensor> bias,
                                  int64_t stride, int64_t padding, int64_t output_padding, int64_t groups) {
    const int batch = x.size(0), in_channels = x.size(1), height = x.size(2), width = x.size(3);
    const int group_out = weight.size(1), size = weight.size(2);
    const int out_height = (height - 1) * stride - 2 * padding + size + output_padding;
    const int out_width = (width - 1) * stride - 2 * padding + size + output_padding;
    auto y = torch::empty({batch, group_out * groups, out_height, out_width}, x.options());
    if (y.numel() == 0) return y;
    const int64_t positions = (int64_t)batch * out_height * out_width;
    const dim3 grid((positions + THREADS - 1) / THREADS, (group_out + OUTPUTS - 1) / OUTPUTS, groups);
    conv_transpose_kernel<<<grid, THREADS>>>(
        x.data_ptr<float>(), weight.data_ptr<float>(), bias.has_value() ? bias->data_ptr<float>() : nullptr,
        y.data_ptr<float>(), positions, in_channels, height, width, group_out * (int)groups, out_height, out_width,
        size, stride, padding, groups);
    return y;
}
"""

CPP = """
torch::Tensor conv_transpose_cuda(torch::Tensor x, torch::Tensor weight, std::optional<torch::Tensor> bias,
                                  int64_t stride, int64_t padding, int64_t output_padding, int64_t groups);
"""

extension = load_inline(
    name="kb57_conv_transpose2d_channel_blocked",
    cpp_sources=CPP,
    cuda_sources=CUDA,
    functions=["conv_transpose_cuda"],
)


class ModelNew(nn.Module):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        output_padding: int = 0,
        groups: int = 1,
        bias: bool = False,
    ):
        super().__init__()
        self.conv_transpose2d = nn.ConvTranspose2d(
            in_channels, out_channels, kernel_size, stride, padding, output_padding, groups=groups, bias=bias
        )
        self.geometry = (stride, padding, output_padding, groups)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        conv = self.conv_transpose2d
        return extension.conv_transpose_cuda(x.contiguous(), conv.weight.contiguous(), conv.bias, *self.geometry)
