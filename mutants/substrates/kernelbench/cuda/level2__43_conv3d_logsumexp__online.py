"""3D convolution, maximum pooling, log-sum-exp over channels and ReLU in one kernel; nothing else is stored.

Four threads share a pooled voxel. Each convolves four channels at a time at all eight places of the window and keeps
a running maximum and sum; shared memory joins the four.

problem: level2/43
style: fused
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <cmath>

constexpr int VOXELS = 32;   // of a block
constexpr int SHARERS = 4;   // threads of a voxel
constexpr int CHANNELS = 4;  // of a thread at a time
constexpr int WINDOW = 8;    // 2 x 2 x 2

__global__ void fused_kernel(const float* __restrict__ x, const float* __restrict__ weight,
                             const float* __restrict__ bias, float* __restrict__ y, int in_channels, int out_channels,
                             int depth, int height, int width, int size, int stride, int padding, int pooled_d,
                             int pooled_h, int pooled_w, int64_t voxels) {
    __shared__ float maxima[SHARERS][VOXELS], sums[SHARERS][VOXELS];
    const int64_t voxel = (int64_t)blockIdx.x * VOXELS + threadIdx.x;
    const bool active = voxel < voxels;
    const int area = size * size, taps = area * size;

    float largest = -INFINITY, sum = 0.0f;
    if (active) {
        const int64_t image = voxel / (pooled_d * pooled_h * pooled_w);
        const int rest = voxel % (pooled_d * pooled_h * pooled_w);
        const int d0 = rest / (pooled_h * pooled_w) * 2 * stride - padding;
        const int h0 = rest / pooled_w % pooled_h * 2 * stride - padding;
        const int w0 = rest % pooled_w * 2 * stride - padding;
        for (int first = threadIdx.y * CHANNELS; first < out_channels; first += SHARERS * CHANNELS) {
            float value[CHANNELS][WINDOW] = {};
            for (int c = 0; c < in_channels; ++c) {
                const float* volume = x + (image * in_channels + c) * depth * height * width;
                for (int tap = 0; tap < taps; ++tap) {
                    float seen[WINDOW];
                    for (int p = 0; p < WINDOW; ++p) {
                        const int d = d0 + tap / area + (p >> 2) * stride;
                        const int h = h0 + tap / size % size + (p >> 1 & 1) * stride;
                        const int w = w0 + tap % size + (p & 1) * stride;
                        const bool inside = d >= 0 && d < depth && h >= 0 && h < height && w >= 0 && w < width;
                        seen[p] = inside ? volume[((int64_t)d * height + h) * width + w] : 0.0f;
                    }
                    for (int o = 0; o < CHANNELS; ++o) {
                        if (first + o >= out_channels) break;
                        const float factor = weight[((int64_t)(first + o) * in_channels + c) * taps + tap];
                        for (int p = 0; p < WINDOW; ++p) value[o][p] += seen[p] * factor;
                    }
                }
            }
            for (int o = 0; o < CHANNELS && first + o < out_channels; ++o) {
                float pooled = value[o][0];
                for (int p = 1; p < WINDOW; ++p) pooled = fmaxf(pooled, value[o][p]);
                pooled += bias[first + o];
                const float before = largest;
                largest = fmaxf(largest, pooled);
                sum = sum * expf(before - largest) + expf(pooled - largest);
            }
        }
    }
    maxima[threadIdx.y][threadIdx.x] = largest;
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || !active) return;
    for (int i = 1; i < SHARERS; ++i) largest = fmaxf(largest, maxima[i][threadIdx.x]);
    sum = 0.0f;
    for (int i = 0; i < SHARERS; ++i) sum += sums[i][threadIdx.x] * expf(maxima[i][threadIdx.x] - largest);
    y[voxel] = fmaxf(largest + logf(sum), 0.0f);
}

torch::Tensor conv_pool_logsumexp(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, int64_t stride,
                                  int64_t padding) {
    const int images = x.size(0), in_channels = x.size(1), depth = x.size(2), height = x.size(3), width = x.size(4);
    const int out_channels = weight.size(0), size = weight.size(2);
    const int pooled_d = ((depth + 2 * padding - size) / stride + 1) / 2;
    const int pooled_h = ((height + 2 * padding - size) / stride + 1) / 2;
    const int pooled_w = ((width + 2 * padding - size) / stride + 1) / 2;
    auto y = torch::empty({images, 1, pooled_d, pooled_h, pooled_w}, x.options());
    const int64_t voxels = (int64_t)images * pooled_d * pooled_h * pooled_w;
    fused_kernel<<<(voxels + VOXELS - 1) / VOXELS, dim3(VOXELS, SHARERS)>>>(
        x.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(), y.data_ptr<float>(), in_channels,
        out_channels, depth, height, width, size, (int)stride, (int)padding, pooled_d, pooled_h, pooled_w, voxels);
    return y;
}
"""

CPP = """
torch::Tensor conv_pool_logsumexp(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, int64_t stride,
                                  int64_t padding);
"""

extension = load_inline(
    name="conv3d_pool_logsumexp", cpp_sources=CPP, cuda_sources=CUDA, functions=["conv_pool_logsumexp"]
)


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride, padding):
        super().__init__()
        self.conv = nn.Conv3d(in_channels, out_channels, kernel_size, stride=stride, padding=padding)
        self.stride = stride
        self.padding = padding

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        conv = self.conv
        return extension.conv_pool_logsumexp(x.contiguous(), conv.weight, conv.bias, self.stride, self.padding)
