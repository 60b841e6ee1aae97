"""Softmax of long rows: one pass keeps a maximum and a sum per lane, a second one divides.

problem: level1/23
style: online
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, COLS, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * COLS
    y_ptr += row * COLS
    lanes = tl.arange(0, BLOCK)

    largest = tl.full((BLOCK,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, COLS, BLOCK):
        cols = start + lanes
        x = tl.load(x_ptr + cols, mask=cols < COLS, other=float("-inf"))
        wider = tl.maximum(largest, x)
        # A lane that has seen nothing yet keeps its sum of zero: -inf - -inf would be NaN.
        seen = wider > float("-inf")
        shift = tl.where(seen, wider, 0.0)
        total = total * tl.exp(largest - shift) + tl.exp(x - shift)
        largest = wider

    row_max = tl.max(largest, axis=0)
    row_sum = tl.sum(total * tl.exp(largest - row_max), axis=0)
    for start in range(0, COLS, BLOCK):
        cols = start + lanes
        x = tl.load(x_ptr + cols, mask=cols < COLS, other=0.0)
        tl.store(y_ptr + cols, tl.exp(x - row_max) / row_sum, mask=cols < COLS)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        rows, cols = x.shape
        block = min(4096, triton.next_power_of_2(cols))
        softmax_kernel[(rows,)](x, y, cols, BLOCK=block, num_warps=8)
        return y
