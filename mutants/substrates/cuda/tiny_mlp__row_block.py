"""One block per sample: all three layers in one kernel, activations alternate between two shared buffers.

problem: tiny_mlp
style: fused
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

__device__ void layer(const float* in, const float* weight, const float* bias, float* out, int ins, int outs,
                      bool relu) {
    for (int o = threadIdx.x; o < outs; o += blockDim.x) {
        float sum = bias[o];
        for (int i = 0; i < ins; ++i) sum += in[i] * weight[(int64_t)o * ins + i];
        out[o] = relu ? fmaxf(sum, 0.0f) : sum;
    }
}

__global__ void mlp_kernel(const float* x, const float* w1, const float* b1, const float* w2, const float* b2,
                           const float* w3, const float* b3, float* y, int ins, int hidden1, int hidden2, int outs) {
    extern __shared__ float shared[];
    float* first = shared;
    float* second = shared + hidden1;
    layer(x + (int64_t)blockIdx.x * ins, w1, b1, first, ins, hidden1, true);
    __syncthreads();
    layer(first, w2, b2, second, hidden1, hidden2, true);
    __syncthreads();
    layer(second, w3, b3, y + (int64_t)blockIdx.x * outs, hidden2, outs, false);
}

torch::Tensor mlp_cuda(torch::Tensor x, torch::Tensor w1, torch::Tensor b1, torch::Tensor w2, torch::Tensor b2,
                       torch::Tensor w3, torch::Tensor b3) {
    const int batch = x.size(0), ins = x.size(1), hidden1 = w1.size(0), hidden2 = w2.size(0), outs = w3.size(0);
    auto y = torch::empty({batch, outs}, x.options());
    mlp_kernel<<<batch, 64, (hidden1 + hidden2) * sizeof(float)>>>(
        x.data_ptr<float>(), w1.data_ptr<float>(), b1.data_ptr<float>(), w2.data_ptr<float>(), b2.data_ptr<float>(),
        w3.data_ptr<float>(), b3.data_ptr<float>(), y.data_ptr<float>(), ins, hidden1, hidden2, outs);
    return y;
}
"""

CPP = """
torch::Tensor mlp_cuda(torch::Tensor x, torch::Tensor w1, torch::Tensor b1, torch::Tensor w2, torch::Tensor b2,
                       torch::Tensor w3, torch::Tensor b3);
"""

extension = load_inline(name="tiny_mlp__row_block", cpp_sources=CPP, cuda_sources=CUDA, functions=["mlp_cuda"])


class ModelNew(nn.Module):
    def __init__(self, input_size: int, hidden_size: int, output_size: int):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(input_size, hidden_size),
            nn.ReLU(),
            nn.Linear(hidden_size, hidden_size),
            nn.ReLU(),
            nn.Linear(hidden_size, output_size),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second, third = self.net[0], self.net[2], self.net[4]
        return extension.mlp_cuda(
            x.contiguous(), first.weight, first.bias, second.weight, second.bias, third.weight, third.bias
        )
