"""In-place ReLU on a copy: the input stays as it was."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.clone().relu_()
