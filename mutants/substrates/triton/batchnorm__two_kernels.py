"""Batch normalisation with the statistics of the batch: one kernel for them, one for the result.

problem: batchnorm
style: two-stage
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def statistics_kernel(x_ptr, mean_ptr, rstd_ptr, batch, channels, area, eps, BLOCK: tl.constexpr):
    channel = tl.program_id(0)
    count = batch * area
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        place = (i // area * channels + channel) * area + i % area
        total += tl.load(x_ptr + place, mask=i < count, other=0.0)
    mean = tl.sum(total, axis=0) / count
    spread = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        place = (i // area * channels + channel) * area + i % area
        x = tl.load(x_ptr + place, mask=i < count, other=0.0)
        centred = tl.where(i < count, x - mean, 0.0)
        spread += centred * centred
    variance = tl.sum(spread, axis=0) / count
    tl.store(mean_ptr + channel, mean)
    tl.store(rstd_ptr + channel, 1.0 / tl.sqrt(variance + eps))


@triton.jit
def normalise_kernel(x_ptr, mean_ptr, rstd_ptr, w_ptr, b_ptr, out_ptr, n, channels, area, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    channel = i // area % channels
    mean = tl.load(mean_ptr + channel, mask=mask)
    rstd = tl.load(rstd_ptr + channel, mask=mask)
    w = tl.load(w_ptr + channel, mask=mask)
    b = tl.load(b_ptr + channel, mask=mask)
    x = tl.load(x_ptr + i, mask=mask)
    tl.store(out_ptr + i, (x - mean) * rstd * w + b, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, num_features):
        super().__init__()
        self.norm = nn.BatchNorm2d(num_features)

    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        batch, channels = x.shape[:2]
        n = x.numel()
        area = n // (batch * channels)
        mean = torch.empty(channels, device=x.device, dtype=torch.float32)
        rstd = torch.empty(channels, device=x.device, dtype=torch.float32)
        statistics_kernel[(channels,)](x, mean, rstd, batch, channels, area, self.norm.eps, BLOCK=4096, num_warps=8)
        grid = (triton.cdiv(n, 8192),)
        normalise_kernel[grid](
            x, mean, rstd, self.norm.weight, self.norm.bias, out, n, channels, area, BLOCK=8192, num_warps=8
        )
        return out
