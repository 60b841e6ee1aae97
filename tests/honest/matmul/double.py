"""Product in double precision, rounded once: more accurate than the reference."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        return (A.double() @ B.double()).to(A.dtype)
