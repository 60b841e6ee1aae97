"""Softmax by hand, a few rows at a time."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:

        out = torch.empty_like(x)
        for source, target in zip(x.split(256), out.split(256), strict=True):
            e = torch.exp(source - source.amax(dim=1, keepdim=True))
            torch.div(e, e.sum(dim=1, keepdim=True), out=target)
        return out
