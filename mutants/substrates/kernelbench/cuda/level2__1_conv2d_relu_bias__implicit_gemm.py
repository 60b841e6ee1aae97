"""Convolution, ReLU and bias as one implicit matrix product: filters times unrolled patches, 64 x 64 tiles.

problem: level2/1
style: tiled
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

constexpr int TILE = 64;   // filters and pixels of a block
constexpr int DEPTH = 16;  // taps per step
constexpr int SIDE = 4;    // each of 16 x 16 threads owns SIDE x SIDE outputs

__global__ void conv_relu_bias_kernel(const float* __restrict__ x, const float* __restrict__ weight,
                                      const float* __restrict__ conv_bias, const float* __restrict__ bias,
                                      float* __restrict__ y, int in_channels, int height, int width, int filters,
                                      int kernel_h, int kernel_w, int out_h, int out_w, int64_t pixels) {
    __shared__ float filter[DEPTH][TILE + 1];
    __shared__ float patch[DEPTH][TILE];
    const int tid = threadIdx.x;
    const int taps = in_channels * kernel_h * kernel_w;
    const int first_filter = blockIdx.y * TILE;
    const int64_t first_pixel = (int64_t)blockIdx.x * TILE;

    // The pixel whose patch this thread loads stays the same for all steps.
    const int lane = tid % TILE;
    const int64_t pixel = first_pixel + lane;
    const float* corner = x;
    if (pixel < pixels) {
        const int64_t image = pixel / (out_h * out_w);
        const int rest = pixel % (out_h * out_w);
        corner = x + (image * in_channels * height + rest / out_w) * width + rest % out_w;
    }

    float sum[SIDE][SIDE] = {};
    const int row = tid / 16, column = tid % 16;
    for (int start = 0; start < taps; start += DEPTH) {
        for (int i = tid / DEPTH; i < TILE; i += 256 / DEPTH) {
            const int tap = start + tid % DEPTH, f = first_filter + i;
            filter[tid % DEPTH][i] = (tap < taps && f < filters) ? weight[(int64_t)f * taps + tap] : 0.0f;
        }
        for (int i = tid / TILE; i < DEPTH; i += 256 / TILE) {
            const int tap = start + i;
            float value = 0.0f;
            if (tap < taps && pixel < pixels) {
                const int channel = tap / (kernel_h * kernel_w), place = tap % (kernel_h * kernel_w);
                value = corner[((int64_t)channel * height + place / kernel_w) * width + place % kernel_w];
            }
            patch[i][lane] = value;
        }
        __syncthreads();
        for (int k = 0; k < DEPTH; ++k) {
            float a[SIDE], b[SIDE];
            for (int i = 0; i < SIDE; ++i) a[i] = filter[k][row + 16 * i];
            for (int j = 0; j < SIDE; ++j) b[j] = patch[k][column + 16 * j];
            for (int i = 0; i < SIDE; ++i)
                for (int j = 0; j < SIDE; ++j) sum[i][j] = fmaf(a[i], b[j], sum[i][j]);
        }
        __syncthreads();
    }

    for (int j = 0; j < SIDE; ++j) {
        const int64_t p = first_pixel + column + 16 * j;
        if (p >= pixels) continue;
        const int64_t image = p / (out_h * out_w);
        const int place = p % (out_h * out_w);
        for (int i = 0; i < SIDE; ++i) {
            const int f = first_filter + row + 16 * i;
            if (f < filters)
                y[(image * filters + f) * out_h * out_w + place] = fmaxf(sum[i][j] + conv_bias[f], 0.0f) + bias[f];
        }
    }
}

torch::Tensor conv_relu_bias(torch::Tensor x, torch::Tensor weight, torch::Tensor conv_bias, torch::Tensor bias) {
    const int images = x.size(0), in_channels = x.size(1), height = x.size(2), width = x.size(3);
    const int filters = weight.size(0), kernel_h = weight.size(2), kernel_w = weight.size(3);
    const int out_h = height - kernel_h + 1, out_w = width - kernel_w + 1;
    auto y = torch::empty({images, filters, out_h, out_w}, x.options());
    const int64_t pixels = (int64_t)images * out_h * out_w;
    const dim3 grid((pixels + TILE - 1) / TILE, (filters + TILE - 1) / TILE);
    conv_relu_bias_kernel<<<grid, 256>>>(x.data_ptr<float>(), weight.data_ptr<float>(), conv_bias.data_ptr<float>(),
                                         bias.data_ptr<float>(), y.data_ptr<float>(), in_channels, height, width,
                                         filters, kernel_h, kernel_w, out_h, out_w, pixels);
    return y;
}
"""

CPP = """
torch::Tensor conv_relu_bias(torch::Tensor x, torch::Tensor weight, torch::Tensor conv_bias, torch::Tensor bias);
"""

extension = load_inline(
    name="conv_relu_bias_implicit_gemm", cpp_sources=CPP, cuda_sources=CUDA, functions=["conv_relu_bias"]
)


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, bias_shape):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.bias = nn.Parameter(torch.randn(bias_shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.conv_relu_bias(x.contiguous(), self.conv.weight, self.conv.bias, self.bias)
