"""Group normalisation, a few groups per program: statistics in two passes, then the result.

problem: groupnorm
style: looped
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def groupnorm_kernel(
    x_ptr, w_ptr, b_ptr, out_ptr, rows, groups, per_group, area, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    size = per_group * area
    base = row * size
    total = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for start in range(0, size, BLOCK):
        i = start + tl.arange(0, BLOCK)[None, :]
        total += tl.load(x_ptr + base + i, mask=(row < rows) & (i < size), other=0.0)
    mean = tl.sum(total, axis=1)[:, None] / size
    spread = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for start in range(0, size, BLOCK):
        i = start + tl.arange(0, BLOCK)[None, :]
        mask = (row < rows) & (i < size)
        x = tl.load(x_ptr + base + i, mask=mask, other=0.0)
        centred = tl.where(mask, x - mean, 0.0)
        spread += centred * centred
    rstd = 1.0 / tl.sqrt(tl.sum(spread, axis=1)[:, None] / size + eps)
    for start in range(0, size, BLOCK):
        i = start + tl.arange(0, BLOCK)[None, :]
        mask = (row < rows) & (i < size)
        channel = row % groups * per_group + i // area
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
        grid = (triton.cdiv(batch * groups, 8),)
        groupnorm_kernel[grid](
            x,
            self.norm.weight,
            self.norm.bias,
            out,
            batch * groups,
            groups,
            channels // groups,
            area,
            self.norm.eps,
            ROWS=8,
            BLOCK=1024,
            num_warps=8,
        )
        return out
