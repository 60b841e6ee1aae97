"""A CUDA candidate for ReLU, whole or with one of a kernel's faults put in."""

SOURCE = '''
import torch
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

__global__ void relu_kernel(const float* x, float* y, int n) {{
    __shared__ float staged[64];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    {kernel}
}}

torch::Tensor relu_cuda(torch::Tensor x) {{
    auto y = torch::{made}(x);
    int n = x.numel();
    {launch}
    return y;
}}
"""
CPP = "torch::Tensor relu_cuda(torch::Tensor x);"
extension = load_inline(name="relu_extension", cpp_sources=CPP, cuda_sources=CUDA, functions=["relu_cuda"])


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return extension.relu_cuda(x.contiguous())
'''
KERNEL = "if (i < n) y[i] = fmaxf(x[i], 0.0f);"
LAUNCH = "relu_kernel<<<(n + 63) / 64, 64>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);"
NEIGHBOUR = """
    staged[threadIdx.x] = i < n ? x[i] : 0.0f;
    {barrier}
    int other = 63 - threadIdx.x;
    int j = blockIdx.x * blockDim.x + other;
    if (j < n) y[j] = fmaxf(staged[other], 0.0f);
"""


def cuda(kernel: str = KERNEL, launch: str = LAUNCH, made: str = "empty_like") -> str:
    return SOURCE.format(kernel=kernel, launch=launch, made=made)


MISSING_BARRIER = cuda(NEIGHBOUR.format(barrier=""))
WITH_BARRIER = cuda(NEIGHBOUR.format(barrier="__syncthreads();"))
READS_BEYOND = cuda("float v = ((volatile const float*)x)[i]; if (i < n) y[i] = fmaxf(v, 0.0f);")
WRITES_BEYOND = cuda("y[i] = i < n ? fmaxf(x[i], 0.0f) : 0.0f;")
NEVER_LAUNCHED = cuda(launch="(void)n;")
