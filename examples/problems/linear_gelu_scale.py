"""A fused chain: linear layer, GELU, scale, clamp."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_features: int, out_features: int, scaling_factor: float):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.scaling_factor = scaling_factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.gelu(self.linear(x))
        return torch.clamp(x * self.scaling_factor, min=-2.0, max=2.0)


batch_size = 128
in_features = 256
out_features = 192
scaling_factor = 2.0


def get_inputs():
    return [torch.rand(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features, scaling_factor]
