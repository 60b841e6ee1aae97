"""One partial sum a lane over strided elements, then a tree over the lanes, as a block of threads does it."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:

        d = (predictions - targets).flatten().square()
        lanes = nn.functional.pad(d, (0, -d.numel() % 256)).view(-1, 256).sum(dim=0)
        while lanes.numel() > 1:
            lanes = lanes[: lanes.numel() // 2] + lanes[lanes.numel() // 2 :]
        return lanes[0] / d.numel()
