"""Transposed convolution that gathers, with the clamps fused: a thread makes one pixel of eight channels.

problem: level2/2
style: vectorised
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

constexpr int THREADS = 256;
constexpr int OUT = 8;   // output channels of a block
constexpr int IN = 16;   // input channels whose weights are in shared memory at a time

__device__ float clamp01(float v) { return fminf(fmaxf(v, 0.0f), 1.0f); }

__global__ void gather_kernel(const float* __restrict__ x, const float* __restrict__ weight,
                              const float* __restrict__ conv_bias, const float* __restrict__ bias,
                              float* __restrict__ y, int in_channels, int height, int width, int out_channels,
                              int size, int out_h, int out_w, int stride, int padding, int chunks, float scale) {
    extern __shared__ float4 taps[];  // [size][size][IN][OUT / 4]
    float* flat = reinterpret_cast<float*>(taps);
    const int64_t image = blockIdx.x / chunks;
    const int pixel = (blockIdx.x % chunks) * THREADS + threadIdx.x;
    const int first = blockIdx.y * OUT;
    const bool inside = pixel < out_h * out_w;
    const int oh = pixel / out_w, ow = pixel % out_w;

    float sum[OUT] = {};
    for (int start = 0; start < in_channels; start += IN) {
        const int held = min(IN, in_channels - start);
        __syncthreads();
        for (int i = threadIdx.x; i < size * size * IN * OUT; i += THREADS) {
            const int o = first + i % OUT, c = start + i / OUT % IN, tap = i / (OUT * IN);
            flat[i] = o < out_channels && c < in_channels
                ? weight[((int64_t)c * out_channels + o) * size * size + tap] : 0.0f;
        }
        __syncthreads();
        if (!inside) continue;
        for (int r = 0; r < size; ++r) {
            const int h = oh + padding - r;
            if (h < 0 || h % stride != 0 || h / stride >= height) continue;
            for (int s = 0; s < size; ++s) {
                const int w = ow + padding - s;
                if (w < 0 || w % stride != 0 || w / stride >= width) continue;
                const float* source = x + ((image * in_channels + start) * height + h / stride) * width + w / stride;
                const float4* tap = taps + (r * size + s) * IN * (OUT / 4);
                for (int c = 0; c < held; ++c) {
                    const float value = source[(int64_t)c * height * width];
                    for (int q = 0; q < OUT / 4; ++q) {
                        const float4 t = tap[c * (OUT / 4) + q];
                        sum[4 * q] += value * t.x;
                        sum[4 * q + 1] += value * t.y;
                        sum[4 * q + 2] += value * t.z;
                        sum[4 * q + 3] += value * t.w;
                    }
                }
            }
        }
    }
    if (!inside) return;
    for (int o = 0; o < OUT; ++o) {
        const int channel = first + o;
        if (channel >= out_channels) break;
        const float v = clamp01(sum[o] + conv_bias[channel] + bias[channel]);
        y[(image * out_channels + channel) * out_h * out_w + pixel] = clamp01(v * scale) / scale;
    }
}

torch::Tensor gather(torch::Tensor x, torch::Tensor weight, torch::Tensor conv_bias, torch::Tensor bias,
                     int64_t stride, int64_t padding, int64_t output_padding, double scale) {
    const int images = x.size(0), in_channels = x.size(1), height = x.size(2), width = x.size(3);
    const int out_channels = weight.size(1), size = weight.size(2);
    const int out_h = (height - 1) * stride - 2 * padding + size + output_padding;
    const int out_w = (width - 1) * stride - 2 * padding + size + output_padding;
    auto y = torch::empty({images, out_channels, out_h, out_w}, x.options());
    const int chunks = (out_h * out_w + THREADS - 1) / THREADS;
    const dim3 grid(images * chunks, (out_channels + OUT - 1) / OUT);
    const size_t bytes = size * size * IN * OUT * sizeof(float);
    gather_kernel<<<grid, THREADS, bytes>>>(x.data_ptr<float>(), weight.data_ptr<float>(),
        conv_bias.data_ptr<float>(), bias.data_ptr<float>(), y.data_ptr<float>(), in_channels, height, width,
        out_channels, size, out_h, out_w, (int)stride, (int)padding, chunks, (float)scale);
    return y;
}
"""

CPP = """
torch::Tensor gather(torch::Tensor x, torch::Tensor weight, torch::Tensor conv_bias, torch::Tensor bias,
                     int64_t stride, int64_t padding, int64_t output_padding, double scale);
"""

extension = load_inline(name="conv_transpose_clamps", cpp_sources=CPP, cuda_sources=CUDA, functions=["gather"])


class ModelNew(nn.Module):
    def __init__(
        self, in_channels, out_channels, kernel_size, stride, padding, output_padding, bias_shape, scaling_factor
    ):
        super().__init__()
        self.conv_transpose = nn.ConvTranspose2d(
            in_channels, out_channels, kernel_size, stride=stride, padding=padding, output_padding=output_padding
        )
        self.bias = nn.Parameter(torch.randn(bias_shape))
        self.geometry = (stride, padding, output_padding)
        self.scaling_factor = scaling_factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        conv = self.conv_transpose
        return extension.gather(x.contiguous(), conv.weight, conv.bias, self.bias, *self.geometry, self.scaling_factor)
