"""Pointwise convolution: each thread reads four neighbouring positions at once and writes sixteen channels of them.

problem: level1/87
style: vectorised with remainder
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <optional>

constexpr int THREADS = 128;
constexpr int VECTOR = 4;
constexpr int OUTPUTS = 16;
constexpr int CHANNELS = 64;

// Neighbouring blocks differ in their output channels, so that the input they share is read from memory once.
__global__ void __launch_bounds__(THREADS)
pointwise_kernel(const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
                 float* __restrict__ y, int in_channels, int out_channels, int64_t area, int64_t strips,
                 int output_blocks, bool aligned) {
    __shared__ __align__(16) float filter[CHANNELS][OUTPUTS];
    const int output0 = blockIdx.x % output_blocks * OUTPUTS;
    const int64_t strip = blockIdx.x / output_blocks % strips;
    const int64_t image = blockIdx.x / output_blocks / strips;
    const int64_t p = (strip * THREADS + threadIdx.x) * VECTOR;
    const int valid = p < area ? int(min(area - p, int64_t(VECTOR))) : 0;
    const bool whole = aligned && valid == VECTOR;
    const float* in = x + image * in_channels * area + p;
    float* out = y + image * out_channels * area + p;

    float acc[OUTPUTS][VECTOR];
#pragma unroll
    for (int o = 0; o < OUTPUTS; ++o) {
        const float start = bias && output0 + o < out_channels ? bias[output0 + o] : 0.0f;
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) acc[o][j] = start;
    }

    for (int c0 = 0; c0 < in_channels; c0 += CHANNELS) {
        const int channels = min(CHANNELS, in_channels - c0);
        for (int i = threadIdx.x; i < OUTPUTS * channels; i += THREADS) {
            const int o = i / channels, c = i % channels;
            filter[c][o] = output0 + o < out_channels ? weight[int64_t(output0 + o) * in_channels + c0 + c] : 0.0f;
        }
        __syncthreads();
        for (int c = 0; c < channels; ++c) {
            const float* from = in + (c0 + c) * area;
            float v[VECTOR] = {0.0f, 0.0f, 0.0f, 0.0f};
            if (whole) {
                const float4 four = *reinterpret_cast<const float4*>(from);
                v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
            } else {
#pragma unroll
                for (int j = 0; j < VECTOR; ++j)
                    if (j < valid) v[j] = from[j];
            }
#pragma unroll
            for (int o = 0; o < OUTPUTS; ++o)
#pragma unroll
                for (int j = 0; j < VECTOR; ++j) acc[o][j] += filter[c][o] * v[j];
        }
        __syncthreads();
    }

#pragma unroll
    for (int o = 0; o < OUTPUTS; ++o) {
        if (output0 + o >= out_channels) break;
        float* to = out + (output0 + o) * area;
        if (whole) {
            *reinterpret_cast<float4*>(to) = make_float4(acc[o][0], acc[o][1], acc[o][2], acc[o][3]);
        } else {
#pragma unroll
            for (int j = 0; j < VECTOR; ++j)
                if (j < valid) to[j] = acc[o][j];
        }
    }
}

torch::Tensor pointwise_cuda(torch::Tensor x, torch::Tensor weight, std::optional<torch::Tensor> bias) {
    const int64_t batch = x.size(0), height = x.size(2), width = x.size(3), area = height * width;
    const int in_channels = x.size(1), out_channels = weight.size(0);
    auto y = torch::empty({batch, out_channels, height, width}, x.options());
    if (y.numel() == 0) return y;
    const float* in = x.data_ptr<float>();
    float* out = y.data_ptr<float>();
    const bool aligned = area % VECTOR == 0 && reinterpret_cast<uintptr_t>(in) % 16 == 0 &&
                         reinterpret_cast<uintptr_t>(out) % 16 == 0;
    const int64_t strips = (area + THREADS * VECTOR - 1) / (THREADS * VECTOR);
    const int output_blocks = (out_channels + OUTPUTS - 1) / OUTPUTS;
    pointwise_kernel<<<batch * strips * output_blocks, THREADS>>>(in, weight.data_ptr<float>(),
                                                                  bias ? bias->data_ptr<float>() : nullptr, out,
                                                                  in_channels, out_channels, area, strips,
                                                                  output_blocks, aligned);
    return y;
}
"""

CPP = "torch::Tensor pointwise_cuda(torch::Tensor x, torch::Tensor weight, std::optional<torch::Tensor> bias);"

extension = load_inline(
    name="kb87_pointwise_conv2d_vectorised", cpp_sources=CPP, cuda_sources=CUDA, functions=["pointwise_cuda"]
)


class ModelNew(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, bias: bool = False):
        super().__init__()
        self.conv1d = nn.Conv2d(in_channels, out_channels, kernel_size=1, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.pointwise_cuda(x.contiguous(), self.conv1d.weight.contiguous(), self.conv1d.bias)
