"""Mean over a dimension: tiles of 32 rows are added up lane by lane, and the lanes at the end.

problem: level1/48
style: tiled
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def mean_kernel(x_ptr, y_ptr, LENGTH, INNER, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    outer = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    rows = tl.arange(0, BLOCK_R)
    inside = cols[None, :] < INNER
    pointers = x_ptr + outer * LENGTH * INNER + rows.to(tl.int64)[:, None] * INNER + cols[None, :]
    total = tl.zeros((BLOCK_R, BLOCK_C), dtype=tl.float32)
    for start in range(0, LENGTH, BLOCK_R):
        total += tl.load(pointers, mask=inside & (start + rows[:, None] < LENGTH), other=0.0)
        pointers += BLOCK_R * INNER
    tl.store(y_ptr + outer * INNER + cols, tl.sum(total, axis=0) / LENGTH, mask=cols < INNER)


class ModelNew(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        dim = self.dim % x.dim()
        inner = x.stride(dim)
        outer = x.numel() // (inner * x.shape[dim])
        y = torch.empty(x.shape[:dim] + x.shape[dim + 1 :], device=x.device, dtype=x.dtype)
        grid = (outer, triton.cdiv(inner, 256))
        mean_kernel[grid](x, y, x.shape[dim], inner, BLOCK_R=32, BLOCK_C=256, num_warps=8)
        return y
