"""Linear layer and row sum as one product with the column sums of the weight; a warp finishes each row.

The sum leaves one value per row, so maximum, mean and both log-sum-exps over it change nothing.

problem: level2/18
style: warp
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

constexpr int COLUMNS = 32;  // of one block of the first kernel
constexpr int LANES = 16;    // threads that share a column
constexpr int WARPS = 4;     // rows of one block of the second kernel

__global__ void column_sum_kernel(const float* weight, float* sums, int rows, int columns) {
    __shared__ float partial[LANES][COLUMNS];
    const int column = blockIdx.x * COLUMNS + threadIdx.x;
    float sum = 0.0f;
    if (column < columns)
        for (int row = threadIdx.y; row < rows; row += LANES) sum += weight[(int64_t)row * columns + column];
    partial[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && column < columns) {
        for (int i = 1; i < LANES; ++i) sum += partial[i][threadIdx.x];
        sums[column] = sum;
    }
}

__device__ float warp_sum(float value) {
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

__global__ void row_dot_kernel(const float* x, const float* sums, const float* bias, float* y, int rows, int columns,
                               int outputs) {
    const int lane = threadIdx.x % 32;
    const int row = blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= rows) return;
    const float* line = x + (int64_t)row * columns;
    float product = 0.0f, offset = 0.0f;
    for (int i = lane; i < columns; i += 32) product += line[i] * sums[i];
    for (int i = lane; i < outputs; i += 32) offset += bias[i];
    const float total = warp_sum(product) + warp_sum(offset);
    if (lane == 0) y[row] = total;
}

torch::Tensor linear_row_sum(torch::Tensor x, torch::Tensor weight, torch::Tensor bias) {
    const int rows = x.size(0), columns = x.size(1), outputs = weight.size(0);
    auto sums = torch::empty({columns}, x.options());
    auto y = torch::empty({rows, 1}, x.options());
    column_sum_kernel<<<(columns + COLUMNS - 1) / COLUMNS, dim3(COLUMNS, LANES)>>>(
        weight.data_ptr<float>(), sums.data_ptr<float>(), outputs, columns);
    row_dot_kernel<<<(rows + WARPS - 1) / WARPS, 32 * WARPS>>>(
        x.data_ptr<float>(), sums.data_ptr<float>(), bias.data_ptr<float>(), y.data_ptr<float>(), rows, columns,
        outputs);
    return y;
}
"""

CPP = "torch::Tensor linear_row_sum(torch::Tensor x, torch::Tensor weight, torch::Tensor bias);"

extension = load_inline(name="linear_row_sum", cpp_sources=CPP, cuda_sources=CUDA, functions=["linear_row_sum"])


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.linear_row_sum(x.contiguous(), self.linear.weight, self.linear.bias)
