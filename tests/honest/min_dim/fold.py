"""Minimum folded slice by slice."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:

        best = torch.full_like(x.select(self.dim, 0), float("inf"))
        for part in x.unbind(dim=self.dim):
            best = torch.minimum(best, part)
        return best
