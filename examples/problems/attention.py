"""Scaled dot-product attention over several heads."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(Q, K, V)


batch_size = 2
num_heads = 4
sequence_length = 96
embedding_dimension = 32


def get_inputs():
    shape = (batch_size, num_heads, sequence_length, embedding_dimension)
    return [torch.rand(shape), torch.rand(shape), torch.rand(shape)]


def get_init_inputs():
    return []
