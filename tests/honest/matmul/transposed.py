"""Product as the transpose of the swapped product."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        return (B.t() @ A.t()).t()
