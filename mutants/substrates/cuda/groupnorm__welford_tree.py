"""Welford triples of all threads merged as a tree in shared memory; the output is a kernel of its own.

problem: groupnorm
style: two kernels, Welford
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

constexpr int THREADS = 64;

struct Moments {
    float count, mean, m2;
};

__device__ Moments merged(const Moments& a, const Moments& b) {
    const float count = a.count + b.count;
    if (count == 0.0f) return a;
    const float delta = b.mean - a.mean;
    return {count, a.mean + delta * b.count / count, a.m2 + b.m2 + delta * delta * a.count * b.count / count};
}

__global__ void moments_kernel(const float* __restrict__ x, float2* __restrict__ statistics, int n, float eps) {
    __shared__ float counts[THREADS], means[THREADS], m2s[THREADS];
    const int t = threadIdx.x;
    const float* in = x + (int64_t)blockIdx.x * n;
    Moments own = {0.0f, 0.0f, 0.0f};
    for (int i = t; i < n; i += THREADS) {
        own.count += 1.0f;
        const float delta = in[i] - own.mean;
        own.mean += delta / own.count;
        own.m2 += delta * (in[i] - own.mean);
    }
    for (int s = THREADS / 2; s > 0; s /= 2) {
        if (t >= s && t < 2 * s) {
            counts[t] = own.count;
            means[t] = own.mean;
            m2s[t] = own.m2;
        }
        __syncthreads();
        if (t < s) own = merged(own, {counts[t + s], means[t + s], m2s[t + s]});
    }
    if (t == 0) statistics[blockIdx.x] = make_float2(own.mean, rsqrtf(own.m2 / own.count + eps));
}

__global__ void apply_kernel(const float* __restrict__ x, const float2* __restrict__ statistics,
                             const float* __restrict__ gamma, const float* __restrict__ beta, float* __restrict__ y,
                             int64_t total, int channels, int spatial, int n) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= total) return;
    const float2 s = statistics[i / n];
    const int c = (i / spatial) % channels;
    y[i] = (x[i] - s.x) * s.y * gamma[c] + beta[c];
}

torch::Tensor groupnorm_cuda(torch::Tensor x, torch::Tensor gamma, torch::Tensor beta, int64_t groups, double eps) {
    const int batch = x.size(0), channels = x.size(1);
    const int64_t total = x.numel();
    const int spatial = total / ((int64_t)batch * channels), n = channels / groups * spatial;
    auto y = torch::empty_like(x);
    auto statistics = torch::empty({batch * groups, 2}, x.options());
    float2* pairs = reinterpret_cast<float2*>(statistics.data_ptr<float>());
    moments_kernel<<<batch * groups, THREADS>>>(x.data_ptr<float>(), pairs, n, eps);
    apply_kernel<<<(total + 255) / 256, 256>>>(x.data_ptr<float>(), pairs, gamma.data_ptr<float>(),
                                               beta.data_ptr<float>(), y.data_ptr<float>(), total, channels, spatial,
                                               n);
    return y;
}
"""

CPP = """
torch::Tensor groupnorm_cuda(torch::Tensor x, torch::Tensor gamma, torch::Tensor beta, int64_t groups, double eps);
"""

extension = load_inline(
    name="groupnorm__welford_tree", cpp_sources=CPP, cuda_sources=CUDA, functions=["groupnorm_cuda"]
)


class ModelNew(nn.Module):
    def __init__(self, num_features: int, num_groups: int):
        super().__init__()
        self.norm = nn.GroupNorm(num_groups=num_groups, num_channels=num_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        norm = self.norm
        return extension.groupnorm_cuda(x.contiguous(), norm.weight, norm.bias, norm.num_groups, norm.eps)
