"""Mean and unbiased standard deviation of rows: each half about its own mean, then both together.

problem: mean_std
style: two-part
"""

import torch
import triton
import triton.language as tl


@triton.jit
def mean_std_kernel(x_ptr, mean_ptr, std_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    live = column < columns
    x = tl.load(x_ptr + row * columns + column, mask=live, other=0.0)
    left_count = columns // 2
    right_count = columns - left_count
    left = column < left_count
    right = live & (column >= left_count)
    left_mean = tl.sum(tl.where(left, x, 0.0), axis=0) / tl.maximum(left_count, 1)
    right_mean = tl.sum(tl.where(right, x, 0.0), axis=0) / right_count
    centred = tl.where(left, x - left_mean, tl.where(right, x - right_mean, 0.0))
    delta = right_mean - left_mean
    share = right_count / columns
    m2 = tl.sum(centred * centred, axis=0) + delta * delta * (left_count * share)
    tl.store(mean_ptr + row, left_mean + delta * share)
    tl.store(std_ptr + row, tl.sqrt(m2 / (columns - 1)))


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = x.contiguous()
        rows, columns = x.shape
        mean = torch.empty(rows, device=x.device, dtype=x.dtype)
        std = torch.empty(rows, device=x.device, dtype=x.dtype)
        block = triton.next_power_of_2(columns)
        mean_std_kernel[(rows,)](x, mean, std, columns, BLOCK=block, num_warps=4)
        return mean, std
