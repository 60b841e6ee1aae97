"""Input families: transformations of what a problem's `get_inputs` drew.

A family never invents an input. It changes the values of the floating-point inputs that are free to change and keeps
what the problem promises about them (`structure.keep`): zero patterns, symmetry, positive definiteness, rows of
probabilities, the domain. Masks, labels, integers and Python numbers stay as they were drawn.

Every family's docstring names the faults it exposes. `applies` says where a family is admissible a priori; the validity
gate still has the last word on every entry.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from .errors import InputError
from .structure import ZERO_PATTERNS, keep
from .traits import InputTraits, Traits

#: Sequential sums of data that is constant or nearly so err far beyond sqrt(n): 650 to 800 units in the last place at
#: n = 4,096, where uniform data err by 14. Beyond this length such families would punish honest kernels.
MAX_CONSTANT_LIKE = 2048

Params = Mapping[str, Any]
Predicate = Callable[[Traits], bool]


@dataclass(frozen=True, slots=True)
class Context:
    """What a family may look at besides the values.

    Attributes:
        traits: of the problem at the entry's constants.
        traits_of: of this input.
        rng: seeded generator on the input's device.
        dim: dimension that the problem works along, counted from the end; -1 where it works along none.
    """

    traits: Traits
    traits_of: InputTraits
    rng: torch.Generator
    dim: int

    def rand(self, shape: tuple[int, ...] | torch.Size) -> Tensor:
        """Uniform values in [0, 1)."""
        return torch.rand(shape, generator=self.rng, device=self.rng.device)

    def randint(self, high: int, shape: tuple[int, ...] | torch.Size) -> Tensor:
        """Integers in [0, high)."""
        return torch.randint(high, shape, generator=self.rng, device=self.rng.device)


Transform = Callable[[Tensor, Context, Params], Tensor]


@dataclass(frozen=True, slots=True)
class Generator:
    """One input family.

    Attributes:
        name: its name in entries.
        exposes: the faults it exposes, from the docstring.
        defaults: its parameters with their default values.
        admissible: where it makes sense at all.
        transform: new values from a float32 (or float64) tensor with at least one dimension.
    """

    name: str
    exposes: str
    defaults: Params
    admissible: Predicate
    transform: Transform | None = field(repr=False)

    def applies(self, traits: Traits) -> bool:
        """Whether the family is admissible for a problem at the constants that `traits` was measured at."""
        return self.transform is None or (bool(traits.free_inputs) and self.admissible(traits))

    def resolve(self, params: Params) -> dict[str, Any]:
        """The parameters with defaults filled in.

        Raises:
            InputError: a parameter that the family does not have, or one that is no number.
        """
        for name, value in params.items():
            if name not in self.defaults:
                known = ", ".join(self.defaults) or "none"
                raise InputError(f"generator {self.name} has no parameter {name!r}; its parameters are: {known}")
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise InputError(f"generator {self.name}: parameter {name!r} must be a finite number, not {value!r}")
        return {**self.defaults, **params}

    def apply(self, inputs: list[Any], traits: Traits, rng: torch.Generator, params: Params | None = None) -> list[Any]:
        """New inputs; the old ones are left as they are.

        Args:
            inputs: what `get_inputs` drew.
            traits: of the problem at the same constants.
            rng: seeded generator on the inputs' device.
            params: parameters, by default all at their default.

        Raises:
            InputError: an unknown parameter.
        """
        resolved = self.resolve(params or {})
        if self.transform is None:
            return list(inputs)
        return [
            self._one(value, traits, traits.inputs[i], rng, resolved) if i in traits.free_inputs else value
            for i, value in enumerate(inputs)
        ]

    def _one(self, own: Any, traits: Traits, traits_of: InputTraits, rng: torch.Generator, params: Params) -> Any:
        if self.transform is None or not isinstance(own, Tensor) or not own.is_floating_point():
            return own
        wide = own.to(torch.float32) if own.dtype.itemsize < 4 else own
        context = Context(traits, traits_of, rng, working_dim(traits, wide))
        base = _logits(wide) if traits_of.structure == "probability_rows" else wide
        new = self.transform(base if wide.ndim else wide.reshape(1), context, params).to(wide.dtype)
        return keep(new.reshape(wide.shape), wide, traits_of.structure, traits_of.domain).to(own.dtype)


def _logits(probabilities: Tensor) -> Tensor:
    """Centred logarithms of rows of probabilities: what a softmax turns into them again."""
    logs = probabilities.clamp_min(1e-30).log()
    return logs - logs.mean(-1, keepdim=True)


def working_dim(traits: Traits, x: Tensor) -> int:
    """The dimension of an input that a problem works along, counted from the end."""
    return traits.along if traits.along is not None and -traits.along <= max(1, x.ndim) else -1


_REGISTRY: dict[str, Generator] = {}


def _family(admissible: Predicate, **defaults: float) -> Callable[[Transform], Transform]:
    def register(transform: Transform) -> Transform:
        name = transform.__name__
        exposes = inspect.getdoc(transform) or ""
        _REGISTRY[name] = Generator(name, exposes, MappingProxyType(defaults), admissible, transform)
        return transform

    return register


# ---------------------------------------------------------------- where families are admissible


def _anywhere(traits: Traits) -> bool:
    return True


def _short_sums(traits: Traits) -> bool:
    return traits.accumulation <= MAX_CONSTANT_LIKE


def _short_sums_or_softmax(traits: Traits) -> bool:
    return _short_sums(traits) or traits.kind == "softmax"


def _not_statistics(traits: Traits) -> bool:
    """Normalising a constant gives rounding noise, which nothing can be held against."""
    return _short_sums(traits) and traits.kind != "norm"


def _open_ended(traits: Traits) -> bool:
    return not (traits.saturating or traits.exponential)


# ---------------------------------------------------------------- parts


def _signed(x: Tensor, context: Context) -> Tensor:
    """The draw as (nearly) standard normal values: by quantile where it is uniform, else centred and scaled."""
    low, high = torch.aminmax(x)
    if context.traits_of.uniform and bool(high > low):
        edge = 2.0**-24
        unit = ((x - low) / (high - low)).clamp_(edge, 1 - edge)
        return unit.mul_(2).sub_(1).erfinv_().mul_(math.sqrt(2))
    if context.traits_of.structure in ZERO_PATTERNS:
        values = x[x != 0]
        mean, spread = (values.mean(), values.std(correction=0)) if values.numel() else (x.mean(), x.std(correction=0))
    else:
        mean, spread = x.mean(), x.std(correction=0)
    return (x - mean) / spread if bool(spread > 0) else x.clone()


def _positions(x: Tensor, dim: int) -> Tensor:
    """0, 1, 2, ... along a dimension, shaped to broadcast against `x`."""
    shape = [1] * x.ndim
    shape[dim] = x.shape[dim]
    return torch.arange(x.shape[dim], device=x.device, dtype=x.dtype).reshape(shape)


def _one_per_row(x: Tensor, context: Context) -> Tensor:
    """A mask with one random element per row along the working dimension."""
    rows = list(x.shape)
    rows[context.dim] = 1
    chosen = context.randint(x.shape[context.dim], tuple(rows)).to(x.device)
    return torch.zeros(x.shape, dtype=torch.bool, device=x.device).scatter_(context.dim, chosen, True)


# ---------------------------------------------------------------- families

_REGISTRY["own"] = Generator(
    "own",
    "What the problem itself draws. Dense and unsigned: a wrong index reads a different value nearly everywhere, but "
    "nothing that only acts on signs, large values or equal values shows.",
    MappingProxyType({}),
    _anywhere,
    None,
)


@_family(_anywhere, sigma=1.0)
def normal(x: Tensor, context: Context, params: Params) -> Tensor:
    """Signed normal values of spread `sigma`, by quantile from the draw.

    Exposes: a dropped activation or absolute value, a sign error, a constant answer, a mean in place of a sum,
    partial reductions that a concentrated unsigned mean hides, a wrong index in dense data.
    """
    return _signed(x, context).mul_(params["sigma"])


@_family(_anywhere, shift=0.0)
def negative(x: Tensor, context: Context, params: Params) -> Tensor:
    """All values negative: minus the absolute value of the draw, minus `shift`.

    Exposes: a maximum that starts at 0 or at the smallest positive float, a dropped activation, zero padding that
    takes part in a maximum, an unguarded lane that contributes 0 to a maximum.
    """
    return x.abs().neg_().sub_(params["shift"]).clamp_max_(-1e-6)


@_family(_anywhere, magnitude=100.0, fraction=0.01)
def spiky(x: Tensor, context: Context, params: Params) -> Tensor:
    """Signed normal values with rare ones `magnitude` times as large: a `fraction` of all, and one per row at least.

    Exposes: a softmax without its maximum, an fp16 intermediate, a skipped element or block (the spike is missing),
    one-pass variance, a maximum over a part of the row.
    """
    base = _signed(x, context)
    spikes = _one_per_row(x, context) | (context.rand(x.shape) < params["fraction"])
    return torch.where(spikes, base * params["magnitude"], base)


@_family(_open_ended, magnitude=1000.0)
def large(x: Tensor, context: Context, params: Params) -> Tensor:
    """Signed normal values times `magnitude`, where no operator overflows or is flat there.

    Exposes: fp16 intermediates (overflow at 65,504), additive constants that should not be there or are missing, an
    absolute tolerance inside a kernel, clamps that do not belong.
    """
    return _signed(x, context).mul_(params["magnitude"])


@_family(_short_sums_or_softmax, center=100.0, spread=1.0)
def offset(x: Tensor, context: Context, params: Params) -> Tensor:
    """Signed normal values of `spread` around `center`.

    Exposes: an exponential without the maximum subtracted (exp(100) overflows, exp(-200) underflows), variance as a
    difference of large moments, low-precision accumulation, a missing subtraction of the mean.
    """
    return _signed(x, context).mul_(params["spread"]).add_(params["center"])


@_family(_not_statistics)
def constant_rows(x: Tensor, context: Context, params: Params) -> Tensor:
    """Every row along the working dimension holds one signed value of its own.

    Exposes: a row that is read twice or skipped, a row index off by one, a wrong count in a mean, a wrong stride
    between rows, ties everywhere. Blind to the order within a row.
    """
    first = _signed(x, context).narrow(context.dim, 0, 1)
    return first.expand_as(x).clone()


@_family(_short_sums, low=-1.0, high=3.0, noise=0.01)
def ramp(x: Tensor, context: Context, params: Params) -> Tensor:
    """Values that rise (or fall) evenly from `low` to `high` along the working dimension, plus a little of the draw.

    Exposes: a shifted index, a reversed scan, a dropped first or last element (it is the extreme one), swapped
    dimensions, an argmax that reports a position within its block.
    """
    steps = max(1, x.shape[context.dim] - 1)
    rising = _positions(x, context.dim).mul_((params["high"] - params["low"]) / steps).add_(params["low"])
    return _signed(x, context).mul_(params["noise"]).add_(rising)


@_family(_anywhere, levels=4)
def ties(x: Tensor, context: Context, params: Params) -> Tensor:
    """Signed normal values rounded to a few levels, so that most maxima occur several times.

    Exposes: an argmax or argmin that takes the last of equal values, a merge of partial results that prefers the wrong
    side, an unstable sort, strict comparisons in place of non-strict ones.
    """
    step = 4.0 / params["levels"]
    return _signed(x, context).div_(step).round_().mul_(step).clamp_(-2.0, 2.0)


_CHUNK = 1 << 24  # elements that get 64-bit indices at a time
_THRESHOLDS = (0.0, -1.0, 1.0, -3.0, 3.0, 6.0, 20.0)


@_family(_anywhere, jitter=0.05)
def thresholds(x: Tensor, context: Context, params: Params) -> Tensor:
    """Values close to, and exactly at, the points where usual activations change: 0, -1, 1, -3, 3, 6, 20.

    Exposes: a wrong bound or slope of a clamp, hardtanh, hardswish, relu6, ELU; a softplus without its linear part; `<`
    in place of `<=`; tanh-GELU for erf-GELU (they differ most near 2 to 3).
    """
    points = torch.tensor(_THRESHOLDS, device=x.device, dtype=x.dtype)
    values = _signed(x, context).mul_(params["jitter"]).reshape(-1)
    for part in values.split(_CHUNK):
        exact = context.rand(part.shape) < 0.25
        part.masked_fill_(exact, 0.0).add_(points[context.randint(len(_THRESHOLDS), part.shape)])
    return values.reshape(x.shape)


@_family(_anywhere, period=3)
def zero_rows(x: Tensor, context: Context, params: Params) -> Tensor:
    """Signed normal values with every `period`-th row along the working dimension all zero.

    Exposes: a division without its epsilon, a maximum that starts at a wrong value, rows that leak into their
    neighbours, stale results that are left over from another row.
    """
    base = _signed(x, context)
    other = -1 if context.dim != -1 else -min(2, x.ndim)
    if x.ndim == 1:
        return base.masked_fill_(_positions(x, -1) % params["period"] == 0, 0.0)
    return base.masked_fill_(_positions(x, other) % params["period"] == 0, 0.0)


@_family(_short_sums, floor=0.1)
def alternating(x: Tensor, context: Context, params: Params) -> Tensor:
    """Absolute values of the draw, at least `floor`, with signs + - + - along the working dimension.

    Exposes: a dropped sign, an element counted twice or not at all (neighbours no longer cancel), a vectorised load
    that swaps its lanes, a stride off by one.
    """
    sign = 1 - 2 * (_positions(x, context.dim) % 2)
    return x.abs().clamp_min_(params["floor"]).mul_(sign)


@_family(_anywhere, value=1.0)
def one_hot(x: Tensor, context: Context, params: Params) -> Tensor:
    """One element per row along the working dimension is +-`value`, times a draw in [1, 2); the rest is zero.

    Exposes: a wrong index or weight that dense data averages away (products copy one column), a skipped element, a
    wrong boundary in a window. Blind where two zeros are swapped.
    """
    draw = context.rand(x.shape).mul_(2).sub_(1)
    return draw.add_(torch.sign(draw)).mul_(params["value"]).mul_(_one_per_row(x, context))


@_family(_anywhere, bound=3)
def integers(x: Tensor, context: Context, params: Params) -> Tensor:
    """Small integers from -`bound` to `bound`, which every order of summation adds up exactly.

    Exposes: any wrong, missing or doubled element, without rounding to hide in; ties; exact zeros. Blind to rounded
    operands.
    """
    bound = float(params["bound"])
    return _signed(x, context).mul_(bound / 2).round_().clamp_(-bound, bound)


@_family(_anywhere, low=-2.0, high=2.0)
def log_uniform(x: Tensor, context: Context, params: Params) -> Tensor:
    """The draw times one factor 10^u, u uniform between `low` and `high`: magnitude fuzzing.

    Exposes: absolute tolerances and constants inside a kernel, overflow of fp16 intermediates. Not for suites of large
    sign-mixed sums under an absolute tolerance, which correct kernels leave behind as well.
    """
    exponent = float(context.rand((1,))) * (params["high"] - params["low"]) + params["low"]
    return x * 10.0**exponent


#: All input families by name.
GENERATORS: Mapping[str, Generator] = MappingProxyType(_REGISTRY)


def find_generator(name: str) -> Generator:
    """The family of that name.

    Raises:
        InputError: there is none.
    """
    if name not in GENERATORS:
        raise InputError(f"unknown generator {name!r}; use one of {', '.join(GENERATORS)}")
    return GENERATORS[name]
