"""3D convolution as an implicit matrix product: filters times taps, taps times voxels, no unrolled copy.

problem: level1/54
style: implicit-gemm
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def conv3d_kernel(
    x_ptr,
    w_ptr,
    b_ptr,
    y_ptr,
    VOXELS,
    CHANNELS,
    FILTERS,
    DEPTH,
    HEIGHT,
    WIDTH,
    OUT_D,
    OUT_H,
    OUT_W,
    CHANNELS_PER_GROUP,
    FILTERS_PER_GROUP,
    SIZE: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    DILATION: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_F: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    group = tl.program_id(2)
    voxels = tl.program_id(0).to(tl.int64) * BLOCK_V + tl.arange(0, BLOCK_V)
    members = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    filters = group * FILTERS_PER_GROUP + members
    volume = OUT_D * OUT_H * OUT_W
    image = voxels // volume
    place = (voxels % volume).to(tl.int32)
    front = place // (OUT_H * OUT_W) * STRIDE - PADDING
    top = place // OUT_W % OUT_H * STRIDE - PADDING
    left = place % OUT_W * STRIDE - PADDING
    first_channel = image * CHANNELS + group * CHANNELS_PER_GROUP

    taps = CHANNELS_PER_GROUP * SIZE * SIZE * SIZE
    acc = tl.zeros((BLOCK_F, BLOCK_V), dtype=tl.float32)
    for start in range(0, taps, BLOCK_K):
        ks = start + tl.arange(0, BLOCK_K)
        w = tl.load(
            w_ptr + filters[:, None] * taps + ks[None, :],
            mask=(members[:, None] < FILTERS_PER_GROUP) & (ks[None, :] < taps),
            other=0.0,
        )
        channel = ks // (SIZE * SIZE * SIZE)
        d = front[None, :] + (ks // (SIZE * SIZE) % SIZE * DILATION)[:, None]
        h = top[None, :] + (ks // SIZE % SIZE * DILATION)[:, None]
        c = left[None, :] + (ks % SIZE * DILATION)[:, None]
        inside = (d >= 0) & (d < DEPTH) & (h >= 0) & (h < HEIGHT) & (c >= 0) & (c < WIDTH)
        x = tl.load(
            x_ptr + (((first_channel[None, :] + channel[:, None]) * DEPTH + d) * HEIGHT + h) * WIDTH + c,
            mask=inside & (ks[:, None] < taps) & (voxels[None, :] < VOXELS),
            other=0.0,
        )
        acc = tl.dot(w, x, acc, input_precision="ieee")
    if HAS_BIAS:
        acc += tl.load(b_ptr + filters, mask=members < FILTERS_PER_GROUP, other=0.0)[:, None]
    tl.store(
        y_ptr + (image[None, :] * FILTERS + filters[:, None]) * volume + place[None, :],
        acc,
        mask=(members[:, None] < FILTERS_PER_GROUP) & (voxels[None, :] < VOXELS),
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
        groups: int = 1,
        bias: bool = False,
    ):
        super().__init__()
        self.conv3d = nn.Conv3d(
            in_channels,
            out_channels,
            (kernel_size, kernel_size, kernel_size),
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
            bias=bias,
        )
        self.shape = (kernel_size, stride, padding, dilation, groups)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        size, stride, padding, dilation, groups = self.shape
        weight, bias = self.conv3d.weight, self.conv3d.bias
        batch, channels = x.shape[:2]
        filters = weight.shape[0]
        out = [(n + 2 * padding - dilation * (size - 1) - 1) // stride + 1 for n in x.shape[2:]]
        y = torch.empty((batch, filters, *out), device=x.device, dtype=x.dtype)
        voxels = batch * out[0] * out[1] * out[2]
        grid = (triton.cdiv(voxels, 128), triton.cdiv(filters // groups, 64), groups)
        conv3d_kernel[grid](
            x,
            weight,
            weight if bias is None else bias,
            y,
            voxels,
            channels,
            filters,
            *x.shape[2:],
            *out,
            channels // groups,
            filters // groups,
            SIZE=size,
            STRIDE=stride,
            PADDING=padding,
            DILATION=dilation,
            HAS_BIAS=bias is not None,
            BLOCK_F=64,
            BLOCK_V=128,
            BLOCK_K=16,
            num_warps=8,
        )
        return y
