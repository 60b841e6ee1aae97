"""Product of two transposed matrices as the transpose of the swapped product."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        return (B @ A).t().contiguous()
