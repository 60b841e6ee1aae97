"""The whole linear layer in tiles; each tile adds its outputs up by row, and a second kernel ends the chain.

problem: level2/18
style: tiled
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <cmath>

#define ROWS 16
#define COLS 64
#define DEPTH 32

// 16 x 16 threads; a thread owns one row and every sixteenth column of the tile.
__global__ void tile_kernel(const float* x, const float* w, const float* bias, float* partial, int batch, int inputs,
                            int outputs) {
    __shared__ float left[ROWS][DEPTH];
    __shared__ float right[COLS][DEPTH + 1];
    __shared__ float sums[ROWS][16];
    const int tx = threadIdx.x, ty = threadIdx.y, tid = ty * 16 + tx;
    const int row0 = blockIdx.y * ROWS, col0 = blockIdx.x * COLS;

    float acc[COLS / 16] = {0.0f};
    for (int k0 = 0; k0 < inputs; k0 += DEPTH) {
        for (int i = tid; i < ROWS * DEPTH; i += 256) {
            const int r = row0 + i / DEPTH, k = k0 + i % DEPTH;
            left[i / DEPTH][i % DEPTH] = (r < batch && k < inputs) ? x[(int64_t)r * inputs + k] : 0.0f;
        }
        for (int i = tid; i < COLS * DEPTH; i += 256) {
            const int c = col0 + i / DEPTH, k = k0 + i % DEPTH;
            right[i / DEPTH][i % DEPTH] = (c < outputs && k < inputs) ? w[(int64_t)c * inputs + k] : 0.0f;
        }
        __syncthreads();
        for (int k = 0; k < DEPTH; k++) {
            const float a = left[ty][k];
            for (int j = 0; j < COLS / 16; j++) acc[j] += a * right[tx + 16 * j][k];
        }
        __syncthreads();
    }

    float sum = 0.0f;
    for (int j = 0; j < COLS / 16; j++) {
        const int c = col0 + tx + 16 * j;
        if (c < outputs) sum += acc[j] + bias[c];
    }
    sums[ty][tx] = sum;
    __syncthreads();
    if (tx == 0 && row0 + ty < batch) {
        float total = 0.0f;
        for (int i = 0; i < 16; i++) total += sums[ty][i];
        partial[(int64_t)(row0 + ty) * gridDim.x + blockIdx.x] = total;
    }
}

__global__ void chain_kernel(const float* partial, float* y, int batch, int tiles) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= batch) return;
    float value = 0.0f;
    for (int i = 0; i < tiles; i++) value += partial[(int64_t)row * tiles + i];
    for (int pass = 0; pass < 2; pass++) {
        const float largest = value;  // of one element; so is the mean
        value = largest + logf(expf(value - largest));
    }
    y[row] = value;
}

torch::Tensor row_chain(torch::Tensor x, torch::Tensor w, torch::Tensor bias) {
    const int batch = x.size(0), inputs = x.size(1), outputs = w.size(0);
    const int tiles = (outputs + COLS - 1) / COLS;
    auto partial = torch::empty({batch, tiles}, x.options());
    auto y = torch::empty({batch, 1}, x.options());
    const dim3 grid(tiles, (batch + ROWS - 1) / ROWS), block(16, 16);
    tile_kernel<<<grid, block>>>(x.data_ptr<float>(), w.data_ptr<float>(), bias.data_ptr<float>(),
                                 partial.data_ptr<float>(), batch, inputs, outputs);
    chain_kernel<<<(batch + 127) / 128, 128>>>(partial.data_ptr<float>(), y.data_ptr<float>(), batch, tiles);
    return y;
}
"""

CPP = "torch::Tensor row_chain(torch::Tensor x, torch::Tensor w, torch::Tensor bias);"

extension = load_inline(name="linear_row_chain", cpp_sources=CPP, cuda_sources=CUDA, functions=["row_chain"])


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.row_chain(x.contiguous(), self.linear.weight, self.linear.bias)
