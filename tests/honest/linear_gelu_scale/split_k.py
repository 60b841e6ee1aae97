"""The chain with the product in two pieces."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, in_features: int, out_features: int, scaling_factor: float):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.scaling_factor = scaling_factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:

        half = x.shape[1] // 2
        weight = self.linear.weight
        z = torch.addmm(self.linear.bias, x[:, :half], weight[:, :half].t())
        z = torch.addmm(z, x[:, half:], weight[:, half:].t())
        return torch.clamp(nn.functional.gelu(z) * self.scaling_factor, -2.0, 2.0)
