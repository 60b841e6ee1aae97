"""Cumulative sum in blocks, each shifted by the sums before it."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:

        parts, carry = [], 0.0
        for block in x.split(100, dim=self.dim):
            part = block.cumsum(dim=self.dim) + carry
            carry = part.narrow(self.dim, part.shape[self.dim] - 1, 1)
            parts.append(part)
        return torch.cat(parts, dim=self.dim)
