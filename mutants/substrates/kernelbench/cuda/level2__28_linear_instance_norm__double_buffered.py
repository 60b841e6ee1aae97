"""Linear layer with two stages of tiles in shared memory, then each row normalised, added to and multiplied by `y`.

problem: level2/28
style: double-buffered
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

constexpr int ROWS = 32, COLS = 128, DEPTH = 16, THREADS = 256;
constexpr int LEFT = ROWS * DEPTH / THREADS, RIGHT = COLS * DEPTH / THREADS;  // loads of one thread per stage

__device__ float get(const float* matrix, int row, int rows, int column, int columns) {
    return row < rows && column < columns ? matrix[(int64_t)row * columns + column] : 0.0f;
}

// out = x . weight^T + bias; 8 x 32 threads, each with a 4 x 4 square.
__global__ void linear_kernel(const float* __restrict__ x, const float* __restrict__ weight,
                              const float* __restrict__ bias, float* __restrict__ out, int batch, int inputs,
                              int outputs) {
    __shared__ float left[2][DEPTH][ROWS + 1];
    __shared__ float right[2][DEPTH][COLS + 1];
    const int tid = threadIdx.x;
    const int k = tid % DEPTH, lane = tid / DEPTH;  // of the loads
    const int row0 = blockIdx.y * ROWS, col0 = blockIdx.x * COLS;
    const int ty = tid / 32, tx = tid % 32;
    const int steps = (inputs + DEPTH - 1) / DEPTH;

    for (int i = 0; i < LEFT; ++i) left[0][k][lane + 16 * i] = get(x, row0 + lane + 16 * i, batch, k, inputs);
    for (int i = 0; i < RIGHT; ++i) right[0][k][lane + 16 * i] = get(weight, col0 + lane + 16 * i, outputs, k, inputs);
    __syncthreads();

    float sum[4][4] = {};
    for (int step = 0; step < steps; ++step) {
        const int stage = step & 1;
        float next_left[LEFT], next_right[RIGHT];
        if (step + 1 < steps) {
            const int column = (step + 1) * DEPTH + k;
            for (int i = 0; i < LEFT; ++i) next_left[i] = get(x, row0 + lane + 16 * i, batch, column, inputs);
            for (int i = 0; i < RIGHT; ++i) next_right[i] = get(weight, col0 + lane + 16 * i, outputs, column, inputs);
        }
        for (int d = 0; d < DEPTH; ++d) {
            float a[4], b[4];
            for (int i = 0; i < 4; ++i) a[i] = left[stage][d][ty * 4 + i];
            for (int j = 0; j < 4; ++j) b[j] = right[stage][d][tx + 32 * j];
            for (int i = 0; i < 4; ++i)
                for (int j = 0; j < 4; ++j) sum[i][j] += a[i] * b[j];
        }
        if (step + 1 < steps) {
            for (int i = 0; i < LEFT; ++i) left[stage ^ 1][k][lane + 16 * i] = next_left[i];
            for (int i = 0; i < RIGHT; ++i) right[stage ^ 1][k][lane + 16 * i] = next_right[i];
        }
        __syncthreads();
    }

    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) {
            const int row = row0 + ty * 4 + i, column = col0 + tx + 32 * j;
            if (row < batch && column < outputs) out[(int64_t)row * outputs + column] = sum[i][j] + bias[column];
        }
}

__device__ float block_sum(float value, float* warps) {
    for (int offset = 16; offset > 0; offset >>= 1) value += __shfl_xor_sync(0xffffffffu, value, offset);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0.0f;
    for (int i = 0; i < THREADS / 32; ++i) value += warps[i];
    __syncthreads();
    return value;
}

__global__ void norm_kernel(float* out, const float* y, int columns, float eps) {
    __shared__ float warps[THREADS / 32];
    float* row = out + (int64_t)blockIdx.x * columns;
    const float* other = y + (int64_t)blockIdx.x * columns;
    float sum = 0.0f, squares = 0.0f;
    for (int i = threadIdx.x; i < columns; i += THREADS) sum += row[i];
    const float mean = block_sum(sum, warps) / columns;
    for (int i = threadIdx.x; i < columns; i += THREADS) squares += (row[i] - mean) * (row[i] - mean);
    const float scale = 1.0f / sqrtf(block_sum(squares, warps) / columns + eps);
    for (int i = threadIdx.x; i < columns; i += THREADS) row[i] = ((row[i] - mean) * scale + other[i]) * other[i];
}

torch::Tensor linear_norm(torch::Tensor x, torch::Tensor y, torch::Tensor weight, torch::Tensor bias, double eps) {
    const int batch = x.size(0), inputs = x.size(1), outputs = weight.size(0);
    auto out = torch::empty({batch, outputs}, x.options());
    const dim3 grid((outputs + COLS - 1) / COLS, (batch + ROWS - 1) / ROWS);
    linear_kernel<<<grid, THREADS>>>(x.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(),
                                     out.data_ptr<float>(), batch, inputs, outputs);
    norm_kernel<<<batch, THREADS>>>(out.data_ptr<float>(), y.data_ptr<float>(), outputs, (float)eps);
    return out;
}
"""

CPP = """
torch::Tensor linear_norm(torch::Tensor x, torch::Tensor y, torch::Tensor weight, torch::Tensor bias, double eps);
"""

extension = load_inline(name="linear_instance_norm", cpp_sources=CPP, cuda_sources=CUDA, functions=["linear_norm"])


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, eps=1e-5, momentum=0.1):
        super().__init__()
        self.bmm = nn.Linear(in_features, out_features)
        self.instance_norm = nn.InstanceNorm2d(out_features, eps=eps, momentum=momentum)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        eps = self.instance_norm.eps
        return extension.linear_norm(x.contiguous(), y.contiguous(), self.bmm.weight, self.bmm.bias, eps)
