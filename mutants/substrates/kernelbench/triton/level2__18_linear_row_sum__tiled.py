"""Linear layer whose tiles leave only their row sums; a second kernel adds them and ends the chain.

problem: level2/18
style: tiled
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def tile_sum_kernel(
    x_ptr,
    w_ptr,
    b_ptr,
    part_ptr,
    ROWS,
    INPUTS,
    OUTPUTS,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_rows = rows < ROWS
    in_cols = cols < OUTPUTS
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, INPUTS, BLOCK_K):
        ks = start + tl.arange(0, BLOCK_K)
        known = ks < INPUTS
        x = tl.load(
            x_ptr + rows.to(tl.int64)[:, None] * INPUTS + ks[None, :], mask=in_rows[:, None] & known[None, :], other=0.0
        )
        w = tl.load(
            w_ptr + cols.to(tl.int64)[None, :] * INPUTS + ks[:, None], mask=in_cols[None, :] & known[:, None], other=0.0
        )
        acc = tl.dot(x, w, acc, input_precision="ieee")
    acc += tl.load(b_ptr + cols, mask=in_cols, other=0.0)[None, :]
    sums = tl.sum(tl.where(in_cols[None, :], acc, 0.0), axis=1)
    tl.store(part_ptr + rows.to(tl.int64) * tl.num_programs(1) + tl.program_id(1), sums, mask=in_rows)


@triton.jit
def chain_kernel(part_ptr, y_ptr, ROWS, PARTS, BLOCK_M: tl.constexpr, BLOCK_P: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    total = tl.zeros((BLOCK_M, BLOCK_P), dtype=tl.float32)
    for start in range(0, PARTS, BLOCK_P):
        parts = start + tl.arange(0, BLOCK_P)
        mask = (rows[:, None] < ROWS) & (parts[None, :] < PARTS)
        total += tl.load(part_ptr + rows[:, None] * PARTS + parts[None, :], mask=mask, other=0.0)
    value = tl.sum(total, axis=1)
    # Maximum and mean of one value are the value; so is its log-sum-exp, twice.
    value = value + tl.log(tl.exp(value - value))
    value = value + tl.log(tl.exp(value - value))
    tl.store(y_ptr + rows, value, mask=rows < ROWS)


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        rows, inputs = x.shape
        weight, bias = self.linear.weight, self.linear.bias
        outputs = weight.shape[0]
        tiles = triton.cdiv(outputs, 128)
        partial = torch.empty((rows, tiles), device=x.device, dtype=x.dtype)
        y = torch.empty((rows, 1), device=x.device, dtype=x.dtype)
        tile_sum_kernel[(triton.cdiv(rows, 32), tiles)](
            x, weight, bias, partial, rows, inputs, outputs, BLOCK_M=32, BLOCK_N=128, BLOCK_K=32, num_warps=4
        )
        chain_kernel[(triton.cdiv(rows, 32),)](partial, y, rows, tiles, BLOCK_M=32, BLOCK_P=64)
        return y
