"""Batch normalisation from the batch's own mean and biased variance."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, num_features: int):
        super().__init__()
        self.norm = nn.BatchNorm2d(num_features=num_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:

        mean = x.mean(dim=(0, 2, 3), keepdim=True)
        variance = (x - mean).square().mean(dim=(0, 2, 3), keepdim=True)
        weight, bias = self.norm.weight[:, None, None], self.norm.bias[:, None, None]
        return (x - mean) * torch.rsqrt(variance + self.norm.eps) * weight + bias
