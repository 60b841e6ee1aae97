"""Kullback-Leibler divergence between rows of probabilities."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.kl_div(torch.log(predictions), targets, reduction="batchmean")


batch_size = 128
input_shape = (512,)


def get_inputs():
    scale = torch.rand(())
    return [
        (torch.rand(batch_size, *input_shape) * scale).softmax(dim=-1),
        torch.rand(batch_size, *input_shape).softmax(dim=-1),
    ]


def get_init_inputs():
    return []
