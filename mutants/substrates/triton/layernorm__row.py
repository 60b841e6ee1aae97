"""Layer normalisation, a block of whole rows per program, the row kept in registers.

problem: layernorm
style: row-block
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def layernorm_kernel(x_ptr, w_ptr, b_ptr, out_ptr, rows, columns, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    mask = (row < rows) & (column < columns)
    x = tl.load(x_ptr + row * columns + column, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=1)[:, None] / columns
    centred = tl.where(mask, x - mean, 0.0)
    variance = tl.sum(centred * centred, axis=1)[:, None] / columns
    scale = 1.0 / tl.sqrt(variance + eps)
    weight = tl.load(w_ptr + column, mask=column < columns, other=0.0)
    bias = tl.load(b_ptr + column, mask=column < columns, other=0.0)
    tl.store(out_ptr + row * columns + column, centred * scale * weight + bias, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        columns = x.shape[-1]
        rows = x.numel() // columns
        layernorm_kernel[(triton.cdiv(rows, 32),)](
            x,
            self.norm.weight,
            self.norm.bias,
            out,
            rows,
            columns,
            self.norm.eps,
            ROWS=32,
            BLOCK=triton.next_power_of_2(columns),
            num_warps=16,
        )
        return out
