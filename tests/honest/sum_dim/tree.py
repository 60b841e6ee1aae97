"""Sum as a tree of pairwise additions."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:

        parts = list(x.unbind(dim=self.dim))
        while len(parts) > 1:
            pairs = [a + b for a, b in zip(parts[::2], parts[1::2], strict=False)]
            parts = pairs + parts[2 * len(pairs) :]
        return parts[0].unsqueeze(self.dim)
