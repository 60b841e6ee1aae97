"""Softmax whose sum is a running sum from left to right, as one thread a row does it."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:

        e = torch.exp(x - x.amax(dim=-1, keepdim=True))
        total = torch.zeros_like(e[:, 0])
        for column in e.unbind(dim=-1):
            total = total + column
        return e / total[:, None]
