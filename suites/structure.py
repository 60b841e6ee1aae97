"""Structure that every draw of an input has, and how to keep it while the values change.

A generator that destroyed a triangle or a probability row would ask a question that the problem never asks, and would
punish kernels that rely on what the problem promises.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

Structure = Literal[
    "", "lower", "upper", "diagonal", "sparse", "symmetric", "positive_definite", "probability_rows", "mask", "labels"
]
Domain = Literal["real", "positive", "unit", "own"]

#: Structures that no generator may touch.
FIXED: frozenset[Structure] = frozenset({"mask", "labels"})
#: Structures that are a pattern of exact zeros.
ZERO_PATTERNS: frozenset[Structure] = frozenset({"lower", "upper", "diagonal", "sparse"})

_MAX_LABELS = 64
_POSITIVE_FLOOR = 1e-3


def find_structure(draws: list[Tensor]) -> Structure:
    """What all draws of one floating-point input have in common.

    Args:
        draws: at least one draw, all of one shape.
    """
    for name, test in _TESTS.items():
        if all(x.numel() >= 4 and test(x) for x in draws):
            return name
    return ""


def _square(x: Tensor) -> bool:
    return x.ndim >= 2 and x.shape[-1] == x.shape[-2] and x.shape[-1] > 1


def _is_mask(x: Tensor) -> bool:
    return bool(((x == 0) | (x == 1)).all()) or bool(torch.isinf(x).any())


def _is_labels(x: Tensor) -> bool:
    return bool((x == x.round()).all()) and x.unique().numel() <= min(_MAX_LABELS, x.numel() // 2)


def _is_diagonal(x: Tensor) -> bool:
    return _square(x) and not bool((x - x * _eye(x)).any()) and bool(x.any())


def _eye(x: Tensor) -> Tensor:
    return torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)


def _is_lower(x: Tensor) -> bool:
    return _square(x) and not bool(x.triu(1).any()) and bool(x.tril(-1).any())


def _is_upper(x: Tensor) -> bool:
    return _square(x) and not bool(x.tril(-1).any()) and bool(x.triu(1).any())


def _is_symmetric(x: Tensor) -> bool:
    return _square(x) and torch.allclose(x, x.mT, rtol=1e-5, atol=0)


def _is_positive_definite(x: Tensor) -> bool:
    if not _is_symmetric(x):
        return False
    _, info = torch.linalg.cholesky_ex(x.double())
    return not bool(info.any())


def _is_probability(x: Tensor) -> bool:
    sums = x.double().sum(-1)
    return x.ndim >= 1 and x.shape[-1] > 1 and bool((x >= 0).all()) and bool(((sums - 1).abs() < 1e-4).all())


def _is_sparse(x: Tensor) -> bool:
    return float((x == 0).double().mean()) > 0.02


_TESTS: dict[Structure, Callable[[Tensor], bool]] = {
    "mask": _is_mask,
    "labels": _is_labels,
    "diagonal": _is_diagonal,
    "lower": _is_lower,
    "upper": _is_upper,
    "positive_definite": _is_positive_definite,
    "symmetric": _is_symmetric,
    "probability_rows": _is_probability,
    "sparse": _is_sparse,
}


def keep(new: Tensor, own: Tensor, structure: Structure, domain: Domain) -> Tensor:
    """New values with the structure and the domain of the problem's own draw.

    Zero patterns are copied from `own`; a symmetric matrix mirrors its lower triangle; a positive definite one becomes
    the product of its lower triangle with itself, over its size, plus a tenth of the identity; rows of probabilities
    become the softmax of the new values (clipped to +-30, so that no probability underflows). The domain `positive`
    takes absolute values of at least 1e-3, `unit` squashes into (0, 1).

    Args:
        new: the new values, of `own`'s shape and dtype.
        own: what `get_inputs` drew.
        structure: what `find_structure` said of the draws.
        domain: values that the reference accepts.
    """
    if structure == "probability_rows":
        return torch.softmax(new.clamp(-30, 30), dim=-1)
    if structure == "positive_definite":
        factor = new.tril()
        return _mirrored(factor @ factor.mT / new.shape[-1] + 0.1 * _eye(new))
    if domain == "positive":
        new = new.abs().clamp_min(_POSITIVE_FLOOR)
    elif domain == "unit":
        new = 0.5 + 0.49 * new / (1 + new.abs())
    if structure == "symmetric":
        new = _mirrored(new)
    elif structure in ZERO_PATTERNS:
        new = torch.where(own == 0, torch.zeros((), dtype=new.dtype, device=new.device), new)
    return new


def _mirrored(x: Tensor) -> Tensor:
    """The lower triangle on both sides: symmetric to the last bit, which a product of matrices is not."""
    return x.tril() + x.tril(-1).mT


def looks_uniform(draws: list[Tensor]) -> bool:
    """Whether every draw's mean and spread are those of a uniform distribution on its own range."""
    return all(_uniform(x.double()) for x in draws)


def _uniform(x: Tensor) -> bool:
    if x.numel() < 64:
        return False
    low, high = x.min(), x.max()
    width = high - low
    if not bool(width > 0):
        return False
    slack = 3 / x.numel() ** 0.5
    middle = float(((x.mean() - low) / width - 0.5).abs())
    spread = float((x.std() / width * 12**0.5 - 1).abs())
    return middle < 0.02 + slack and spread < 0.05 + slack
