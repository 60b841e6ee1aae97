"""Hard tanh as a minimum of a maximum."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = torch.ones_like(x)
        return torch.minimum(torch.maximum(x, -one), one)
