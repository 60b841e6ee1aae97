"""Rows divided by the mean of their absolute values, the block size chosen by a heuristic.

problem: l1norm
style: row-block
"""

import torch
import triton
import triton.language as tl


@triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["columns"])})
@triton.jit
def l1norm_kernel(x_ptr, out_ptr, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    mask = (row < rows) & (column < columns)
    x = tl.load(x_ptr + row * columns + column, mask=mask, other=0.0)
    mean = tl.sum(tl.abs(x), axis=1)[:, None] / columns
    tl.store(out_ptr + row * columns + column, x / mean, mask=mask)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        rows, columns = x.shape
        l1norm_kernel[(triton.cdiv(rows, 8),)](x, out, rows, columns, ROWS=8, num_warps=16)
        return out
