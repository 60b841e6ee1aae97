"""GELU through the complementary error function, accurate in the left tail."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x * torch.erfc(-x * 0.7071067811865476)
