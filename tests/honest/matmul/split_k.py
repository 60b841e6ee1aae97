"""Product in pieces of the shared dimension, added one after another."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:

        out = A.new_zeros(A.shape[0], B.shape[1])
        for start in range(0, A.shape[1], 48):
            out += A[:, start : start + 48] @ B[start : start + 48]
        return out
