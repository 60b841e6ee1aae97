"""Mean squared error from sums of blocks of rows."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:

        total = predictions.new_zeros(())
        for p, t in zip(predictions.split(1024), targets.split(1024), strict=True):
            total = total + (p - t).square().sum()
        return total / predictions.numel()
