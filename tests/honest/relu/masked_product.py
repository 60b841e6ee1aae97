"""ReLU as a product with the mask, on a copy."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (x > 0).to(x.dtype)
