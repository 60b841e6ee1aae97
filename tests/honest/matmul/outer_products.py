"""Product as a running sum of outer products: the order of one thread an output."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:

        out = A.new_zeros(A.shape[0], B.shape[1])
        for k in range(A.shape[1]):
            out.addr_(A[:, k], B[k])
        return out
