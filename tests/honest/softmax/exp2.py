"""Softmax through exp2 with a folded constant, as flash attention does."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:

        scaled = x * 1.4426950408889634
        e = torch.exp2(scaled - scaled.amax(dim=-1, keepdim=True))
        return e / e.sum(dim=-1, keepdim=True)
