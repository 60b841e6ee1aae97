"""What kind of problem it is, and what its inputs must keep to: measured on draws, not read off names.

Sizes come from the meta device. Values (structure of the inputs, domain, randomness, degenerate outputs) come from two
draws of the problem at a shape small enough for any machine.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from .errors import InputError
from .problem import LoadedProblem, Problem, blame, forward, load_problem
from .sizes import Changes, shrunken
from .static import Static, TensorSpec, static_problem, tensors_in
from .structure import FIXED, Domain, Structure, find_structure, keep, looks_uniform

Kind = Literal[
    "elementwise",
    "reduction",
    "softmax",
    "norm",
    "matmul",
    "conv",
    "conv_transpose",
    "pool",
    "loss",
    "attention",
    "argreduce",
    "scan",
    "network",
    "other",
]
Degenerate = Literal["", "zero", "constant", "noise"]

_SATURATING = {
    "sigmoid", "tanh", "erf", "hardtanh", "hardsigmoid", "clamp", "clamp_min", "clamp_max", "softplus",
    "log_sigmoid_forward", "elu", "selu", "celu", "atan", "exp", "exp2", "expm1", "_softmax", "_log_softmax",
    "_safe_softmax", "logsumexp", "_scaled_dot_product_flash_attention_for_cpu", "div_softsign", "sin", "cos",
    "binary_cross_entropy_with_logits", "minimum", "maximum",
}  # fmt: skip
_EXPONENTIAL = {
    "exp", "exp2", "expm1", "sinh", "cosh", "prod", "cumprod", "logcumsumexp", "_softmax", "_log_softmax",
    "_safe_softmax", "logsumexp", "_scaled_dot_product_flash_attention_for_cpu", "binary_cross_entropy_with_logits",
}  # fmt: skip
_SOFTMAX = {"_softmax", "_log_softmax", "_safe_softmax", "logsumexp"}
_ATTENTION = re.compile(r"scaled_dot_product")
_NORM = {"native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit", "_fused_rms_norm"}
_POOL = re.compile(r"(max|avg)_pool\d?d?|adaptive_(max|avg)_pool")
_ARG = {"argmax", "argmin", "topk", "sort", "kthvalue", "median"}
_SCAN = {"cumsum", "cumprod", "logcumsumexp", "cummax", "cummin"}
_LOSS = re.compile(r"_loss|cross_entropy|kl_div")
_REDUCE = {
    "sum", "mean", "prod", "max", "min", "amax", "amin", "var", "std", "var_mean", "std_mean", "norm",
    "linalg_vector_norm", "any", "all", "nansum", "logsumexp", "aminmax",
}  # fmt: skip
_MATMUL = {"mm", "bmm", "mv", "dot", "addmm", "baddbmm", "addmv", "addbmm"}
_RANDOM_OPS = re.compile(r"bernoulli|dropout")


@dataclass(frozen=True, slots=True)
class InputTraits:
    """One forward argument.

    Attributes:
        kind: `float`, `integer` or `bool` tensor; `scalar` for a Python number; `other` for anything else.
        shape: its shape; () where it is no tensor.
        structure: what every draw of it has in common and a generator must keep.
        domain: values the reference accepts here: any `real`, `positive` ones, the `unit` interval, or only its `own`.
        uniform: its draws look uniform on an interval.
        nonnegative: its draws have no negative value.
    """

    kind: Literal["float", "integer", "bool", "scalar", "other"]
    shape: tuple[int, ...] = ()
    structure: Structure = ""
    domain: Domain = "real"
    uniform: bool = False
    nonnegative: bool = False

    @property
    def free(self) -> bool:
        """Whether a generator may transform it."""
        return self.kind == "float" and self.structure not in FIXED and self.domain != "own"


@dataclass(frozen=True, slots=True)
class Traits:
    """What is known about a problem at given constants.

    Attributes:
        kind: kind of operator; `network` for several layers of different kinds.
        inputs: per forward argument.
        outputs: shapes and dtypes; empty where they could not be had without allocating too much.
        tuple_output: the reference returns a tuple, list or dict.
        random: two runs on the same inputs differ.
        dropout: it calls dropout, or draws from a Bernoulli distribution.
        degenerate: outputs of the own draw: all `zero`, `constant` over draws, or rounding `noise`.
        ops: aten operators that the reference calls.
        accumulation: terms of the longest linear sum (product, convolution, reduction, scan, statistics); 1 if none.
        along: dimension, counted from the end, of the first reduction or scan over an input; None if there is none.
        exponential: an operator overflows on moderately large values (exp without its maximum, powers, products).
        saturating: an operator is flat for large values, so that large inputs hide what comes before it.
        input_bytes, output_bytes, parameter_bytes: in fp32 (integers as they are).
        work: multiply-adds and elements touched by one forward, roughly.
        values_at: constants at which values were looked at; None where the problem could not be made small enough, and
            structure, domain, randomness and degeneracy are unknown.
    """

    kind: Kind
    inputs: tuple[InputTraits, ...]
    outputs: tuple[TensorSpec, ...]
    tuple_output: bool
    random: bool
    dropout: bool
    degenerate: Degenerate
    ops: frozenset[str]
    accumulation: int
    along: int | None
    exponential: bool
    saturating: bool
    input_bytes: int
    output_bytes: int
    parameter_bytes: int
    work: int
    values_at: Changes | None

    @property
    def output_count(self) -> int:
        """Number of output tensors."""
        return len(self.outputs)

    @property
    def integer_inputs(self) -> bool:
        """Whether an input holds integers."""
        return any(i.kind == "integer" for i in self.inputs)

    @property
    def integer_outputs(self) -> bool:
        """Whether every output holds integers or truth values."""
        return bool(self.outputs) and not any(o.dtype.is_floating_point or o.dtype.is_complex for o in self.outputs)

    @property
    def free_inputs(self) -> tuple[int, ...]:
        """Positions of the inputs that a generator may transform."""
        return tuple(i for i, t in enumerate(self.inputs) if t.free)


@dataclass(frozen=True, slots=True)
class _Values:
    """What draws show; the same at every shape of a problem."""

    inputs: tuple[InputTraits, ...]
    random: bool
    degenerate: Degenerate


def inspect_problem(problem: Problem, seed: int = 0, constants: Mapping[str, Any] | None = None) -> Traits:
    """What is known about a problem, at its declared shape or with some constants changed.

    Never allocates more than half a GiB, whatever the problem's declared shape.

    Args:
        problem: the problem.
        seed: seed of the two draws that values are looked at on.
        constants: changed module constants, for the sizes.

    Raises:
        InputError: the problem's own code raises.
    """
    return _inspect(problem, seed, tuple(sorted((constants or {}).items())))


@functools.lru_cache(maxsize=512)
def _inspect(problem: Problem, seed: int, constants: Changes) -> Traits:
    static = static_problem(problem, constants)
    small = shrunken(problem)
    values = _look_or_none(problem, seed, small) if small is not None else None
    inputs = values.inputs if values and len(values.inputs) == len(static.inputs) else None
    merged = tuple(
        replace(inputs[i], shape=spec.shape if spec else ()) if inputs else _unseen(spec)
        for i, spec in enumerate(static.inputs)
    )
    ops = frozenset(static.ops)
    names = {name.removesuffix("_") if not name.startswith("_") else name for name in ops}
    return Traits(
        kind=_kind(static, names),
        inputs=merged,
        outputs=static.outputs,
        tuple_output=static.tuple_output,
        random=values.random if values else False,
        dropout=any(_RANDOM_OPS.search(name) for name in ops),
        degenerate=values.degenerate if values else "",
        ops=ops,
        accumulation=static.accumulation,
        along=static.along,
        exponential=bool(names & _EXPONENTIAL),
        saturating=bool(names & _SATURATING),
        input_bytes=sum(s.bytes_as(torch.float32) for s in static.inputs if s),
        output_bytes=sum(s.bytes_as(torch.float32) for s in static.outputs),
        parameter_bytes=sum(s.bytes_as(torch.float32) for s in static.state_specs),
        work=static.work,
        values_at=small if values else None,
    )


def _look_or_none(problem: Problem, seed: int, constants: Changes) -> _Values | None:
    """What values show, or None where the problem does not run at a size that we chose: no fault of the user's."""
    try:
        return _look(problem, seed, constants)
    except InputError:
        if not constants:
            raise
        return None


def _unseen(spec: TensorSpec | None) -> InputTraits:
    if spec is None:
        return InputTraits("other")
    return InputTraits(_kind_of(spec.dtype), spec.shape)


def _kind_of(dtype: torch.dtype) -> Literal["float", "integer", "bool", "other"]:
    if dtype.is_floating_point:
        return "float"
    if dtype is torch.bool:
        return "bool"
    return "other" if dtype.is_complex else "integer"


# ---------------------------------------------------------------- kind


def _kind(static: Static, names: set[str]) -> Kind:
    """Kind of operator from what the reference calls and the shapes it returns."""
    products = sum(count for name, count in static.ops.items() if name in _MATMUL)
    convolutions = static.ops.get("convolution", 0)
    fused = any(_ATTENTION.search(n) for n in names)
    if (fused or (names & _SOFTMAX and static.ops.get("bmm", 0) >= 2)) and products <= 6 and not convolutions:
        return "attention"
    if products + convolutions >= 3 or (products and convolutions):
        return "network"
    if convolutions:
        return "conv_transpose" if static.transposed else "conv"
    if products:
        return "matmul"
    return _kind_without_products(static, names)


def _kind_without_products(static: Static, names: set[str]) -> Kind:
    shapes = [spec.shape for spec in static.inputs if spec]
    outputs = [spec.shape for spec in static.outputs]
    same_shape = bool(outputs) and all(o in shapes for o in outputs)
    scalar = bool(outputs) and all(spec.numel == 1 for spec in static.outputs)
    reduces = bool(names & _REDUCE)
    if names & _ARG:
        return "argreduce"
    if names & _SCAN:
        return "scan"
    if scalar and (len(shapes) > 1 or any(_LOSS.search(n) for n in names)):
        return "loss"
    if names & _SOFTMAX and same_shape:
        return "softmax"
    if names & _NORM or (reduces and same_shape):
        return "norm"
    if any(_POOL.search(n) for n in names):
        return "pool"
    if reduces:
        return "reduction"
    widest = torch.broadcast_shapes(*shapes) if _broadcastable(shapes) else None
    if outputs and all(o == widest for o in outputs):
        return "elementwise"
    return "other"


def _broadcastable(shapes: Sequence[tuple[int, ...]]) -> bool:
    depth = max((len(s) for s in shapes), default=0)
    padded = [(1,) * (depth - len(s)) + s for s in shapes]
    return all(len({n for n in column if n != 1}) <= 1 for column in zip(*padded, strict=True))


# ---------------------------------------------------------------- values


class _Reference:
    """A problem's reference at one shape, run on copies of its inputs."""

    def __init__(self, loaded: LoadedProblem, seed: int, dtype: torch.dtype) -> None:
        self._loaded = loaded
        self._model = loaded.build_model(loaded.init_inputs(seed), seed, dtype=dtype)
        self._dtype = dtype

    def outputs(self, inputs: list[Any], seed: int) -> list[Tensor]:
        """Output tensors; random operators draw from `seed`. Raises InputError where the reference raises."""
        copies = [self._copy(v) for v in inputs]
        with blame(self._loaded.problem, "Model.forward", self._loaded.constants):
            return list(tensors_in(forward(self._model, copies, seed)))

    def _copy(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.to(self._dtype, copy=True) if value.is_floating_point() else value.clone()


@functools.lru_cache(maxsize=512)
def _look(problem: Problem, seed: int, constants: Changes) -> _Values:
    """Look at two draws of the problem on the CPU."""
    loaded = load_problem(problem, dict(constants))
    reference = _Reference(loaded, seed, torch.float32)
    draws = [loaded.own_draw(seed + k) for k in (1, 2)]
    outputs = [reference.outputs(draw, seed) for draw in draws]
    again = reference.outputs(draws[0], seed + 1)
    random = not _all_close(outputs[0], again)
    inputs = []
    for i, value in enumerate(draws[0]):
        seen = _input_traits([draw[i] for draw in draws]) if isinstance(value, Tensor) else _plain(value)
        if seen.free:
            seen = replace(seen, domain=_domain(reference, draws[0], i, seen.structure, seed))
        inputs.append(seen)
    degenerate: Degenerate = "" if random else _degenerate(loaded, draws[0], outputs, seed)
    return _Values(tuple(inputs), random, degenerate)


def _plain(value: Any) -> InputTraits:
    return InputTraits("scalar" if isinstance(value, (bool, int, float)) else "other")


def _all_close(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(_close(x, y) for x, y in zip(a, b, strict=True))


def _close(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or not a.dtype.is_floating_point:
        return torch.equal(a, b)
    return torch.allclose(a, b, rtol=1e-4, atol=1e-5 * float(a.double().pow(2).mean().sqrt()), equal_nan=True)


def _input_traits(draws: list[Any]) -> InputTraits:
    if not all(isinstance(d, Tensor) and d.shape == draws[0].shape for d in draws):
        return InputTraits("other")
    kind = _kind_of(draws[0].dtype)
    if kind != "float":
        return InputTraits(kind, tuple(draws[0].shape))
    return InputTraits(
        kind,
        tuple(draws[0].shape),
        structure=find_structure(draws),
        uniform=looks_uniform(draws),
        nonnegative=all(bool((d >= 0).all()) for d in draws),
    )


def _domain(reference: _Reference, inputs: list[Any], position: int, structure: Structure, seed: int) -> Domain:
    """The widest domain in which the reference stays finite where it is finite on its own draw."""
    own = inputs[position]
    finite = [torch.isfinite(t) for t in reference.outputs(inputs, seed)]
    noise = torch.randn(own.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32).to(own.dtype)
    domains: tuple[Domain, ...] = ("real", "positive", "unit")
    for domain in domains:
        trial = list(inputs)
        trial[position] = keep(3 * noise, own, structure, domain)
        try:
            outputs = reference.outputs(trial, seed)
        except InputError:
            continue
        if len(outputs) == len(finite) and all(
            t.shape == ok.shape and bool((torch.isfinite(t) | ~ok).all()) for t, ok in zip(outputs, finite, strict=True)
        ):
            return domain
    return "own"


def _degenerate(loaded: LoadedProblem, inputs: list[Any], outputs: list[list[Tensor]], seed: int) -> Degenerate:
    first, second = outputs
    if all(not bool(t.any()) for t in (*first, *second)):
        return "zero"
    if _all_close(first, second):
        return "constant"
    try:
        exact = _Reference(loaded, seed, torch.float64).outputs(inputs, seed)
    except InputError:
        return ""  # a reference that insists on float32 cannot be held against float64 here
    return "noise" if any(_is_noise(ours, truth) for ours, truth in zip(first, exact, strict=False)) else ""


def _is_noise(ours: Tensor, truth: Tensor) -> bool:
    """Whether float32 is off by more than a tenth of the output's size."""
    if not truth.dtype.is_floating_point or ours.shape != truth.shape or not truth.numel():
        return False
    error = (ours.double() - truth).abs().nan_to_num(nan=0.0, posinf=0.0)
    return float(error.max()) > 0.1 * float(truth.double().pow(2).mean().sqrt())
