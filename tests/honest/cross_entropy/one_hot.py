"""Cross entropy as a product with one-hot labels."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:

        labels = nn.functional.one_hot(targets, predictions.shape[1]).to(predictions.dtype)
        return -(labels * torch.log_softmax(predictions, dim=1)).sum() / predictions.shape[0]
