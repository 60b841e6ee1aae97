"""Maximum pooling: 2,048 outputs of one plane per program, the window unrolled at compile time.

problem: level1/42
style: unrolled
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def maxpool_kernel(
    x_ptr,
    y_ptr,
    HEIGHT,
    WIDTH,
    OUT_H,
    OUT_W,
    SIZE: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    DILATION: tl.constexpr,
    BLOCK: tl.constexpr,
):
    plane = tl.program_id(0).to(tl.int64)
    x_ptr += plane * HEIGHT * WIDTH
    y_ptr += plane * OUT_H * OUT_W
    outputs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = outputs < OUT_H * OUT_W
    top = (outputs // OUT_W) * STRIDE - PADDING
    left = (outputs % OUT_W) * STRIDE - PADDING
    best = tl.full((BLOCK,), float("-inf"), dtype=tl.float32)
    for i in tl.static_range(SIZE):
        h = top + i * DILATION
        row_mask = mask & (h >= 0) & (h < HEIGHT)
        for j in tl.static_range(SIZE):
            w = left + j * DILATION
            inside = row_mask & (w >= 0) & (w < WIDTH)
            x = tl.load(x_ptr + h * WIDTH + w, mask=inside, other=float("-inf"))
            best = tl.maximum(best, x)
    tl.store(y_ptr + outputs, best, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, kernel_size: int, stride: int, padding: int, dilation: int):
        super().__init__()
        self.window = (kernel_size, stride, padding, dilation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        size, stride, padding, dilation = self.window
        batch, channels, height, width = x.shape
        out_h = (height + 2 * padding - dilation * (size - 1) - 1) // stride + 1
        out_w = (width + 2 * padding - dilation * (size - 1) - 1) // stride + 1
        y = torch.empty((batch, channels, out_h, out_w), device=x.device, dtype=x.dtype)
        grid = (batch * channels, triton.cdiv(out_h * out_w, 2048))
        maxpool_kernel[grid](
            x,
            y,
            height,
            width,
            out_h,
            out_w,
            SIZE=size,
            STRIDE=stride,
            PADDING=padding,
            DILATION=dilation,
            BLOCK=2048,
            num_warps=8,
        )
        return y
