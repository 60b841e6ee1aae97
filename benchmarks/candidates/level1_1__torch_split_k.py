"""Square product in four pieces of the shared dimension."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:

        out = A.new_zeros(A.shape[0], B.shape[1])
        for a, b in zip(A.chunk(4, dim=1), B.chunk(4, dim=0), strict=True):
            out.addmm_(a, b)
        return out
