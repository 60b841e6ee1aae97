"""Root-mean-square normalisation, the squares summed by einsum."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, num_features: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:

        squares = torch.einsum("bchw,bchw->bhw", x, x)[:, None]
        return x / torch.sqrt(squares / x.shape[1] + self.eps)
