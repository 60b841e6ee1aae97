"""One thread per output, which sums only where both triangles are not zero.

problem: tril_matmul
style: naive
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

__global__ void tril_kernel(const float* A, const float* B, float* C, int n) {
    const int col = blockIdx.x * blockDim.x + threadIdx.x;
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= n || col >= n) return;
    float sum = 0.0f;
    for (int k = col; k <= row; ++k) {
        sum += A[(int64_t)row * n + k] * B[(int64_t)k * n + col];
    }
    C[(int64_t)row * n + col] = sum;
}

torch::Tensor tril_matmul_cuda(torch::Tensor A, torch::Tensor B) {
    const int n = A.size(0);
    auto C = torch::empty({n, n}, A.options());
    const dim3 block(32, 4);
    const dim3 grid((n + 31) / 32, (n + 3) / 4);
    tril_kernel<<<grid, block>>>(A.data_ptr<float>(), B.data_ptr<float>(), C.data_ptr<float>(), n);
    return C;
}
"""

CPP = """
torch::Tensor tril_matmul_cuda(torch::Tensor A, torch::Tensor B);
"""

extension = load_inline(
    name="tril_matmul__short_sum", cpp_sources=CPP, cuda_sources=CUDA, functions=["tril_matmul_cuda"]
)


class ModelNew(nn.Module):
    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        return extension.tril_matmul_cuda(A.contiguous(), B.contiguous())
