"""What the input families promise about their draws, checked on the draws that the validity gate makes.

A family whose draws are not what its description says still gives inputs, tolerances and suites: everything works, and
the faults that it was there for are not seen. The checks are loose, since draws are random and inputs differ; they are
meant for a family that does something else altogether, such as signed values without negative ones. Only inputs that
may take any value are looked at: where a domain or a structure is kept, the values are the problem's.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from .entry import Entry
from .generators import find_generator, working_dim
from .traits import Traits

LEAST = 64  # elements below which chance explains anything
_TENTH = 0.1

Params = Mapping[str, Any]
Check = Callable[[Tensor, int, Params], str]
"""From float64 values, the working dimension and the family's parameters: what is wrong, or ""."""


def broken_promise(entry: Entry, inputs: list[Any], own: Callable[[], list[Any]], traits: Traits) -> str:
    """How a draw differs from what its family promises; "" where it does not.

    Args:
        inputs: as the entry gives them.
        own: what the problem itself draws at this shape; asked where an input is constant, since some problems' are.
        traits: of the problem at the entry's constants.
    """
    generator = find_generator(entry.generator)
    check = PROMISES.get(entry.generator)
    if check is None or entry.scale == 0:
        return ""
    params = generator.resolve(dict(entry.params))
    for i in traits.free_inputs:
        value, about = inputs[i], traits.inputs[i]
        if not isinstance(value, Tensor) or value.numel() < LEAST or about.structure or about.domain != "real":
            continue
        if value.min() == value.max() and _constant(own()[i]):
            continue
        wrong = check(value.double() / entry.scale, working_dim(traits, value), params)
        if wrong:
            return f"input {i} of family {entry.generator}: {wrong}"
    return ""


def _constant(value: Any) -> bool:
    return isinstance(value, Tensor) and bool(value.min() == value.max())


def _signed(x: Tensor, dim: int, params: Params) -> str:
    negative, positive = float((x < 0).double().mean()), float((x > 0).double().mean())
    if min(negative, positive) >= _TENTH:
        return ""
    return f"{negative:.0%} of the values are negative and {positive:.0%} positive, where both signs are promised"


def _spiky(x: Tensor, dim: int, params: Params) -> str:
    high, middle = float(x.abs().max()), float(x.abs().median())
    if params["magnitude"] >= 20 and high < 5 * middle:
        return f"the largest value is {high / max(middle, 1e-30):.2g} times the median, where rare spikes are promised"
    return _signed(x, dim, params)


def _large(x: Tensor, dim: int, params: Params) -> str:
    high = float(x.abs().max())
    if high < 0.5 * params["magnitude"]:
        return f"no value is above {high:.3g}, where values of about {params['magnitude']:g} are promised"
    return _signed(x, dim, params)


def _negative(x: Tensor, dim: int, params: Params) -> str:
    high = float(x.max())
    return "" if high < 0 else f"there is a value of {high:.3g}, where all are to be negative"


def _offset(x: Tensor, dim: int, params: Params) -> str:
    mean, slack = float(x.mean()), abs(params["spread"]) + 0.02 * abs(params["center"])
    if abs(mean - params["center"]) <= slack:
        return ""
    return f"the mean is {mean:.3g}, where values around {params['center']:g} are promised"


def _constant_rows(x: Tensor, dim: int, params: Params) -> str:
    spread = float((x.amax(dim) - x.amin(dim)).max())
    if spread > 0:
        return f"a row spreads over {spread:.3g}, where each is to hold one value"
    rows = x.narrow(dim, 0, 1)
    return _signed(rows, dim, params) if rows.numel() >= LEAST else ""


def _ramp(x: Tensor, dim: int, params: Params) -> str:
    if x.shape[dim] < 2:
        return ""
    rise = float(x.select(dim, x.shape[dim] - 1).mean() - x.select(dim, 0).mean())
    promised = params["high"] - params["low"]
    if abs(rise - promised) <= 0.5 * abs(promised) + 8 * abs(params["noise"]):
        return ""
    return f"it rises by {rise:.3g} along its rows, where {promised:g} is promised"


def _ties(x: Tensor, dim: int, params: Params) -> str:
    levels = len(x.unique())
    if levels > params["levels"] + 1:
        return f"there are {levels} values, where {params['levels'] + 1:g} are promised"
    return _both_signs(x)


def _integers(x: Tensor, dim: int, params: Params) -> str:
    if bool((x != x.round()).any()) or float(x.abs().max()) > params["bound"]:
        return f"there are other values than the integers up to {params['bound']:g}"
    return _both_signs(x)


def _both_signs(x: Tensor) -> str:
    low, high = float(x.min()), float(x.max())
    return "" if low < 0 < high else f"the values are from {low:.3g} to {high:.3g}, where both signs are promised"


def _thresholds(x: Tensor, dim: int, params: Params) -> str:
    low, high = float(x.min()), float(x.max())
    if low < -2 and high > 15:
        return ""
    return f"the values are from {low:.3g} to {high:.3g}, where some close to -3 and to 20 are promised"


def _zero_rows(x: Tensor, dim: int, params: Params) -> str:
    kept = x[x != 0]
    if kept.numel() == x.numel():
        return "no row is zero"
    return _signed(kept, dim, params) if kept.numel() >= LEAST else ""


def _alternating(x: Tensor, dim: int, params: Params) -> str:
    even = torch.arange(x.shape[dim], device=x.device) % 2 == 0
    sign = torch.where(even, 1.0, -1.0).to(x.dtype)
    right = float((x.movedim(dim, -1) * sign > 0).double().mean())
    return "" if right == 1 else f"{right:.0%} of the signs are those of + - + -"


def _one_hot(x: Tensor, dim: int, params: Params) -> str:
    most = int((x != 0).sum(dim).max())
    if most != 1:
        return f"a row has {most} values that are not zero, where one is promised"
    kept = x[x != 0]
    return _both_signs(kept) if kept.numel() >= LEAST else ""


PROMISES: Mapping[str, Check] = {
    "normal": _signed,
    "negative": _negative,
    "spiky": _spiky,
    "large": _large,
    "offset": _offset,
    "constant_rows": _constant_rows,
    "ramp": _ramp,
    "ties": _ties,
    "thresholds": _thresholds,
    "zero_rows": _zero_rows,
    "alternating": _alternating,
    "one_hot": _one_hot,
    "integers": _integers,
}
"""By family; what the problem draws itself, and the same times a factor (`log_uniform`), promise nothing."""
