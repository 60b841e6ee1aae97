"""Average pooling along rows; the padding counts as zeros.

problem: avgpool1d
style: tiled
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def avgpool_kernel(
    x_ptr,
    out_ptr,
    rows,
    length,
    out_length,
    stride,
    padding,
    KERNEL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    acc = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for tap in range(KERNEL):
        source = place * stride - padding + tap
        mask = (row < rows) & (source >= 0) & (source < length)
        acc += tl.load(x_ptr + row * length + source, mask=mask, other=0.0)
    keep = (row < rows) & (place < out_length)
    tl.store(out_ptr + row * out_length + place, acc / KERNEL, mask=keep)


class ModelNew(nn.Module):
    def __init__(self, kernel_size, stride, padding):
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding

    def forward(self, x):
        x = x.contiguous()
        length = x.shape[-1]
        rows = x.numel() // length
        out_length = (length + 2 * self.padding - self.kernel_size) // self.stride + 1
        out = torch.empty(*x.shape[:-1], out_length, device=x.device, dtype=x.dtype)
        grid = (triton.cdiv(rows, 32), triton.cdiv(out_length, 256))
        avgpool_kernel[grid](
            x,
            out,
            rows,
            length,
            out_length,
            self.stride,
            self.padding,
            KERNEL=self.kernel_size,
            ROWS=32,
            BLOCK=256,
            num_warps=8,
        )
        return out
