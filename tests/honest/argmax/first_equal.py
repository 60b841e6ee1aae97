"""The smallest index whose value equals the maximum."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:

        top = x == x.amax(dim=self.dim, keepdim=True)
        shape = [1] * x.dim()
        shape[self.dim] = -1
        index = torch.arange(x.shape[self.dim], device=x.device).view(shape)
        return torch.where(top, index, x.shape[self.dim]).amin(dim=self.dim)
