"""What the judge knows about one draw of an entry, kept within a byte budget and computed once for all who ask."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from ..suites.compare import Ties
from ..suites.draw import draw_entry
from ..suites.entry import Entry
from ..suites.envelope import draw_errors
from ..suites.hashing import derive_seed
from ..suites.oracle import ReferenceFlags, Truth, compute_truth, reference_outputs, run_forward
from ..suites.problem import RNG_LOCK, Problem
from ..suites.protocol import ProtocolSpec
from ..suites.validity import Measured

V = TypeVar("V")


class SingleFlight(Generic[V]):
    """Least-recently-used values within a byte budget; concurrent requests for one key compute it once.

    A value larger than the whole budget is handed out and not kept. A failure is handed to everyone who waited for it
    and is not kept either.

    Args:
        budget: bytes.
        size: what keeping a value costs, in bytes.
        group: of a key. Keys of one group are asked for in rounds, all of them once and then again; a value is not
            dropped for another of its own group, because it would be missed before that one is asked for again. By
            default each key is a group of its own.
    """

    def __init__(
        self, budget: int, size: Callable[[V], int], group: Callable[[Hashable], Hashable] = lambda key: key
    ) -> None:
        self.budget = budget
        self._size = size
        self._group = group
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, V] = OrderedDict()
        self._bytes = 0
        self._flying: dict[Hashable, Future[V]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes kept now."""
        return self._bytes

    def get(self, key: Hashable, compute: Callable[[], V]) -> V:
        """The value for a key, computed by the first who asks.

        Raises:
            whatever `compute` raises.
        """
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            future = self._flying.get(key)
            mine = future is None
            if future is None:
                future = self._flying[key] = Future()
        if not mine:
            return future.result()
        try:
            value = compute()
        except BaseException as error:
            with self._lock:
                del self._flying[key]
            future.set_exception(error)
            raise
        with self._lock:
            del self._flying[key]
            self._keep(key, value)
        future.set_result(value)
        return value

    def _keep(self, key: Hashable, value: V) -> None:
        size, own = self._size(value), self._group(key)
        others = [k for k in self._kept if self._group(k) != own]  # the least recently used first
        if size > self.budget - self._bytes + sum(self._size(self._kept[k]) for k in others):
            return
        for other in others:
            if self._bytes + size <= self.budget:
                break
            self._bytes -= self._size(self._kept.pop(other))
        self._kept[key] = value
        self._bytes += size


@dataclass(frozen=True, slots=True)
class Reference:
    """One draw of an entry and what is right for it. Read-only: it is shared by all workers.

    Attributes:
        inputs: arguments of the forward call, on the judge's device.
        init_inputs: constructor arguments.
        state: the reference's parameters and buffers, for the candidate.
        seed: the random state that the candidate's forward starts from.
        model_seed: the random state that the constructor starts from.
        outputs: the right answers: truth in float64, or for the allclose protocols the reference's own outputs.
        truth: None for the allclose protocols.
        dtypes: what the outputs' dtypes have to be.
        finite: whether every right answer is finite.
        draw_errors: normalised errors on this draw of implementations known to be right, per output; () without truth.
    """

    inputs: list[Any]
    init_inputs: list[Any]
    state: dict[str, Tensor]
    seed: int
    model_seed: int
    outputs: tuple[Tensor, ...]
    truth: Truth | None
    dtypes: tuple[torch.dtype, ...]
    finite: bool
    draw_errors: tuple[float, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes that keeping this costs."""
        held = [*_tensors(self.inputs), *_tensors(self.init_inputs), *self.state.values()]
        held += [] if self.truth else list(self.outputs)
        return sum(t.numel() * t.element_size() for t in held) + (self.truth.nbytes if self.truth else 0)


def compute_reference(
    problem: Problem,
    entry: Entry,
    seed: int,
    device: str,
    spec: ProtocolSpec,
    measured: Measured | None = None,
    ties: Ties = "first",
    second: bool = False,
) -> Reference:
    """Draw an entry and compute what is right for it under a protocol.

    torch's random state and TF32 switches belong to the process, so one thread at a time is in here.

    Args:
        seed: of the draw.
        measured: the entry's scales, for comparison with truth.
        second: other inputs for the same model (same parameters and constructor arguments), derived from the seed.

    Raises:
        InputError: the problem's code is broken.
        OracleError: the reference cannot answer here.
        MemoryError: the draw does not fit.
    """
    with RNG_LOCK:
        drawn = draw_entry(problem, entry, seed, device)
        if second:
            other = draw_entry(problem, entry, derive_seed(b"kernelward second", seed), device)
            drawn = replace(drawn, inputs=other.inputs, seed=other.seed)
        if spec.cast_integers:
            drawn = replace(drawn, inputs=[_cast(x, drawn.dtype) for x in drawn.inputs])
        state = {k: v.detach() for k, v in drawn.build_model().state_dict().items()}
        truth: Truth | None = None
        errors: tuple[float, ...] = ()
        if spec.comparison == "truth":
            truth = compute_truth(drawn, scale_pool=measured.scale_pool if measured else None, ties=ties)
            outputs, dtypes = truth.outputs, truth.output_dtypes
            errors = draw_errors(drawn, truth)
        else:
            outputs = tuple(reference_outputs(drawn, ReferenceFlags(spec.matmul_tf32, spec.cudnn_tf32)))
            dtypes = tuple(t.dtype for t in outputs)
    return Reference(
        inputs=drawn.inputs,
        init_inputs=drawn.init_inputs,
        state=state,
        seed=drawn.seed if spec.rng == "reset" else drawn.seed + 1,
        model_seed=drawn.model_seed,
        outputs=outputs,
        truth=truth,
        dtypes=dtypes,
        finite=all(bool(torch.isfinite(t).all()) for t in outputs if t.is_floating_point()),
        draw_errors=errors,
    )


@dataclass(frozen=True, slots=True)
class SideEffects:
    """What the reference itself does to its inputs: a candidate may do the same.

    Attributes:
        aliasing: an output shares memory with an input.
        mutates: an input changes.
    """

    aliasing: bool
    mutates: bool


def side_effects(problem: Problem, entry: Entry, seed: int, device: str) -> SideEffects:
    """Run the reference once more and look at its inputs (asked for only where a candidate did the same).

    Raises:
        InputError: the problem's code is broken.
        OracleError: the reference does not return tensors.
    """
    with RNG_LOCK:
        drawn = draw_entry(problem, entry, seed, device)
        before = [x.clone() for x in _tensors(drawn.inputs)]
        outputs = run_forward(drawn.build_model(), drawn.inputs, drawn.seed)
    inputs = _tensors(drawn.inputs)
    owned = {x.untyped_storage().data_ptr() for x in inputs if x.numel()}
    return SideEffects(
        aliasing=any(y.untyped_storage().data_ptr() in owned for y in outputs if y.numel()),
        mutates=any(not torch.equal(a, b) for a, b in zip(before, inputs, strict=True)),
    )


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) else value


def _tensors(values: list[Any]) -> list[Tensor]:
    return [v for v in values if isinstance(v, Tensor)]
