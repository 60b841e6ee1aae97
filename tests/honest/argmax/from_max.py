"""The index that max returns beside the value."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.max(dim=self.dim).indices
