"""Batched product in two pieces of the shared dimension."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:

        half = A.shape[2] // 2
        out = torch.bmm(A[:, :, :half], B[:, :half])
        return out.baddbmm_(A[:, :, half:], B[:, half:])
