"""Right: squared differences are summed block by block, then the partial sums."""

import torch
import triton
import triton.language as tl


@triton.jit
def partial_sums(p_ptr, t_ptr, out_ptr, n, BLOCK: tl.constexpr):
    block = tl.program_id(0)
    offsets = block * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    difference = tl.load(p_ptr + offsets, mask=mask, other=0.0) - tl.load(t_ptr + offsets, mask=mask, other=0.0)
    tl.store(out_ptr + block, tl.sum(difference * difference, axis=0))


class ModelNew(torch.nn.Module):
    def forward(self, predictions, targets):
        predictions, targets = predictions.contiguous(), targets.contiguous()
        n = predictions.numel()
        blocks = triton.cdiv(n, 32768)
        sums = torch.empty(blocks, device=predictions.device, dtype=torch.float32)
        partial_sums[(blocks,)](predictions, targets, sums, n, BLOCK=32768)
        return sums.sum() / n
