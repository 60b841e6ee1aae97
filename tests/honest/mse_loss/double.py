"""Mean in double precision, rounded once."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (predictions.double() - targets.double()).square().mean().to(predictions.dtype)
