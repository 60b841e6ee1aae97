"""Layer normalisation of rows of millions: moments of chunks, joined per row, then every chunk is normalised.

problem: level1/40
style: three-stage
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def chunk_kernel(x_ptr, mean_ptr, m2_ptr, LENGTH, CHUNKS, CHUNK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    cols = chunk * CHUNK + tl.arange(0, CHUNK)
    mask = cols < LENGTH
    count = tl.minimum(LENGTH - chunk * CHUNK, CHUNK)
    x = tl.load(x_ptr + row * LENGTH + cols, mask=mask, other=0.0)
    mean = tl.sum(x, axis=0) / count
    delta = tl.where(mask, x - mean, 0.0)
    tl.store(mean_ptr + row * CHUNKS + chunk, mean)
    tl.store(m2_ptr + row * CHUNKS + chunk, tl.sum(delta * delta, axis=0))


@triton.jit
def row_kernel(mean_ptr, m2_ptr, center_ptr, rstd_ptr, LENGTH, CHUNKS, eps, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    weighted = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, CHUNKS, BLOCK):
        chunks = start + lanes
        mean = tl.load(mean_ptr + row * CHUNKS + chunks, mask=chunks < CHUNKS, other=0.0)
        share = tl.minimum(LENGTH - chunks * CHUNK, CHUNK).to(tl.float32) / LENGTH
        weighted += tl.where(chunks < CHUNKS, mean * share, 0.0)
    center = tl.sum(weighted, axis=0)
    spread = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, CHUNKS, BLOCK):
        chunks = start + lanes
        mask = chunks < CHUNKS
        mean = tl.load(mean_ptr + row * CHUNKS + chunks, mask=mask, other=0.0)
        m2 = tl.load(m2_ptr + row * CHUNKS + chunks, mask=mask, other=0.0)
        count = tl.minimum(LENGTH - chunks * CHUNK, CHUNK).to(tl.float32)
        spread += tl.where(mask, m2 + count * (mean - center) * (mean - center), 0.0)
    variance = tl.sum(spread, axis=0) / LENGTH
    tl.store(center_ptr + row, center)
    tl.store(rstd_ptr + row, 1.0 / tl.sqrt(variance + eps))


@triton.jit
def normalise_kernel(x_ptr, y_ptr, center_ptr, rstd_ptr, weight_ptr, bias_ptr, LENGTH, CHUNK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    mask = cols < LENGTH
    center = tl.load(center_ptr + row)
    rstd = tl.load(rstd_ptr + row)
    x = tl.load(x_ptr + row * LENGTH + cols, mask=mask, other=0.0)
    weight = tl.load(weight_ptr + cols, mask=mask, other=0.0)
    bias = tl.load(bias_ptr + cols, mask=mask, other=0.0)
    tl.store(y_ptr + row * LENGTH + cols, (x - center) * rstd * weight + bias, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, normalized_shape: tuple):
        super().__init__()
        self.ln = nn.LayerNorm(normalized_shape=normalized_shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        length = self.ln.weight.numel()
        rows = x.numel() // length
        chunks = triton.cdiv(length, 8192)
        mean = torch.empty((rows, chunks), device=x.device, dtype=x.dtype)
        m2 = torch.empty_like(mean)
        center = torch.empty(rows, device=x.device, dtype=x.dtype)
        rstd = torch.empty_like(center)
        y = torch.empty_like(x)
        chunk_kernel[(rows, chunks)](x, mean, m2, length, chunks, CHUNK=8192, num_warps=8)
        row_kernel[(rows,)](mean, m2, center, rstd, length, chunks, self.ln.eps, CHUNK=8192, BLOCK=512)
        normalise_kernel[(rows, chunks)](
            x, y, center, rstd, self.ln.weight, self.ln.bias, length, CHUNK=8192, num_warps=8
        )
        return y
