"""Max pooling over unfolded windows of an input padded with minus infinity."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, kernel_size: int, stride: int, padding: int):
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding

    def forward(self, x: torch.Tensor) -> torch.Tensor:

        pad = self.padding
        padded = nn.functional.pad(x, (pad, pad, pad, pad), value=float("-inf"))
        windows = padded.unfold(2, self.kernel_size, self.stride).unfold(3, self.kernel_size, self.stride)
        return windows.amax(dim=(-1, -2))
