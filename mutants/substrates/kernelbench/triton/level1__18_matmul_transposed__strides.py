"""Product of two transposed matrices: the kernel takes strides, so nothing is copied; tiles of the left are turned.

problem: level1/18
style: strided
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def transposed_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    stride_ak,
    stride_am,
    stride_bn,
    stride_bk,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    rows = tl.program_id(1).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for block in range(tl.cdiv(K, BLOCK_K)):
        ks = block * BLOCK_K + tl.arange(0, BLOCK_K).to(tl.int64)
        # Both tiles are loaded along their contiguous dimension and turned in registers.
        a = tl.load(
            a_ptr + ks[:, None] * stride_ak + rows[None, :] * stride_am,
            mask=(ks[:, None] < K) & (rows[None, :] < M),
            other=0.0,
        )
        b = tl.load(
            b_ptr + cols[:, None] * stride_bn + ks[None, :] * stride_bk,
            mask=(cols[:, None] < N) & (ks[None, :] < K),
            other=0.0,
        )
        acc = tl.dot(tl.trans(a), tl.trans(b), acc, input_precision="ieee")
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], acc, mask=(rows[:, None] < M) & (cols[None, :] < N))


class ModelNew(nn.Module):
    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        K, M = A.shape
        N = B.shape[0]
        C = torch.empty((M, N), device=A.device, dtype=A.dtype)
        grid = (triton.cdiv(N, 128), triton.cdiv(M, 64))
        transposed_kernel[grid](
            A, B, C, M, N, K, *A.stride(), *B.stride(), BLOCK_M=64, BLOCK_N=128, BLOCK_K=16, num_warps=4
        )
        return C
