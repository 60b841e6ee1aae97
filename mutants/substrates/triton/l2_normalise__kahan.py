"""Rows over their Euclidean norm; the squares are added piece by piece with compensation.

problem: l2_normalise
style: compensated
"""

import torch
import triton
import triton.language as tl


@triton.jit
def normalise_kernel(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    start = tl.program_id(0) * columns
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    lost = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, columns, BLOCK):
        column = first + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + start + column, mask=column < columns, other=0.0)
        piece = x * x - lost
        larger = total + piece
        lost = (larger - total) - piece
        total = larger
    norm = tl.maximum(tl.sqrt(tl.sum(total, axis=0)), 1e-12)
    for first in range(0, columns, BLOCK):
        column = first + tl.arange(0, BLOCK)
        mask = column < columns
        x = tl.load(x_ptr + start + column, mask=mask, other=0.0)
        tl.store(out_ptr + start + column, x / norm, mask=mask)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        rows, columns = x.shape
        normalise_kernel[(rows,)](x, out, columns, BLOCK=128, num_warps=4)
        return out
