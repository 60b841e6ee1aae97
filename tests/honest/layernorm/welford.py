"""Welford's running mean and squared deviation, column by column."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:

        mean = torch.zeros_like(x[..., 0])
        squares = torch.zeros_like(mean)
        for count, column in enumerate(x.unbind(dim=-1), start=1):
            delta = column - mean
            mean = mean + delta / count
            squares = squares + delta * (column - mean)
        scale = torch.rsqrt(squares / x.shape[-1] + self.norm.eps)
        return (x - mean[..., None]) * scale[..., None] * self.norm.weight + self.norm.bias
