"""First place of a stable descending sort."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:

        order = torch.sort(x, dim=self.dim, descending=True, stable=True).indices
        return order.select(self.dim, 0)
