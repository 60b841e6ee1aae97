"""Sum of squares as a dot product of the difference with itself."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:

        d = (predictions - targets).flatten()
        return torch.dot(d, d) / d.numel()
