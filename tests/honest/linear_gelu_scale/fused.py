"""The chain written out, with the scale folded into the one half of GELU."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, in_features: int, out_features: int, scaling_factor: float):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.scaling_factor = scaling_factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:

        z = x @ self.linear.weight.t() + self.linear.bias
        return (0.5 * self.scaling_factor * z * (1.0 + torch.erf(z * 0.7071067811865476))).clamp(-2.0, 2.0)
