"""Root-mean-square normalisation from the library's vector norm."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, num_features: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:

        length = torch.linalg.vector_norm(x, dim=1, keepdim=True)
        return x / torch.sqrt(length * length / x.shape[1] + self.eps)
