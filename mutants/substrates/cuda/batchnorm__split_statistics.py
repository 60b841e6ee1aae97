"""Three kernels: moments of every image's channel, their merger per channel, the output.

problem: batchnorm
style: two-stage reduction
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

constexpr int THREADS = 64;

__global__ void plane_kernel(const float* x, float* means, float* m2s, int spatial) {
    __shared__ float scratch[THREADS];
    const int t = threadIdx.x;
    const float* plane = x + (int64_t)blockIdx.x * spatial;
    float sum = 0.0f;
    for (int i = t; i < spatial; i += THREADS) sum += plane[i];
    scratch[t] = sum;
    __syncthreads();
    for (int s = THREADS / 2; s > 0; s >>= 1) {
        if (t < s) scratch[t] += scratch[t + s];
        __syncthreads();
    }
    const float mean = scratch[0] / spatial;
    __syncthreads();
    float m2 = 0.0f;
    for (int i = t; i < spatial; i += THREADS) m2 += (plane[i] - mean) * (plane[i] - mean);
    scratch[t] = m2;
    __syncthreads();
    for (int s = THREADS / 2; s > 0; s >>= 1) {
        if (t < s) scratch[t] += scratch[t + s];
        __syncthreads();
    }
    if (t == 0) {
        means[blockIdx.x] = mean;
        m2s[blockIdx.x] = scratch[0];
    }
}

__global__ void merge_kernel(const float* means, const float* m2s, float* mean, float* inverse, int batch,
                             int channels, int spatial, float eps) {
    const int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= channels) return;
    float m = means[c], m2 = m2s[c];
    for (int n = 1; n < batch; ++n) {
        const float delta = means[n * channels + c] - m;
        m += delta / (n + 1);
        m2 += m2s[n * channels + c] + delta * delta * spatial * n / (n + 1);
    }
    mean[c] = m;
    inverse[c] = rsqrtf(m2 / ((float)batch * spatial) + eps);
}

__global__ void apply_kernel(const float* x, const float* mean, const float* inverse, const float* gamma,
                             const float* beta, float* y, int64_t total, int channels, int spatial) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < total) {
        const int c = i / spatial % channels;
        y[i] = (x[i] - mean[c]) * inverse[c] * gamma[c] + beta[c];
    }
}

torch::Tensor batchnorm_cuda(torch::Tensor x, torch::Tensor gamma, torch::Tensor beta, double eps) {
    const int batch = x.size(0), channels = x.size(1), spatial = x.size(2) * x.size(3);
    const int64_t total = x.numel();
    auto y = torch::empty_like(x);
    auto planes = torch::empty({2, batch * channels}, x.options());
    auto statistics = torch::empty({2, channels}, x.options());
    float *means = planes.data_ptr<float>(), *m2s = means + batch * channels;
    float *mean = statistics.data_ptr<float>(), *inverse = mean + channels;
    plane_kernel<<<batch * channels, THREADS>>>(x.data_ptr<float>(), means, m2s, spatial);
    merge_kernel<<<(channels + 31) / 32, 32>>>(means, m2s, mean, inverse, batch, channels, spatial, (float)eps);
    apply_kernel<<<(total + 255) / 256, 256>>>(x.data_ptr<float>(), mean, inverse, gamma.data_ptr<float>(),
                                               beta.data_ptr<float>(), y.data_ptr<float>(), total, channels, spatial);
    return y;
}
"""

CPP = """
torch::Tensor batchnorm_cuda(torch::Tensor x, torch::Tensor gamma, torch::Tensor beta, double eps);
"""

extension = load_inline(
    name="batchnorm__split_statistics", cpp_sources=CPP, cuda_sources=CUDA, functions=["batchnorm_cuda"]
)


class ModelNew(nn.Module):
    def __init__(self, num_features: int):
        super().__init__()
        self.norm = nn.BatchNorm2d(num_features=num_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.batchnorm_cuda(x.contiguous(), self.norm.weight, self.norm.bias, self.norm.eps)
