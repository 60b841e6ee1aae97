"""Sums of blocks of rows, added and divided once."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:

        total = predictions.new_zeros(())
        for p, t in zip(predictions.split(37), targets.split(37), strict=True):
            total = total + (p - t).pow(2).sum()
        return total / predictions.numel()
