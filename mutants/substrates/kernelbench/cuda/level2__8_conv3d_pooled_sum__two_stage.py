"""3D convolution to sum in one pass: every thread pools what it convolves, and partial sums meet later.

problem: level2/8
style: two-stage
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <cmath>

constexpr int THREADS = 128;
constexpr int CELLS = 512;  // pooled cells of one block

struct Extent { int d, h, w; };

__device__ float block_sum(float value, float* scratch) {
    scratch[threadIdx.x] = value;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) scratch[threadIdx.x] += scratch[threadIdx.x + half];
        __syncthreads();
    }
    return scratch[0];
}

__global__ void pooled_kernel(const float* x, const float* weight, const float* conv_bias, float* partial,
                              int in_channels, int out_channels, Extent in, Extent kernel, Extent pool, Extent out,
                              int chunks, float divisor) {
    extern __shared__ float filter[];
    __shared__ float scratch[THREADS];
    const int taps = kernel.d * kernel.h * kernel.w;
    const int chunk = blockIdx.x % chunks, o = blockIdx.x / chunks % out_channels;
    const int64_t image = blockIdx.x / chunks / out_channels;
    for (int i = threadIdx.x; i < in_channels * taps; i += THREADS)
        filter[i] = weight[(int64_t)o * in_channels * taps + i];
    __syncthreads();

    const int cells = out.d * out.h * out.w;
    const int64_t volume = (int64_t)in.d * in.h * in.w;
    const float* first = x + image * in_channels * volume;
    float total = 0.0f;
    for (int cell = chunk * CELLS + threadIdx.x; cell < min(cells, (chunk + 1) * CELLS); cell += THREADS) {
        const int pd = cell / (out.h * out.w), ph = cell / out.w % out.h, pw = cell % out.w;
        float best = -INFINITY;
        for (int a = 0; a < pool.d; ++a)
            for (int b = 0; b < pool.h; ++b)
                for (int c = 0; c < pool.w; ++c) {
                    const int d = pd * pool.d + a, h = ph * pool.h + b, w = pw * pool.w + c;
                    float sum = conv_bias[o];
                    for (int ch = 0; ch < in_channels; ++ch)
                        for (int i = 0; i < kernel.d; ++i)
                            for (int j = 0; j < kernel.h; ++j) {
                                const float* line = first + ch * volume + ((int64_t)(d + i) * in.h + h + j) * in.w + w;
                                const float* tap = filter + ((ch * kernel.d + i) * kernel.h + j) * kernel.w;
                                for (int k = 0; k < kernel.w; ++k) sum += line[k] * tap[k];
                            }
                    best = fmaxf(best, sum / divisor);
                }
        total += best;
    }
    total = block_sum(total, scratch);
    if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

__global__ void finish_kernel(const float* partial, const float* bias, float* y, int out_channels, int chunks,
                              float cells) {
    __shared__ float scratch[THREADS];
    const float* mine = partial + (int64_t)blockIdx.x * out_channels * chunks;
    float total = 0.0f;
    for (int o = threadIdx.x; o < out_channels; o += THREADS) {
        float sum = 0.0f;
        for (int i = 0; i < chunks; ++i) sum += mine[o * chunks + i];
        total += sum / cells + bias[o];
    }
    total = block_sum(total, scratch);
    if (threadIdx.x == 0) y[blockIdx.x] = total;
}

torch::Tensor pooled_sum(torch::Tensor x, torch::Tensor weight, torch::Tensor conv_bias, torch::Tensor bias,
                         int64_t pool_d, int64_t pool_h, int64_t pool_w, double divisor) {
    const int images = x.size(0), in_channels = x.size(1), out_channels = weight.size(0);
    const Extent in = {(int)x.size(2), (int)x.size(3), (int)x.size(4)};
    const Extent kernel = {(int)weight.size(2), (int)weight.size(3), (int)weight.size(4)};
    const Extent pool = {(int)pool_d, (int)pool_h, (int)pool_w};
    const Extent out = {(in.d - kernel.d + 1) / pool.d, (in.h - kernel.h + 1) / pool.h,
                        (in.w - kernel.w + 1) / pool.w};
    const int cells = out.d * out.h * out.w, chunks = (cells + CELLS - 1) / CELLS;
    auto partial = torch::empty({images * out_channels * chunks}, x.options());
    auto y = torch::empty({images, 1, 1, 1}, x.options());
    const size_t bytes = in_channels * kernel.d * kernel.h * kernel.w * sizeof(float);
    pooled_kernel<<<images * out_channels * chunks, THREADS, bytes>>>(x.data_ptr<float>(), weight.data_ptr<float>(),
        conv_bias.data_ptr<float>(), partial.data_ptr<float>(), in_channels, out_channels, in, kernel, pool, out,
        chunks, (float)divisor);
    finish_kernel<<<images, THREADS>>>(partial.data_ptr<float>(), bias.data_ptr<float>(), y.data_ptr<float>(),
                                       out_channels, chunks, (float)cells);
    return y;
}
"""

CPP = """
torch::Tensor pooled_sum(torch::Tensor x, torch::Tensor weight, torch::Tensor conv_bias, torch::Tensor bias,
                         int64_t pool_d, int64_t pool_h, int64_t pool_w, double divisor);
"""

extension = load_inline(name="conv3d_pooled_sum", cpp_sources=CPP, cuda_sources=CUDA, functions=["pooled_sum"])


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, divisor, pool_size, bias_shape, sum_dim):
        super().__init__()
        if sum_dim != 1:
            raise ValueError(f"the kernel sums over channels (dimension 1), not over dimension {sum_dim}")
        self.conv = nn.Conv3d(in_channels, out_channels, kernel_size)
        self.divisor = divisor
        self.pool_size = pool_size
        self.bias = nn.Parameter(torch.randn(bias_shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.pooled_sum(
            x.contiguous(), self.conv.weight, self.conv.bias, self.bias, *self.pool_size, self.divisor
        )
