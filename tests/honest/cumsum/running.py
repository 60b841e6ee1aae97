"""Cumulative sum as a running sum, one column after another."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:

        total = torch.zeros_like(x.select(self.dim, 0))
        out = []
        for column in x.unbind(dim=self.dim):
            total = total + column
            out.append(total)
        return torch.stack(out, dim=self.dim)
