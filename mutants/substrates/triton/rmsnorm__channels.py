"""Root-mean-square normalisation: a program owns a block of pixels and loops over the channels twice.

problem: rmsnorm
style: looped
"""

import torch
import triton
import triton.language as tl


@triton.jit
def rmsnorm_kernel(x_ptr, out_ptr, pixels, channels, area, eps, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = pixel < pixels
    base = (pixel // area) * channels * area + pixel % area
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, channels, CHUNK):
        channel = first + tl.arange(0, CHUNK)
        mask = live[None, :] & (channel[:, None] < channels)
        x = tl.load(x_ptr + base[None, :] + channel[:, None] * area, mask=mask, other=0.0)
        total += tl.sum(x * x, axis=0)
    scale = 1.0 / tl.sqrt(total / channels + eps)
    for first in range(0, channels, CHUNK):
        channel = first + tl.arange(0, CHUNK)
        mask = live[None, :] & (channel[:, None] < channels)
        place = base[None, :] + channel[:, None] * area
        x = tl.load(x_ptr + place, mask=mask, other=0.0)
        tl.store(out_ptr + place, x * scale[None, :], mask=mask)


class ModelNew(torch.nn.Module):
    def __init__(self, num_features, eps=1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        channels = x.shape[1]
        pixels = x.numel() // channels
        area = pixels // x.shape[0]
        grid = (triton.cdiv(pixels, 512),)
        rmsnorm_kernel[grid](x, out, pixels, channels, area, self.eps, CHUNK=32, BLOCK=512, num_warps=16)
        return out
