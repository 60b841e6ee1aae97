"""Convolution as a sum over taps of shifted products."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, padding: int):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=padding)

    def forward(self, x: torch.Tensor) -> torch.Tensor:

        size, pad = self.conv.kernel_size[0], self.conv.padding[0]
        padded = nn.functional.pad(x, (pad, pad, pad, pad))
        height, width = padded.shape[2] - size + 1, padded.shape[3] - size + 1
        out = self.conv.bias[None, :, None, None].expand(x.shape[0], -1, height, width).clone()
        for i in range(size):
            for j in range(size):
                window = padded[:, :, i : i + height, j : j + width]
                out += torch.einsum("bchw,oc->bohw", window, self.conv.weight[:, :, i, j])
        return out
