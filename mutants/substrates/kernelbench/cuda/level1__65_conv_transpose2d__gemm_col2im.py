"""Transposed convolution in two kernels: a tiled product for the contributions of all taps, a gather that adds them.

problem: level1/65
style: gemm and col2im
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <algorithm>
#include <optional>

#define TILE 64
#define DEPTH 16

// columns[row][p] = sum over c of weight[c][row] * image[c][p]; row is output channel and tap, p an input position.
__global__ void product_kernel(const float* __restrict__ weight, const float* __restrict__ image,
                               float* __restrict__ columns, int rows, int64_t row_stride, int64_t area, int channels) {
    __shared__ float ws[DEPTH][TILE];
    __shared__ float xs[DEPTH][TILE];
    int tx = threadIdx.x, ty = threadIdx.y, t = ty * 16 + tx;
    int row0 = blockIdx.y * TILE;
    int64_t col0 = (int64_t)blockIdx.x * TILE;
    float acc[4][4] = {{0.0f}};

    for (int c0 = 0; c0 < channels; c0 += DEPTH) {
        for (int i = t; i < DEPTH * TILE; i += 256) {
            int c = i / TILE, j = i % TILE;
            ws[c][j] = (c0 + c < channels && row0 + j < rows) ? weight[(c0 + c) * row_stride + row0 + j] : 0.0f;
            xs[c][j] = (c0 + c < channels && col0 + j < area) ? image[(c0 + c) * area + col0 + j] : 0.0f;
        }
        __syncthreads();
        for (int c = 0; c < DEPTH; ++c) {
            float left[4], right[4];
            for (int i = 0; i < 4; ++i) {
                left[i] = ws[c][ty + 16 * i];
                right[i] = xs[c][tx + 16 * i];
            }
            for (int i = 0; i < 4; ++i)
                for (int j = 0; j < 4; ++j) acc[i][j] += left[i] * right[j];
        }
        __syncthreads();
    }
    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) {
            int row = row0 + ty + 16 * i;
            int64_t col = col0 + tx + 16 * j;
            if (row < rows && col < area) columns[row * area + col] = acc[i][j];
        }
}

__global__ void gather_kernel(const float* __restrict__ columns, const float* __restrict__ bias, float* __restrict__ y,
                              int64_t outputs, int height, int width, int out_height, int out_width, int size_h,
                              int size_w, int stride_h, int stride_w, int padding_h, int padding_w) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= outputs) return;
    int ow = i % out_width;
    int oh = i / out_width % out_height;
    int channel = i / out_width / out_height;
    float sum = bias ? bias[channel] : 0.0f;
    for (int r = 0; r < size_h; ++r) {
        int h = oh + padding_h - r;
        if (h < 0 || h % stride_h != 0 || h / stride_h >= height) continue;
        h /= stride_h;
        for (int s = 0; s < size_w; ++s) {
            int w = ow + padding_w - s;
            if (w < 0 || w % stride_w != 0 || w / stride_w >= width) continue;
            w /= stride_w;
            int64_t row = ((int64_t)channel * size_h + r) * size_w + s;
            sum += columns[(row * height + h) * width + w];
        }
    }
    y[i] = sum;
}

torch::Tensor conv_transpose_cuda(torch::Tensor x, torch::Tensor weight, std::optional<torch::Tensor> bias,
                                  std::vector<int64_t> stride, std::vector<int64_t> padding,
                                  std::vector<int64_t> output_padding, int64_t groups) {
    int batch = x.size(0), height = x.size(2), width = x.size(3);
    int group_in = x.size(1) / groups, group_out = weight.size(1), size_h = weight.size(2), size_w = weight.size(3);
    int out_height = (height - 1) * stride[0] - 2 * padding[0] + size_h + output_padding[0];
    int out_width = (width - 1) * stride[1] - 2 * padding[1] + size_w + output_padding[1];
    auto y = torch::empty({batch, group_out * groups, out_height, out_width}, x.options());
    if (y.numel() == 0) return y;

    // Sixteen output channels at a time bound the memory for the contributions.
    int taps = size_h * size_w, slice = std::min(group_out, 16);
    int64_t area = (int64_t)height * width, out_area = (int64_t)out_height * out_width;
    auto columns = torch::empty({slice * taps, area}, x.options());
    for (int n = 0; n < batch; ++n)
        for (int g = 0; g < groups; ++g)
            for (int first = 0; first < group_out; first += slice) {
                int count = std::min(slice, group_out - first), rows = count * taps;
                int64_t channel = (int64_t)g * group_out + first;
                dim3 grid((area + TILE - 1) / TILE, (rows + TILE - 1) / TILE);
                product_kernel<<<grid, dim3(16, 16)>>>(
                    weight.data_ptr<float>() + ((int64_t)g * group_in * group_out + first) * taps,
                    x.data_ptr<float>() + (n * groups + g) * group_in * area, columns.data_ptr<float>(), rows,
                    (int64_t)group_out * taps, area, group_in);
                gather_kernel<<<(count * out_area + 255) / 256, 256>>>(
                    columns.data_ptr<float>(), bias ? bias->data_ptr<float>() + channel : nullptr,
                    y.data_ptr<float>() + (n * groups * group_out + channel) * out_area, count * out_area, height,
                    width, out_height, out_width, size_h, size_w, stride[0], stride[1], padding[0], padding[1]);
            }
    return y;
}
"""

CPP = """
torch::Tensor conv_transpose_cuda(torch::Tensor x, torch::Tensor weight, std::optional<torch::Tensor> bias,
                                  std::vector<int64_t> stride, std::vector<int64_t> padding,
                                  std::vector<int64_t> output_padding, int64_t groups);
"""

extension = load_inline(
    name="kb65_conv_transpose2d_gemm_col2im", cpp_sources=CPP, cuda_sources=CUDA, functions=["conv_transpose_cuda"]
)


class ModelNew(nn.Module):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: tuple,
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

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        conv = self.conv_transpose2d
        return extension.conv_transpose_cuda(
            x.contiguous(),
            conv.weight.contiguous(),
            conv.bias,
            list(conv.stride),
            list(conv.padding),
            list(conv.output_padding),
            conv.groups,
        )
