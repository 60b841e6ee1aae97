"""Group normalisation, one program per group of one sample: statistics in two passes, then the result.

problem: groupnorm
style: looped
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def groupnorm_kernel(x_ptr, w_ptr, b_ptr, out_ptr, groups, per_group, area, eps, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    group = pid % groups
    size = per_group * area
    base = pid * size
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, size, BLOCK):
        i = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + base + i, mask=i < size, other=0.0)
    mean = tl.sum(total, axis=0) / size
    spread = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, size, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + base + i, mask=i < size, other=0.0)
        centred = tl.where(i < size, x - mean, 0.0)
        spread += centred * centred
    rstd = 1.0 / tl.sqrt(tl.sum(spread, axis=0) / size + eps)
    for start in range(0, size, BLOCK):
        i = start + tl.arange(0, BLOCK)
        mask = i < size
        channel = group * per_group + i // area
        x = tl.load(x_ptr + base + i, mask=mask, other=0.0)
        w = tl.load(w_ptr + channel, mask=mask, other=0.0)
        b = tl.load(b_ptr + channel, mask=mask, other=0.0)
        tl.store(out_ptr + base + i, (x - mean) * rstd * w + b, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, num_features, num_groups):
        super().__init__()
        self.norm = nn.GroupNorm(num_groups, num_features)

    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        batch, channels = x.shape[:2]
        groups = self.norm.num_groups
        area = x.numel() // (batch * channels)
        groupnorm_kernel[(batch * groups,)](
            x, self.norm.weight, self.norm.bias, out, groups, channels // groups, area, self.norm.eps, BLOCK=4096
        )
        return out
