"""Mean, then the unbiased deviation."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:

        mean = x.sum(dim=1) / x.shape[1]
        squares = (x - mean[:, None]).square().sum(dim=1)
        return mean, torch.sqrt(squares / (x.shape[1] - 1))
