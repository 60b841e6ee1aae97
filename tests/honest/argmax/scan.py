"""A scan that keeps the first of equal values."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:

        slices = x.unbind(dim=self.dim)
        best, place = slices[0].clone(), torch.zeros_like(slices[0], dtype=torch.int64)
        for index, value in enumerate(slices[1:], start=1):
            better = value > best
            best, place = torch.where(better, value, best), torch.where(better, index, place)
        return place
