"""Softmax over rows of 1,000 logits."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=-1)


batch_size = 256
dim = 1000


def get_inputs():
    return [torch.rand(batch_size, dim)]


def get_init_inputs():
    return []
