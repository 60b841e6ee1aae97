"""Sum as a product with a vector of ones."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:

        ones = torch.ones(x.shape[self.dim], device=x.device, dtype=x.dtype)
        return (x.movedim(self.dim, -1) @ ones).unsqueeze(self.dim)
