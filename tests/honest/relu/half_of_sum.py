"""ReLU as (x + |x|) / 2: exact, since both terms are equal or cancel."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + x.abs()) * 0.5
