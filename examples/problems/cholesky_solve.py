"""Solve with symmetric positive definite matrices."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        return torch.cholesky_solve(B, torch.linalg.cholesky(A))


batch_size = 8
N = 48
columns = 16


def get_inputs():
    G = torch.rand(batch_size, N, N)
    return [G @ G.mT / N + torch.eye(N), torch.rand(batch_size, N, columns)]


def get_init_inputs():
    return []
