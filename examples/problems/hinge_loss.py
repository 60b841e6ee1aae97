"""Hinge loss of scores against labels that are +1 or -1, as floating-point numbers."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.mean(torch.clamp(1 - scores * labels, min=0))


batch_size = 4096
num_scores = 64


def get_inputs():
    return [torch.rand(batch_size, num_scores), torch.randint(0, 2, (batch_size, 1)).float() * 2 - 1]


def get_init_inputs():
    return []
