"""Sums only over the indices between column and row."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:

        out = torch.zeros_like(A)
        for i in range(A.shape[0]):
            out[i, : i + 1] = A[i, : i + 1] @ B[: i + 1, : i + 1]
        return out
