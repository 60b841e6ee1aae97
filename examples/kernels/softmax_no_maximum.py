"""Wrong: exp(x) / sum(exp(x)) without subtracting the row's maximum first. Overflows as soon as a logit exceeds 88."""

import torch
import triton
import triton.language as tl

ROWS = 16


@triton.jit
def softmax_kernel(x_ptr, y_ptr, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    mask = (row < rows) & (column < columns)
    x = tl.load(x_ptr + row * columns + column, mask=mask, other=-float("inf"))
    e = tl.exp(x)
    tl.store(y_ptr + row * columns + column, e / tl.sum(e, axis=1)[:, None], mask=mask)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        columns = x.shape[-1]
        rows = x.numel() // columns
        block = triton.next_power_of_2(columns)
        softmax_kernel[(triton.cdiv(rows, ROWS),)](x, y, rows, columns, ROWS=ROWS, BLOCK=block)
        return y
