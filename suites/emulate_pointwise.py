"""Other, equally correct ways to compute elementary functions, and rounding of values to shorter types."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

LOG2_E = math.log2(math.e)
LN_2 = math.log(2.0)
_SINGLE_BITS = 23
_SMALLEST_NORMAL = 2.0**-126

Function = Callable[[Tensor], Tensor]


def exp_by_exp2(x: Tensor) -> Tensor:
    """exp(x) as 2^(x * log2(e)) with the product rounded to float32, as `__expf` and Triton do."""
    return torch.exp2(x * LOG2_E)


def tanh_by_exp(x: Tensor) -> Tensor:
    """tanh(x) = sign(x) * (1 - e) / (1 + e) with e = exp(-2|x|): cancels near zero, never overflows."""
    e = exp_by_exp2(-2.0 * x.abs())
    return torch.copysign((1.0 - e) / (1.0 + e), x)


def flushed(x: Tensor) -> Tensor:
    """Subnormal float32 values replaced by zero."""
    return torch.where(x.abs() < _SMALLEST_NORMAL, torch.copysign(torch.zeros_like(x), x), x)


def rounded_mantissa(x: Tensor, bits: int, truncate: bool = False) -> Tensor:
    """float32 values with a mantissa of `bits` stored bits: to the nearest (ties to even), or towards zero."""
    drop = _SINGLE_BITS - bits
    word = x.contiguous().view(torch.int32)
    if not truncate:
        word = word + ((1 << (drop - 1)) - 1) + ((word >> drop) & 1)
    return torch.where(torch.isfinite(x), (word & -(1 << drop)).view(torch.float32), x)


def _negated(f: Function) -> Function:
    return lambda x: f(-x)


def _elementary(exp: Function, tanh: Function, log: Function) -> dict[Any, Callable[..., Tensor]]:
    return {
        aten.exp.default: exp,
        aten.expm1.default: lambda x: exp(x) - 1.0,
        aten.sigmoid.default: lambda x: 1.0 / (1.0 + exp(-x)),
        aten.tanh.default: tanh,
        aten.log.default: log,
        aten.log1p.default: lambda x: log(1.0 + x),
    }


def _scaled_logits(x: Tensor, dim: int) -> Tensor:
    """Logits in base 2, less their maximum. Scaled before the maximum is taken off, as flash attention and most fused
    softmax kernels do, so that their rounding error grows with the size of the logits."""
    scaled = x * LOG2_E
    return scaled - scaled.amax(dim, keepdim=True)


def _softmax_by_exp2(x: Tensor, dim: int, *_: Any, **__: Any) -> Any:
    if x.numel() == 0 or not bool(torch.isfinite(x).all()):  # masked logits: left to torch, and to the rule for exp
        return NotImplemented
    e = torch.exp2(_scaled_logits(x, dim))
    return e / e.sum(dim, keepdim=True)


def _log_softmax_by_exp2(x: Tensor, dim: int, *_: Any) -> Any:
    if x.numel() == 0 or not bool(torch.isfinite(x).all()):
        return NotImplemented
    scaled = _scaled_logits(x, dim)
    return (scaled - torch.exp2(scaled).sum(dim, keepdim=True).log2()) * LN_2


EXP2_RULES: dict[Any, Callable[..., Any]] = {
    **_elementary(exp_by_exp2, tanh_by_exp, lambda x: torch.log2(x) * LN_2),
    aten._softmax.default: _softmax_by_exp2,
    aten._safe_softmax.default: _softmax_by_exp2,
    aten._log_softmax.default: _log_softmax_by_exp2,
}


def _fast_divide(a: Tensor, b: Tensor | float) -> Tensor:
    return flushed(a * (1.0 / torch.as_tensor(b, dtype=torch.float32, device=a.device)))


def _fast_exp(x: Tensor) -> Tensor:
    return flushed(rounded_mantissa(exp_by_exp2(x), 22))


FAST_MATH_RULES: dict[Any, Callable[..., Tensor]] = {
    **_elementary(
        _fast_exp,
        lambda x: rounded_mantissa(torch.tanh(x), 10),  # tanh.approx.f32: relative error 2^-11
        lambda x: rounded_mantissa(torch.log2(x), 22) * LN_2,
    ),
    aten.div.Tensor: _fast_divide,
    aten.reciprocal.default: lambda x: flushed(rounded_mantissa(1.0 / x, 22)),
    aten.sqrt.default: lambda x: flushed(rounded_mantissa(torch.sqrt(x), 22)),
    aten.rsqrt.default: lambda x: flushed(rounded_mantissa(torch.rsqrt(x), 22)),
    aten.sin.default: lambda x: torch.sin(x) + 2.0**-22,  # __sinf and __cosf: absolute error 2^-21.4 on [-pi, pi]
    aten.cos.default: lambda x: torch.cos(x) - 2.0**-22,
}
