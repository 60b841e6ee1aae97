"""Truth: the reference evaluated in float64 on inputs and parameters that were rounded to the entry's dtype.

The global random state and the TF32 switches of torch belong to the whole process: everything here that touches them
holds `problem.RNG_LOCK`.
"""

import copy
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from .compare import Selection, Ties, flatten_outputs, is_exact, normalised_error, row_scale
from .dispatch import IndexWatch, Widen, in_float64
from .errors import InputError
from .problem import RNG_LOCK, forward, is_out_of_memory
from .slices import SlicePlan, find_plan

if TYPE_CHECKING:
    from .draw import Drawn


class OracleError(Exception):
    """The reference cannot give a truth here.

    Attributes:
        reason: machine-readable: `reference-raises`, `float64-raises`, `bad-output`, `out-of-memory`.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self._message = message

    def __reduce__(self) -> tuple[type["OracleError"], tuple[str, str]]:
        return OracleError, (self.reason, self._message)


@dataclass(frozen=True, slots=True)
class ReferenceFlags:
    """torch's TF32 switches while the reference runs; torch's own defaults are (False, True)."""

    matmul_tf32: bool = False
    cudnn_tf32: bool = False


TRUE_FP32 = ReferenceFlags(False, False)


@dataclass(frozen=True, slots=True)
class Truth:
    """What is right for one draw of an entry.

    Attributes:
        outputs: float64 (or integer, bool) tensors on the device that they were computed on.
        output_dtypes: what the reference returns at the entry's dtype; a candidate must return the same.
        scales: `s` per output, broadcastable to it; None for exact outputs.
        reference_errors: normalised error of the reference itself at the entry's dtype. Where it exceeds the tolerance
            the draw is unlucky and must not be held against a candidate.
        reference: the reference's own outputs under the switches that were asked for, or None.
        selections: for outputs that are indices, what they point into; compared by value where torch leaves the order
            of ties open (topk, sort, kthvalue, mode, median) and, under `ties="value"`, for argmax and argmin as well.
    """

    outputs: tuple[Tensor, ...]
    output_dtypes: tuple[torch.dtype, ...]
    scales: tuple[Tensor | None, ...]
    reference_errors: tuple[float, ...]
    reference: tuple[Tensor, ...] | None = None
    selections: tuple[Selection | None, ...] = ()

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the outputs."""
        return tuple(tuple(t.shape) for t in self.outputs)

    @property
    def nbytes(self) -> int:
        """Bytes that keeping this truth costs."""
        held = [*self.outputs, *(self.reference or ()), *(s.values for s in self.selections if s)]
        return sum(t.numel() * t.element_size() for t in held)

    def selection(self, output: int) -> Selection | None:
        """How index output `output` is compared by value, or None if it is compared exactly."""
        return self.selections[output] if self.selections else None

    def with_scale_pool(self, pool: Sequence[Sequence[float] | None]) -> "Truth":
        """The same truth, with `s` of small outputs raised to the row scales that were pooled over several draws.

        Args:
            pool: `Measured.scale_pool`: per output the pooled row scales in order, or None.
        """
        return replace(self, scales=tuple(_raised(s, p) for s, p in zip(self.scales, pool, strict=True)))


def _raised(scale: Tensor | None, pool: Sequence[float] | None) -> Tensor | None:
    if scale is None or pool is None:
        return scale
    return torch.maximum(scale, torch.tensor(pool, dtype=scale.dtype, device=scale.device).reshape(scale.shape))


@contextmanager
def tf32(flags: ReferenceFlags) -> Iterator[None]:
    """Set torch's TF32 switches for a while; the caller holds `RNG_LOCK`."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32, cudnn.allow_tf32 = flags.matmul_tf32, flags.cudnn_tf32
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


@contextmanager
def oracle_errors(reason: str) -> Iterator[None]:
    """Turn whatever the problem's code raises into an `OracleError` with this reason, or `out-of-memory`."""
    try:
        yield
    except OracleError:
        raise
    except Exception as error:  # the problem's code may raise anything
        if is_out_of_memory(error):
            raise OracleError("out-of-memory", str(error).partition("\n")[0] or type(error).__name__) from error
        raise OracleError(reason, f"{type(error).__name__}: {error}") from error


def cast_inputs(inputs: Sequence[Any], dtype: torch.dtype) -> list[Any]:
    """Copies of the inputs; floating-point tensors in `dtype`, everything else as it is."""

    def cast(x: Any) -> Any:
        if isinstance(x, Tensor):
            return x.detach().to(dtype=dtype if x.is_floating_point() else x.dtype, copy=True)
        return copy.deepcopy(x)

    return tree_map(cast, list(inputs))


def tensors_of(model: nn.Module, inputs: Sequence[Any]) -> list[Tensor]:
    """Every tensor that a forward reads: parameters, buffers and inputs."""
    return [*model.parameters(), *model.buffers(), *(x for x in tree_leaves(list(inputs)) if isinstance(x, Tensor))]


def reference_outputs(drawn: "Drawn", flags: ReferenceFlags = TRUE_FP32, seed: int | None = None) -> list[Tensor]:
    """The reference's own outputs at the entry's dtype under given TF32 switches.

    Args:
        drawn: the draw.
        flags: TF32 switches.
        seed: random state of the forward; that of the draw by default (truth uses the same).

    Raises:
        OracleError: the reference raises, returns something else than tensors, or runs out of memory.
    """
    with RNG_LOCK, tf32(flags), oracle_errors("reference-raises"):
        model = drawn.build_model()
        return run_forward(model, cast_inputs(drawn.inputs, drawn.dtype), drawn.seed if seed is None else seed)


def run_forward(model: nn.Module, inputs: list[Any], seed: int) -> list[Tensor]:
    """One forward without gradients from a seeded random state, flattened.

    Raises:
        OracleError: it returns something else than tensors. Whatever the forward raises passes through.
    """
    result = forward(model, inputs, seed)
    try:
        return flatten_outputs(result)
    except InputError as error:
        raise OracleError("bad-output", str(error)) from error


def compute_truth(
    drawn: "Drawn",
    with_reference: ReferenceFlags | None = None,
    *,
    scale_pool: Sequence[Sequence[float] | None] | None = None,
    ties: Ties = "first",
    memory_bytes: int | None = None,
) -> Truth:
    """Evaluate the reference in float64, and once at the entry's dtype.

    Both runs start from the same random state, with freshly built parameters. Where the float64 run would not fit, it
    is done in batch slices, if slices are shown to give the same outputs (`slices`).

    Args:
        drawn: inputs (already rounded to the entry's dtype) and what builds the reference.
        with_reference: keep the reference's own outputs, computed under these TF32 switches.
        scale_pool: `Measured.scale_pool`.
        ties: how argmax and argmin outputs are to be compared.
        memory_bytes: what the float64 run may use beside the inputs; by default what the device has left.

    Raises:
        OracleError: with a machine-readable reason.
    """
    with RNG_LOCK:
        reference = reference_outputs(drawn, with_reference or TRUE_FP32)
        outputs, selections = _wide_outputs(drawn, reference, ties, memory_bytes)
    if [t.shape for t in outputs] != [t.shape for t in reference]:
        raise OracleError("bad-output", "the float64 run returns other shapes than the reference")
    scales = tuple(None if is_exact(t) else row_scale(t) for t in outputs)
    truth = Truth(
        outputs=tuple(outputs),
        output_dtypes=tuple(t.dtype for t in reference),
        scales=scales,
        reference_errors=(),
        reference=tuple(reference) if with_reference else None,
        selections=tuple(selections),
    )
    if scale_pool is not None:
        truth = truth.with_scale_pool(scale_pool)
    errors = tuple(
        normalised_error(y, t, s, truth.selection(i))
        for i, (y, t, s) in enumerate(zip(reference, outputs, truth.scales, strict=True))
    )
    return replace(truth, reference_errors=errors)


def _wide_outputs(
    drawn: "Drawn", reference: list[Tensor], ties: Ties, memory_bytes: int | None
) -> tuple[list[Tensor], list[Selection | None]]:
    with tf32(TRUE_FP32), oracle_errors("float64-raises"):
        model = drawn.build_model()
        available = free_memory(drawn.device) if memory_bytes is None else memory_bytes
        numel = sum(t.numel() for t in (*tensors_of(model, drawn.inputs), *reference))
        plan = None
        if (pieces := 1 + 24 * numel // max(1, available)) > 1:  # inputs, outputs and one temporary of eight bytes each
            plan = _find_plan(drawn, model, reference)
        if plan is None:
            try:
                return _run_wide(in_float64(model), drawn, ties)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
            model = drawn.build_model()
            plan, pieces = _find_plan(drawn, model, reference), 8
            if plan is None:
                raise OracleError("out-of-memory", "the float64 run does not fit, and cannot be sliced")
        return _run_sliced(in_float64(model), drawn, reference, plan, pieces, ties)


def _find_plan(drawn: "Drawn", model: nn.Module, reference: list[Tensor]) -> SlicePlan | None:
    return find_plan(
        lambda part: run_forward(model, cast_inputs(part, drawn.dtype), drawn.seed), drawn.inputs, reference
    )


def _run_wide(model: nn.Module, drawn: "Drawn", ties: Ties) -> tuple[list[Tensor], list[Selection | None]]:
    with IndexWatch(ties) as watch, Widen():
        outputs = run_forward(model, cast_inputs(drawn.inputs, torch.float64), drawn.seed)
    return outputs, [watch.selection(t) for t in outputs]


def _run_sliced(
    model: nn.Module, drawn: "Drawn", reference: list[Tensor], plan: SlicePlan, pieces: int, ties: Ties
) -> tuple[list[Tensor], list[Selection | None]]:
    outputs = [torch.empty_like(t, dtype=torch.float64 if t.is_floating_point() else t.dtype) for t in reference]
    found: list[list[Selection | None]] = []
    for start, stop in plan.steps(pieces):
        with IndexWatch(ties) as watch, Widen():
            part = run_forward(model, cast_inputs(plan.cut(drawn.inputs, start, stop), torch.float64), drawn.seed)
        for full, piece in zip(outputs, part, strict=True):
            full[start:stop] = piece
        found.append([watch.selection(piece) for piece in part])
    return outputs, [_joined(parts) for parts in zip(*found, strict=True)]


def _joined(parts: Sequence[Selection | None]) -> Selection | None:
    """One selection from those of consecutive slices; None where there is none."""
    present = [p for p in parts if p is not None]
    if len(present) < len(parts):
        return None
    return Selection(torch.cat([p.values for p in present]), present[0].dim)


def free_memory(device: torch.device) -> int:
    """Bytes that may still be allocated: what CUDA and torch's own cache have left, or half of the free host memory.

    Where this process has a bound on its part of a GPU, at most what is left of that.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        held = torch.cuda.memory_allocated(device)
        index = torch.cuda.current_device() if device.index is None else device.index
        bound = int(torch.cuda.get_per_process_memory_fraction(index) * total)
        return max(0, min(free + torch.cuda.memory_reserved(device), bound) - held)
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


KEPT_SHARE = 32  # of a device's memory torch may keep one part in so many, where others want the rest


def give_back_memory(device: torch.device, keep: int | None = None) -> None:
    """Return to a GPU what torch keeps of its memory without using it, where that is much; elsewhere nothing.

    The gate and large truths take what is free. A judge may share its GPU with a trainer, and each candidate's process
    needs a context of its own.

    Args:
        keep: bytes that may stay; by default a part of the device's memory, since to take it again costs time.
    """
    if device.type != "cuda":
        return
    if keep is None:
        keep = torch.cuda.get_device_properties(device).total_memory // KEPT_SHARE
    if torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device) > keep:
        torch.cuda.empty_cache()
