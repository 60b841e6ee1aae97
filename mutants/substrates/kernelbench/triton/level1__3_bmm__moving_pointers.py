"""Batched matrix product: one axis of the grid is the batch, and a step moves the pointers of both operands.

problem: level1/3
style: tiled
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def bmm_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, TILES_N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    batch = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    rows = (tile // TILES_N) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = (tile % TILES_N) * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + batch * M * K + rows[:, None] * K + ks[None, :]
    b_ptrs = b_ptr + batch * K * N + ks[:, None] * N + cols[None, :]
    in_rows = rows[:, None] < M
    in_cols = cols[None, :] < N

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        a = tl.load(a_ptrs, mask=in_rows & (start + ks[None, :] < K), other=0.0)
        b = tl.load(b_ptrs, mask=in_cols & (start + ks[:, None] < K), other=0.0)
        acc += tl.dot(a, b, input_precision="ieee")
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K * N
    tl.store(c_ptr + batch * M * N + rows[:, None] * N + cols[None, :], acc, mask=in_rows & in_cols)


class ModelNew(nn.Module):
    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        A, B = A.contiguous(), B.contiguous()
        batch, M, K = A.shape
        N = B.shape[2]
        C = torch.empty((batch, M, N), device=A.device, dtype=A.dtype)
        tiles_n = triton.cdiv(N, 128)
        grid = (batch, triton.cdiv(M, 128) * tiles_n)
        bmm_kernel[grid](A, B, C, M, N, K, tiles_n, BLOCK_M=128, BLOCK_N=128, BLOCK_K=16, num_warps=8)
        return C
