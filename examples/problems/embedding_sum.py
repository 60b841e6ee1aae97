"""Sum of embeddings of integer tokens: the only input is integers."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, vocabulary: int, dim: int):
        super().__init__()
        self.table = nn.Embedding(vocabulary, dim)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.table(tokens).sum(dim=1)


batch_size = 64
length = 48
vocabulary = 512
dim = 64


def get_inputs():
    return [torch.randint(0, vocabulary, (batch_size, length))]


def get_init_inputs():
    return [vocabulary, dim]
