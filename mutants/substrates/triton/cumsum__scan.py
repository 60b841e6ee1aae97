"""Cumulative sum, whole rows per program, one scan.

problem: cumsum
style: scan
"""

import torch
import triton
import triton.language as tl


@triton.jit
def scan_kernel(x_ptr, out_ptr, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    lane = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (lane < columns)
    x = tl.load(x_ptr + row * columns + lane, mask=inside, other=0.0)
    tl.store(out_ptr + row * columns + lane, tl.cumsum(x, axis=1), mask=inside)


class ModelNew(torch.nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        moved = x.movedim(self.dim, -1).contiguous()
        out = torch.empty_like(moved)
        columns = moved.shape[-1]
        rows = moved.numel() // columns
        grid = (triton.cdiv(rows, 4),)
        scan_kernel[grid](moved, out, rows, columns, ROWS=4, BLOCK=triton.next_power_of_2(columns), num_warps=8)
        return out.movedim(-1, self.dim)
