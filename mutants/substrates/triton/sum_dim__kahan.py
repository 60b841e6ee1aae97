"""Sum over the middle dimension, a row at a time, with compensation for what rounding loses.

problem: sum_dim
style: compensated
"""

import torch
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, out_ptr, columns, size, inner, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = column < columns
    base = (column // inner) * size * inner + column % inner
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    lost = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, size, CHUNK):
        step = first + tl.arange(0, CHUNK)
        mask = (step[:, None] < size) & live[None, :]
        x = tl.load(x_ptr + base[None, :] + step[:, None] * inner, mask=mask, other=0.0)
        piece = tl.sum(x, axis=0) - lost
        larger = total + piece
        lost = (larger - total) - piece
        total = larger
    tl.store(out_ptr + column, total, mask=live)


class ModelNew(torch.nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        x = x.contiguous()
        shape = list(x.shape)
        size = shape[self.dim]
        shape[self.dim] = 1
        inner = x.stride(self.dim)
        columns = x.numel() // size
        out = torch.empty(shape, device=x.device, dtype=x.dtype)
        sum_kernel[(triton.cdiv(columns, 512),)](x, out, columns, size, inner, CHUNK=16, BLOCK=512, num_warps=8)
        return out
