"""Truth: the reference evaluated in float64 on inputs and parameters that were rounded to the entry's dtype.

The global random state and the TF32 switches of torch belong to the whole process. Everything here that touches them
holds `EVALUATION_LOCK`; a caller that draws inputs in several threads must hold it too.
"""

import copy
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .compare import Selection, Ties, flatten_outputs, is_exact, normalised_error, row_scale
from .errors import InputError

if TYPE_CHECKING:
    from .draw import Drawn

EVALUATION_LOCK = threading.RLock()
"""Guards torch's process-wide random state and TF32 switches."""


class OracleError(Exception):
    """The reference cannot give a truth here.

    Attributes:
        reason: machine-readable: `reference-raises`, `float64-raises`, `bad-output`, `out-of-memory`.
    """

    def __init__(self, reason: str, message: str):
        super().__init__(f"{reason}: {message}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class ReferenceFlags:
    """torch's TF32 switches while the reference runs. torch's own defaults are (False, True)."""

    matmul_tf32: bool = False
    cudnn_tf32: bool = False


TRUE_FP32 = ReferenceFlags(False, False)
TORCH_DEFAULT = ReferenceFlags(False, True)


@dataclass(frozen=True, slots=True)
class Truth:
    """What is right for one draw of an entry.

    Attributes:
        outputs: float64 (or integer, bool) tensors on the device that they were computed on.
        output_dtypes: what the reference returns at the entry's dtype; a candidate must return the same.
        scales: `s` per output, broadcastable to it; None for exact outputs.
        reference_errors: normalised error of the reference itself at the entry's dtype. Where it exceeds the tolerance
            the draw is unlucky and must not be held against a candidate.
        reference: the reference's own outputs under the flags that were asked for, or None.
        selections: for index outputs whose ties torch leaves open (topk, sort) and, if asked for, argmax and argmin.
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

    def selection(self, output: int, ties: Ties) -> Selection | None:
        """How index output `output` is compared by value, or None if it is compared exactly."""
        return self.selections[output] if self.selections else None


@contextmanager
def tf32(flags: ReferenceFlags) -> Iterator[None]:
    """Set torch's TF32 switches for a while (the caller holds `EVALUATION_LOCK`)."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32, cudnn.allow_tf32 = flags.matmul_tf32, flags.cudnn_tf32
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def cast_inputs(inputs: Sequence[Any], dtype: torch.dtype, device: str | torch.device) -> list[Any]:
    """Copies on `device`; floating-point tensors in `dtype`, everything else as it is."""
    return [
        x.detach().to(device=device, dtype=dtype if x.is_floating_point() else x.dtype, copy=True)
        if isinstance(x, Tensor)
        else copy.deepcopy(x)
        for x in inputs
    ]


def build_reference(drawn: "Drawn", dtype: torch.dtype, device: str | torch.device) -> nn.Module:
    """The reference with its parameters rounded to the entry's dtype, seeded by the draw."""
    model: nn.Module = drawn.loaded.build_model(drawn.init_inputs, drawn.seed, device, dtype)
    return model


def run_forward(model: nn.Module, inputs: Sequence[Any], seed: int) -> list[Tensor]:
    """One forward pass without gradients from a seeded random state; outputs flattened and detached."""
    torch.manual_seed(seed)
    with torch.no_grad():
        return [t.detach() for t in flatten_outputs(model(*inputs))]


def reference_outputs(
    drawn: "Drawn", flags: ReferenceFlags, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu"
) -> list[Tensor]:
    """The reference's own outputs at `dtype` under given TF32 switches, for the allclose protocols.

    Raises:
        OracleError: the reference raises or runs out of memory.
    """
    with EVALUATION_LOCK, tf32(flags), _oracle_errors("reference-raises"):
        model = build_reference(drawn, dtype, device)
        return run_forward(model, cast_inputs(drawn.inputs, dtype, device), drawn.seed)


@contextmanager
def _oracle_errors(reason: str) -> Iterator[None]:
    try:
        yield
    except (torch.cuda.OutOfMemoryError, MemoryError) as error:
        raise OracleError("out-of-memory", str(error).splitlines()[0] if str(error) else "") from error
    except InputError as error:
        raise OracleError("bad-output", str(error)) from error
    except Exception as error:  # the problem's code may raise anything
        raise OracleError(reason, f"{type(error).__name__}: {error}") from error


def compute_truth(
    drawn: "Drawn",
    dtype: torch.dtype,
    device: str | torch.device,
    with_reference: ReferenceFlags | None = None,
) -> Truth:
    """Evaluate the reference in float64, and once at the entry's dtype.

    Args:
        drawn: inputs, init inputs and the loaded problem.
        dtype: the entry's dtype; inputs and parameters are rounded to it before they are widened.
        device: where to compute.
        with_reference: keep the reference's own outputs, computed under these switches.

    Raises:
        OracleError: with a machine-readable reason.
    """
    with EVALUATION_LOCK, tf32(with_reference or TRUE_FP32):
        with _oracle_errors("reference-raises"):
            model = build_reference(drawn, dtype, device)
            wide = copy.deepcopy(model).double()
            inputs = cast_inputs(drawn.inputs, dtype, device)
            reference = run_forward(model, inputs, drawn.seed)
        del model, inputs
        with _oracle_errors("float64-raises"):
            inputs = cast_inputs(cast_inputs(drawn.inputs, dtype, device), torch.float64, device)
            outputs = run_forward(wide, inputs, drawn.seed)
    scales = tuple(None if is_exact(t) else row_scale(t) for t in outputs)
    errors = tuple(normalised_error(y, t, s) for y, t, s in zip(reference, outputs, scales, strict=True))
    return Truth(
        outputs=tuple(outputs),
        output_dtypes=tuple(t.dtype for t in reference),
        scales=scales,
        reference_errors=errors,
        reference=tuple(reference) if with_reference else None,
    )
