"""Sizes of a problem, without allocating them: its code is run once on torch's meta device.

Many KernelBench problems have 2 to 16 GiB of inputs. Shapes, bytes, the operators that the reference calls and how long
its sums are can be had in milliseconds and no memory.
"""

import functools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from .dispatch import OpMode
from .errors import InputError
from .problem import LoadedProblem, Problem, blame, forward, load_problem

_MAX_CALLS = 2500  # operators followed; unrolled recurrent networks call tens of thousands, at 0.5 ms each

_MAX_CPU_BYTES = 256 << 20  # inputs of a problem that only runs where its values are real

_PRODUCTS = {"mm", "bmm", "mv", "dot", "addmm", "baddbmm", "addmv", "addbmm"}
_LINEAR_REDUCTIONS = {
    "sum", "nansum", "mean", "nanmean", "var", "std", "var_mean", "std_mean", "norm", "linalg_vector_norm",
    "mse_loss", "smooth_l1_loss", "huber_loss", "l1_loss", "binary_cross_entropy", "nll_loss_forward", "trace",
    "kl_div",
}  # fmt: skip
_SCANS = {"cumsum", "cumprod", "logcumsumexp"}
_NORMS = {"native_layer_norm", "native_group_norm", "native_batch_norm", "_fused_rms_norm", "_native_batch_norm_legit"}
_POOLS = {"avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d"}
_ORDERED = {"max", "min", "amax", "amin", "argmax", "argmin", "topk", "sort", "median", "kthvalue", "prod", "logsumexp"}
_SOFTMAXES = {"_softmax", "_log_softmax", "_safe_softmax", "logsumexp"}
#: Operators whose first dimension argument says along what the problem works.
_ALONG = _LINEAR_REDUCTIONS | _SCANS | _ORDERED | _SOFTMAXES


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and dtype of a tensor that was never allocated."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def bytes_as(self, dtype: torch.dtype) -> int:
        """Bytes, with floating-point values stored as `dtype`."""
        kept = dtype if self.dtype.is_floating_point else self.dtype
        return self.numel * kept.itemsize


@dataclass(frozen=True, slots=True)
class Static:
    """What one run on the meta device tells.

    Attributes:
        inputs: per forward argument its spec, or None where it is no tensor.
        outputs: specs of the output tensors; empty where the run was cut short.
        tuple_output: the reference returns a tuple, list or dict.
        state: shapes of parameters and buffers by name.
        state_specs: their specs.
        ops: how often each aten operator is called.
        accumulation: length of the longest linear sum (product, convolution, reduction, scan, statistics), 1 if none.
        along: dimension, counted from the end, of the first reduction or scan over a tensor shaped like an input.
        work: multiply-adds of products and convolutions plus elements touched by the rest.
        transposed: a convolution is a transposed one.
        complete: the run was not cut short.
    """

    inputs: tuple[TensorSpec | None, ...]
    outputs: tuple[TensorSpec, ...]
    tuple_output: bool
    state: Mapping[str, tuple[int, ...]]
    state_specs: tuple[TensorSpec, ...]
    ops: Mapping[str, int]
    accumulation: int
    along: int | None
    work: int
    transposed: bool
    complete: bool

    def bytes_as(self, dtype: torch.dtype) -> int:
        """Bytes of inputs, outputs, parameters and buffers with floating-point values as `dtype`."""
        specs = (*(s for s in self.inputs if s is not None), *self.outputs, *self.state_specs)
        return sum(s.bytes_as(dtype) for s in specs)


class _CutShort(Exception):
    """Enough operators were seen."""


class _Recorder(OpMode):
    """Counts operators, their work and the length of their sums."""

    def __init__(self, input_shapes: set[tuple[int, ...]]) -> None:
        super().__init__()
        self.ops: Counter[str] = Counter()
        self.accumulation = 1
        self.work = 0
        self.along: int | None = None
        self.transposed = False
        self._input_shapes = input_shapes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        self.ops[name] += 1
        if self.ops.total() > _MAX_CALLS:
            raise _CutShort
        first_out = next(tensors_in(out), None)
        if first_out is None:
            return out
        length = _sum_length(name, args, first_out)
        self.accumulation = max(self.accumulation, length)
        self.work += first_out.numel() * _terms(name, length, args)
        self.work += sum(t.numel() for t in tensors_in(args)) if length > 1 or name in _ORDERED else 0
        self.transposed |= name == "convolution" and bool(args[6])
        if self.along is None and name in _ALONG:
            self.along = _dimension(args, self._input_shapes)
        return out


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Tensors in nested tuples, lists and dictionaries, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_in(part)
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from tensors_in(part)


def _sum_length(name: str, args: Any, out: torch.Tensor) -> int:
    """How many terms one output element of an operator adds up, 1 where it adds none."""
    operands = list(tensors_in(args))
    if not operands:
        return 1
    if name in _PRODUCTS:
        return operands[-2].shape[-1] if operands[-2].ndim else 1
    if name == "convolution":
        weight = args[1]
        kernel = math.prod(weight.shape[2:])
        return kernel * (weight.shape[0] // max(1, args[8]) if args[6] else weight.shape[1])
    if name in _POOLS and isinstance(args[1], (list, tuple)) and "adaptive" not in name:
        return math.prod(args[1])
    if name == "nll_loss_forward":
        return max(1, operands[1].numel())
    if name in _LINEAR_REDUCTIONS or name in _POOLS:
        return max(1, operands[0].numel() // max(1, out.numel()))
    if name.startswith("linalg_") or "cholesky" in name or "triangular" in name:
        return operands[0].shape[-1] if operands[0].ndim else 1
    if name in _SCANS:
        return operands[0].shape[args[1]] if operands[0].ndim else 1
    if name in _NORMS:
        return max(1, operands[0].numel() // max(1, _groups(name, args)))
    return 1


def _terms(name: str, length: int, args: Any) -> int:
    """Operations per output element."""
    if name in _PRODUCTS or name == "convolution" or name in _POOLS:
        return length
    return math.prod(args[1]) if name.startswith("max_pool") else 1


def _groups(name: str, args: Any) -> int:
    x = args[0]
    if name == "native_group_norm":
        return x.shape[0] * args[6]
    if name in ("native_layer_norm", "_fused_rms_norm"):
        return math.prod(x.shape[: x.ndim - len(args[1])])
    return x.shape[1] if x.ndim > 1 else 1


def _dimension(args: Any, input_shapes: set[tuple[int, ...]]) -> int | None:
    x = args[0]
    if not isinstance(x, torch.Tensor) or tuple(x.shape) not in input_shapes:
        return None
    for value in args[1:]:
        if isinstance(value, (list, tuple)) and len(value) == 1:
            value = value[0]
        if isinstance(value, int) and not isinstance(value, bool) and -x.ndim <= value < x.ndim:
            return value - x.ndim if value >= 0 else value
    return None


def spec_of(value: Any) -> TensorSpec | None:
    """A tensor's spec; None for anything else."""
    return TensorSpec(tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else None


def static_run(loaded: LoadedProblem, device: Literal["meta", "cpu"] = "meta") -> Static:
    """Run a loaded problem and note its sizes.

    A constructor that reads values (`.item()`) cannot run on the meta device; then the model alone is built on the CPU.

    Raises:
        InputError: the problem's code raises, which on this device can also mean that it looks at values.
    """
    model = _meta_model(loaded) if device == "meta" else loaded.build_model(loaded.init_inputs(0), 0)
    inputs = loaded.own_draw(0, device)
    recorder = _Recorder({tuple(t.shape) for t in tensors_in(inputs)})
    outputs: Any = ()
    complete = True
    shapes = [tuple(t.shape) for t in tensors_in(inputs)]
    with blame(loaded.problem, f"Model.forward on inputs of shapes {shapes}", loaded.constants):
        try:
            with recorder:
                outputs = forward(model, inputs, 0)
        except _CutShort:
            complete = False
    state = model.state_dict(keep_vars=True)
    return Static(
        inputs=tuple(spec_of(v) for v in inputs),
        outputs=tuple(s for t in tensors_in(outputs) if (s := spec_of(t))),
        tuple_output=not isinstance(outputs, torch.Tensor) and complete,
        state={name: tuple(t.shape) for name, t in state.items()},
        state_specs=tuple(s for t in state.values() if (s := spec_of(t))),
        ops=dict(recorder.ops),
        accumulation=recorder.accumulation,
        along=recorder.along,
        work=recorder.work,
        transposed=recorder.transposed,
        complete=complete,
    )


def _meta_model(loaded: LoadedProblem) -> torch.nn.Module:
    try:
        return loaded.build_model(loaded.init_inputs(0, "meta"), 0, "meta")
    except InputError as error:
        if "meta" not in str(error):
            raise
    return loaded.build_model(loaded.init_inputs(0, "cpu"), 0, "cpu").to("meta")


@functools.lru_cache(maxsize=2048)
def static_problem(problem: Problem, constants: tuple[tuple[str, Any], ...] = ()) -> Static:
    """`static_run` of a problem with some constants changed, remembered.

    Raises:
        InputError: as `static_run` and `load_problem`.
    """
    return static_run(load_problem(problem, dict(constants)), _device(problem))


@functools.lru_cache(maxsize=512)
def _device(problem: Problem) -> Literal["meta", "cpu"]:
    """The CPU for a problem that looks at values and whose inputs are small, else the meta device."""
    loaded = load_problem(problem)
    try:
        static_run(loaded)
    except InputError:
        return "cpu" if _drawn_bytes(loaded) <= _MAX_CPU_BYTES else "meta"
    return "meta"


def _drawn_bytes(loaded: LoadedProblem) -> int:
    """Bytes of the inputs; 0 where only drawing them would tell."""
    try:
        return sum(t.numel() * t.dtype.itemsize for t in tensors_in(loaded.own_draw(0, "meta")))
    except InputError:
        return 0
