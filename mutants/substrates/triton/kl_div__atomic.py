"""Kullback-Leibler divergence, averaged over the batch: blocks of elements that add to one number.

problem: kl_div
style: atomic
"""

import torch
import triton
import triton.language as tl


@triton.jit
def kl_kernel(p_ptr, t_ptr, out_ptr, n, batch, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    p = tl.load(p_ptr + i, mask=mask, other=1.0)
    t = tl.load(t_ptr + i, mask=mask, other=0.0)
    term = tl.where(t > 0.0, t * (tl.log(tl.where(t > 0.0, t, 1.0)) - tl.log(p)), 0.0)
    tl.atomic_add(out_ptr, tl.sum(term, axis=0) / batch)


class ModelNew(torch.nn.Module):
    def forward(self, predictions, targets):
        predictions, targets = predictions.contiguous(), targets.contiguous()
        out = torch.zeros((), device=predictions.device, dtype=torch.float32)
        n = predictions.numel()
        grid = lambda meta: (triton.cdiv(n, meta["BLOCK"]),)  # noqa: E731
        kl_kernel[grid](predictions, targets, out, n, predictions.shape[0], BLOCK=8192, num_warps=16)
        return out
