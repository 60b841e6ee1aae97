"""Mean over the elements in reverse order."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (predictions - targets).flatten().flip(0).pow(2).mean()
