"""Group normalisation by hand."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, num_features: int, num_groups: int):
        super().__init__()
        self.norm = nn.GroupNorm(num_groups=num_groups, num_channels=num_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:

        rows = x.reshape(x.shape[0], self.norm.num_groups, -1)
        centred = rows - rows.mean(dim=2, keepdim=True)
        scale = torch.rsqrt(centred.square().mean(dim=2, keepdim=True) + self.norm.eps)
        weight, bias = self.norm.weight[:, None, None], self.norm.bias[:, None, None]
        return (centred * scale).view_as(x) * weight + bias
