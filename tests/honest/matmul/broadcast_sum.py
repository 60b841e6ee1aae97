"""Product by broadcasting a few rows at a time and summing."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:

        rows = [(block[:, :, None] * B[None]).sum(dim=1) for block in A.split(4)]
        return torch.cat(rows)
