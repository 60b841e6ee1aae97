"""The better of two halves; the first half wins a tie."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:

        half = x.shape[self.dim] // 2
        first, second = x.split([half, x.shape[self.dim] - half], dim=self.dim)
        if half == 0:
            return torch.argmax(second, dim=self.dim)
        a, b = first.max(dim=self.dim), second.max(dim=self.dim)
        return torch.where(a.values >= b.values, a.indices, b.indices + half)
