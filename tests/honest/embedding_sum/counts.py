"""Sum of embeddings as a product of token counts with the table."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, vocabulary: int, dim: int):
        super().__init__()
        self.table = nn.Embedding(vocabulary, dim)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:

        counts = torch.zeros(tokens.shape[0], self.table.num_embeddings, device=tokens.device)
        counts.scatter_add_(1, tokens, torch.ones_like(tokens, dtype=counts.dtype))
        return counts @ self.table.weight
