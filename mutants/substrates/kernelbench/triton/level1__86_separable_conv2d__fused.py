"""Depthwise and pointwise convolution in one kernel: a tile of depthwise results goes straight into the product.

problem: level1/86
style: fused
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def separable_kernel(
    x_ptr,
    depth_ptr,
    depth_bias_ptr,
    point_ptr,
    point_bias_ptr,
    y_ptr,
    CHANNELS,
    FILTERS,
    HEIGHT,
    WIDTH,
    OUT_H,
    OUT_W,
    TILES,
    SIZE: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    DILATION: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_F: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    image = (tl.program_id(0) // TILES).to(tl.int64)
    places = tl.program_id(0) % TILES * BLOCK_P + tl.arange(0, BLOCK_P)
    filters = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    in_places = places < OUT_H * OUT_W
    top = places // OUT_W * STRIDE - PADDING
    left = places % OUT_W * STRIDE - PADDING

    acc = tl.zeros((BLOCK_F, BLOCK_P), dtype=tl.float32)
    for start in range(0, CHANNELS, BLOCK_C):
        channels = start + tl.arange(0, BLOCK_C)
        known = channels < CHANNELS
        planes = x_ptr + (image * CHANNELS + channels[:, None]) * HEIGHT * WIDTH
        middle = tl.zeros((BLOCK_C, BLOCK_P), dtype=tl.float32)
        for tap in tl.static_range(SIZE * SIZE):
            h = top + tap // SIZE * DILATION
            w = left + tap % SIZE * DILATION
            inside = in_places & (h >= 0) & (h < HEIGHT) & (w >= 0) & (w < WIDTH)
            x = tl.load(planes + (h * WIDTH + w)[None, :], mask=known[:, None] & inside[None, :], other=0.0)
            factor = tl.load(depth_ptr + channels * SIZE * SIZE + tap, mask=known, other=0.0)
            middle += x * factor[:, None]
        if HAS_BIAS:
            middle += tl.load(depth_bias_ptr + channels, mask=known, other=0.0)[:, None]
        point = tl.load(
            point_ptr + filters[:, None] * CHANNELS + channels[None, :],
            mask=(filters[:, None] < FILTERS) & known[None, :],
            other=0.0,
        )
        acc = tl.dot(point, middle, acc, input_precision="ieee")
    if HAS_BIAS:
        acc += tl.load(point_bias_ptr + filters, mask=filters < FILTERS, other=0.0)[:, None]
    tl.store(
        y_ptr + (image * FILTERS + filters[:, None]) * OUT_H * OUT_W + places[None, :],
        acc,
        mask=(filters[:, None] < FILTERS) & in_places[None, :],
    )


class ModelNew(nn.Module):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        dilation: int = 1,
        bias: bool = False,
    ):
        super().__init__()
        self.depthwise = nn.Conv2d(
            in_channels,
            in_channels,
            kernel_size,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=in_channels,
            bias=bias,
        )
        self.pointwise = nn.Conv2d(in_channels, out_channels, kernel_size=1, bias=bias)
        self.shape = (kernel_size, stride, padding, dilation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        size, stride, padding, dilation = self.shape
        depth, point = self.depthwise, self.pointwise
        batch, channels, height, width = x.shape
        filters = point.weight.shape[0]
        reach = dilation * (size - 1) + 1
        out_h = (height + 2 * padding - reach) // stride + 1
        out_w = (width + 2 * padding - reach) // stride + 1
        y = torch.empty((batch, filters, out_h, out_w), device=x.device, dtype=x.dtype)
        has_bias = depth.bias is not None
        tiles = triton.cdiv(out_h * out_w, 64)
        separable_kernel[(batch * tiles, triton.cdiv(filters, 64))](
            x,
            depth.weight,
            depth.bias if has_bias else depth.weight,
            point.weight,
            point.bias if has_bias else point.weight,
            y,
            channels,
            filters,
            height,
            width,
            out_h,
            out_w,
            tiles,
            SIZE=size,
            STRIDE=stride,
            PADDING=padding,
            DILATION=dilation,
            HAS_BIAS=has_bias,
            BLOCK_F=64,
            BLOCK_P=64,
            BLOCK_C=16,
            num_warps=4,
            num_stages=1,
        )
        return y
