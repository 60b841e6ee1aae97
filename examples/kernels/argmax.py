"""Right: the first index at which the maximum stands."""

import torch


class ModelNew(torch.nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        is_maximum = x == x.amax(self.dim, keepdim=True)
        size = x.shape[self.dim]
        view = [1] * x.dim()
        view[self.dim] = size
        index = torch.arange(size, device=x.device).view(view).expand(x.shape)
        return torch.where(is_maximum, index, size).amin(self.dim)
