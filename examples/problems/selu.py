"""SELU: its two constants and its negative branch never show on unsigned inputs."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.selu(x)


batch_size = 32
dim = 1000


def get_inputs():
    return [torch.rand(batch_size, dim)]


def get_init_inputs():
    return []
