"""Convolution as a product with unfolded patches."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, padding: int):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=padding)

    def forward(self, x: torch.Tensor) -> torch.Tensor:

        size, pad = self.conv.kernel_size[0], self.conv.padding[0]
        patches = nn.functional.unfold(x, size, padding=pad)
        out = self.conv.weight.flatten(1) @ patches + self.conv.bias[:, None]
        height, width = x.shape[2] + 2 * pad - size + 1, x.shape[3] + 2 * pad - size + 1
        return out.view(x.shape[0], -1, height, width)
