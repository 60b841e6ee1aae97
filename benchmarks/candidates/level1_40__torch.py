"""Layer normalisation over three dimensions, two passes by hand."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, normalized_shape: tuple):
        super().__init__()
        self.ln = nn.LayerNorm(normalized_shape=normalized_shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:

        flat = x.flatten(1)
        centred = flat - flat.mean(dim=1, keepdim=True)
        scale = torch.rsqrt(centred.square().mean(dim=1, keepdim=True) + self.ln.eps)
        return (centred * scale).view_as(x) * self.ln.weight + self.ln.bias
