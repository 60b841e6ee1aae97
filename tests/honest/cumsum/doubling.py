"""Cumulative sum by doubling strides (Hillis and Steele)."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:

        out, stride = x.clone(), 1
        while stride < x.shape[self.dim]:
            shifted = out.clone()
            n = x.shape[self.dim] - stride
            shifted.narrow(self.dim, stride, n).add_(out.narrow(self.dim, 0, n))
            out, stride = shifted, stride * 2
        return out
