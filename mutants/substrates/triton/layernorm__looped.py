"""Layer normalisation that loops over each row in pieces: mean, variance, result.

problem: layernorm
style: looped
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def layernorm_kernel(x_ptr, w_ptr, b_ptr, out_ptr, rows, columns, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    base = row[:, None] * columns
    total = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)[None, :]
        mask = (row[:, None] < rows) & (column < columns)
        total += tl.load(x_ptr + base + column, mask=mask, other=0.0)
    mean = tl.sum(total, axis=1) / columns
    squares = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)[None, :]
        mask = (row[:, None] < rows) & (column < columns)
        x = tl.load(x_ptr + base + column, mask=mask, other=0.0)
        distance = tl.where(mask, x - mean[:, None], 0.0)
        squares += distance * distance
    rstd = tl.rsqrt(tl.sum(squares, axis=1) / columns + eps)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)[None, :]
        mask = (row[:, None] < rows) & (column < columns)
        x = tl.load(x_ptr + base + column, mask=mask, other=0.0)
        w = tl.load(w_ptr + column, mask=column < columns)
        b = tl.load(b_ptr + column, mask=column < columns)
        y = (x - mean[:, None]) * rstd[:, None]
        tl.store(out_ptr + base + column, y * w + b, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, shape[-1]).contiguous()
        out = torch.empty_like(x)
        rows, columns = x.shape
        grid = (triton.cdiv(rows, 64),)
        layernorm_kernel[grid](
            x, self.norm.weight, self.norm.bias, out, rows, columns, self.norm.eps, ROWS=64, BLOCK=128, num_warps=8
        )
        return out.view(shape)
