"""Cross entropy in Triton, a program a row, then one mean."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def loss_kernel(x_ptr, t_ptr, out_ptr, classes, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * classes + lane, mask=lane < classes, other=-float("inf"))
    top = tl.max(x, axis=0)
    total = tl.sum(tl.exp(x - top), axis=0)
    chosen = tl.load(x_ptr + row * classes + tl.load(t_ptr + row))
    tl.store(out_ptr + row, tl.log(total) + top - chosen)


class ModelNew(nn.Module):
    def forward(self, predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:

        predictions = predictions.contiguous()
        rows, classes = predictions.shape
        losses = torch.empty(rows, device=predictions.device, dtype=torch.float32)
        loss_kernel[(rows,)](predictions, targets, losses, classes, BLOCK=triton.next_power_of_2(classes))
        return losses.mean()
