"""Triton layer normalisation, a program a row, two passes."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def norm_kernel(x_ptr, w_ptr, b_ptr, out_ptr, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0) * columns
    lane = tl.arange(0, BLOCK)
    inside = lane < columns
    x = tl.load(x_ptr + row + lane, mask=inside, other=0.0)
    mean = tl.sum(x, axis=0) / columns
    centred = tl.where(inside, x - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / columns + eps)
    weight = tl.load(w_ptr + lane, mask=inside)
    bias = tl.load(b_ptr + lane, mask=inside)
    tl.store(out_ptr + row + lane, centred * scale * weight + bias, mask=inside)


class ModelNew(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:

        x = x.contiguous()
        out = torch.empty_like(x)
        columns = x.shape[-1]
        norm_kernel[(x.numel() // columns,)](
            x, self.norm.weight, self.norm.bias, out, columns, self.norm.eps, BLOCK=triton.next_power_of_2(columns)
        )
        return out
