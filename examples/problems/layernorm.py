"""Layer normalisation over the last dimension, with weight and bias."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


batch_size = 32
sequence_length = 64
dim = 512


def get_inputs():
    return [torch.rand(batch_size, sequence_length, dim)]


def get_init_inputs():
    return [dim]
