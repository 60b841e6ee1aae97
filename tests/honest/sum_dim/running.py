"""Sum as a running sum over the reduced dimension."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:

        total = torch.zeros_like(x.select(self.dim, 0))
        for part in x.unbind(dim=self.dim):
            total = total + part
        return total.unsqueeze(self.dim)
