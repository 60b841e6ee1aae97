"""GELU as x times the distribution function of a normal variable."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.special.ndtr(x)
