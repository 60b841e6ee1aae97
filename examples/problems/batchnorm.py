"""Batch normalisation in training mode: statistics of the batch, not the running ones."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, num_features: int):
        super().__init__()
        self.norm = nn.BatchNorm2d(num_features=num_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


batch_size = 16
features = 16
dim1 = 24
dim2 = 24


def get_inputs():
    return [torch.rand(batch_size, features, dim1, dim2)]


def get_init_inputs():
    return [features]
