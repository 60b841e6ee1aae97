"""ReLU by blocks of rows into one output."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:

        out = torch.empty_like(x)
        for start in range(0, x.shape[0], 7):
            torch.maximum(x[start : start + 7], x.new_zeros(()), out=out[start : start + 7])
        return out
