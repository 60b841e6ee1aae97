"""Root-mean-square normalisation with a reciprocal square root."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, num_features: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(dim=1, keepdim=True) + self.eps)
