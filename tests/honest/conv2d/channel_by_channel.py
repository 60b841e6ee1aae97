"""Convolution added up one input channel after another."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, padding: int):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=padding)

    def forward(self, x: torch.Tensor) -> torch.Tensor:

        out = None
        for c in range(x.shape[1]):
            part = nn.functional.conv2d(x[:, c : c + 1], self.conv.weight[:, c : c + 1], padding=self.conv.padding)
            out = part if out is None else out + part
        return out + self.conv.bias[None, :, None, None]
