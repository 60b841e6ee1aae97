"""Rules: how a member of the envelope computes one op. A rule takes the op's arguments, and gives its result or
`NotImplemented`, which leaves the op to torch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .emulate_order import Order

aten = torch.ops.aten
Rule = Callable[..., Any]


def order_rules(order: Order) -> dict[Any, Rule]:
    """Rules that add up in a given order: sums, means, products, variances, scans, matrix products, convolutions."""
    return {**_total_rules(order), **_scan_rules(order), **_product_rules(order)}


def dimensions(x: Tensor, dims: Any) -> list[int]:
    """An op's dimensions as sorted indices >= 0; None and () mean all."""
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return list(range(x.dim()))
    return sorted(d % x.dim() for d in ([dims] if isinstance(dims, int) else dims))


def variance_rules(variance: Rule) -> dict[Any, Rule]:
    """Rules for variances and standard deviations from one that gives (variance, mean) or NotImplemented."""

    def first(*args: Any, **kwargs: Any) -> Any:
        result = variance(*args, **kwargs)
        return result if result is NotImplemented else result[0]

    def deviation(*args: Any, **kwargs: Any) -> Any:
        result = variance(*args, **kwargs)
        return result if result is NotImplemented else result[0].sqrt()

    return {
        aten.var_mean.correction: variance,
        aten.var.correction: first,
        aten.std.correction: deviation,
    }


def _total_rules(order: Order) -> dict[Any, Rule]:
    def total(x: Tensor, dims: Any, keep: bool, ufunc: np.ufunc = np.add, mean: bool = False) -> Any:
        if x.dim() == 0 or x.numel() == 0:
            return NotImplemented
        along = dimensions(x, dims)
        result = order.total(x, along, ufunc)
        if result is None:
            return NotImplemented
        if mean:
            result = result / (x.numel() / result.numel())
        return result if keep else result.reshape([n for d, n in enumerate(x.shape) if d not in along])

    def plain(rule: Rule) -> Rule:
        """Not for another dtype of the result."""
        return lambda *args, dtype=None, **kwargs: (
            NotImplemented if dtype not in (None, torch.float32) else rule(*args, **kwargs)
        )

    def variance(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
        if x.dim() == 0 or x.numel() == 0:
            return NotImplemented
        mean = total(x, dim, True, mean=True)
        if mean is NotImplemented:
            return NotImplemented
        squares = total((x - mean).square(), dim, keepdim)
        freedom = x.numel() // mean.numel() - (1 if correction is None else correction)
        return squares / max(0, freedom), mean if keepdim else mean.reshape(squares.shape)

    return {
        aten.sum.default: plain(lambda x: total(x, None, False)),
        aten.sum.dim_IntList: plain(lambda x, dim=None, keepdim=False: total(x, dim, keepdim)),
        aten.mean.default: plain(lambda x: total(x, None, False, mean=True)),
        aten.mean.dim: plain(lambda x, dim=None, keepdim=False: total(x, dim, keepdim, mean=True)),
        aten.prod.default: plain(lambda x: total(x, None, False, np.multiply)),
        aten.prod.dim_int: plain(lambda x, dim, keepdim=False: total(x, dim, keepdim, np.multiply)),
        **variance_rules(variance),
    }


def _scan_rules(order: Order) -> dict[Any, Rule]:
    def scan(ufunc: np.ufunc) -> Rule:
        def run(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
            if x.dim() == 0 or x.numel() == 0 or dtype not in (None, torch.float32):
                return NotImplemented
            result = order.scan(x, dim % x.dim(), ufunc)
            return NotImplemented if result is None else result

        return run

    return {aten.cumsum.default: scan(np.add), aten.cumprod.default: scan(np.multiply)}


def _product_rules(order: Order) -> dict[Any, Rule]:
    def bmm(a: Tensor, b: Tensor) -> Any:
        if a.numel() == 0 or b.numel() == 0:
            return NotImplemented
        result = order.matmul(a, b)
        return NotImplemented if result is None else result

    def convolve(x: Tensor, weight: Tensor, conv: Callable[[Tensor, Tensor], Tensor], g: int, transposed: bool) -> Any:
        return order.convolve(x, weight, g, transposed, conv) if x.numel() else None

    return product_rules(bmm, convolve)


def product_rules(bmm: Callable[[Tensor, Tensor], Any], convolve: Callable[..., Tensor | None]) -> dict[Any, Rule]:
    """Rules for every op that is a matrix product or a convolution.

    Args:
        bmm: [B, M, K] @ [B, K, N], or NotImplemented.
        convolve: (x, weight, conv, groups, transposed) without bias, or None; `conv(x, weight)` is torch's own.
    """

    def mm(a: Tensor, b: Tensor) -> Any:
        result = bmm(a[None], b[None])
        return result if result is NotImplemented else result[0]

    def added(c: Tensor, product: Any, beta: float, alpha: float) -> Any:
        if product is NotImplemented:
            return NotImplemented
        scaled = product if alpha == 1 else product * alpha
        return scaled if beta == 0 else scaled + (c if beta == 1 else c * beta)

    def mv(a: Tensor, b: Tensor) -> Any:
        result = mm(a, b[:, None])
        return result if result is NotImplemented else result[:, 0]

    def dot(a: Tensor, b: Tensor) -> Any:
        result = mm(a[None], b[:, None])
        return result if result is NotImplemented else result[0, 0]

    def convolution(
        x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, transposed: bool,
        output_padding: Any, groups: int,
    ) -> Any:  # fmt: skip
        def own(part: Tensor, kernel: Tensor) -> Tensor:
            return aten.convolution.default(
                part, kernel, None, stride, padding, dilation, transposed, output_padding, groups
            )

        result = convolve(x, weight, own, groups, transposed)
        if result is None:
            return NotImplemented
        return result if bias is None else result + bias.reshape([1, -1] + [1] * (result.dim() - 2))

    return {
        aten.mm.default: mm,
        aten.bmm.default: bmm,
        aten.mv.default: mv,
        aten.dot.default: dot,
        aten.addmm.default: lambda c, a, b, *, beta=1, alpha=1: added(c, mm(a, b), beta, alpha),
        aten.addmv.default: lambda c, a, b, *, beta=1, alpha=1: added(c, mv(a, b), beta, alpha),
        aten.baddbmm.default: lambda c, a, b, *, beta=1, alpha=1: added(c, bmm(a, b), beta, alpha),
        aten.convolution.default: convolution,
    }


def one_pass_rules() -> dict[Any, Rule]:
    """Variance as E[x^2] - E[x]^2: cancels where the mean is large beside the deviation."""

    def variance(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
        if x.dim() == 0 or x.numel() == 0:
            return NotImplemented
        along = dimensions(x, dim)
        mean, square = x.mean(along, keepdim=keepdim), x.square().mean(along, keepdim=keepdim)
        count = x.numel() // mean.numel()
        biased = (square - mean.square()).clamp_min(0.0)
        return biased * (count / max(1, count - (1 if correction is None else correction))), mean

    return {
        aten.var_mean.correction: variance,
        aten.var.correction: lambda *a, **k: variance(*a, **k)[0],
        aten.std.correction: lambda *a, **k: variance(*a, **k)[0].sqrt(),
    }


def operand_rules(shorten: Callable[[Tensor], Tensor]) -> dict[Any, Rule]:
    """Rules that shorten the operands of matrix products and convolutions; sums stay float32, as on tensor cores."""
    return product_rules(
        lambda a, b: shorten(a) @ shorten(b),
        lambda x, weight, conv, groups, transposed: conv(shorten(x), shorten(weight)),
    )
