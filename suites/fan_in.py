"""Fan-in: how many input and parameter elements one output element depends on, counted by autograd in float64.

The ratio of input to output sizes is badly low (47 for a product over 2,048 terms whose fan-in is 2,042), so gradients
of sampled output elements are counted: of those that a small change of everything moves, the first, the last and some
between, and those that it moves most. Others are dead, behind a ReLU or between the strides of a transposed
convolution, where seven of eight outputs may depend on nothing; callers take the largest count over several draws. The
least is 1.
"""

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import allow_mutation_on_saved_tensors
from torch.utils._pytree import tree_leaves, tree_map

from .compare import flatten_outputs
from .dispatch import Widen, in_float64
from .hashing import derive_seed
from .oracle import TRUE_FP32, OracleError, cast_inputs, free_memory, oracle_errors, run_forward, tensors_of, tf32
from .problem import RNG_LOCK, seed_everything
from .slices import SlicePlan, find_plan

if TYPE_CHECKING:
    from .draw import Drawn

SAMPLES = 4
_NUDGE = 1e-6
_WHOLE = 1 << 18  # elements; larger problems are sampled in slices of one item where slices are shown to be the same
_BYTES_PER_ELEMENT = 80  # float64 values, gradients, and what a few operations save for the backward pass


def fan_in(drawn: "Drawn", reference: Sequence[Tensor], memory_bytes: int | None = None) -> tuple[int, ...]:
    """The largest count over sampled elements of each output; 1 for outputs without gradients (indices, bools).

    Args:
        drawn: the draw.
        reference: the reference's outputs for it, at the entry's dtype (to show that slices are the same).
        memory_bytes: what the backward passes may use; by default what the device has left.

    Raises:
        OracleError: `out-of-memory` where neither the whole nor slices fit; `float64-raises`.
    """
    with RNG_LOCK, tf32(TRUE_FP32), oracle_errors("float64-raises"):
        numel = sum(t.numel() for t in (*tensors_of(drawn.build_model(), drawn.inputs), *reference))
        plan = None
        if numel > _WHOLE:
            model = drawn.build_model()
            plan = find_plan(
                lambda part: run_forward(model, cast_inputs(part, drawn.dtype), drawn.seed), drawn.inputs, reference
            )
            del model
        if plan is None:
            available = free_memory(drawn.device) if memory_bytes is None else memory_bytes
            if numel * _BYTES_PER_ELEMENT > available:
                raise OracleError("out-of-memory", f"fan-in of {numel} elements does not fit in {available} bytes")
            return _counted(drawn, drawn.inputs)
        return tuple(max(counts) for counts in zip(*(_item(drawn, plan, i) for i in (0, plan.batch - 1)), strict=True))


def _item(drawn: "Drawn", plan: SlicePlan, item: int) -> tuple[int, ...]:
    return _counted(drawn, plan.cut(drawn.inputs, item, item + 1))


def _counted(drawn: "Drawn", inputs: Sequence[Any]) -> tuple[int, ...]:
    model = in_float64(drawn.build_model())
    moved = _moved(drawn, model, inputs)
    try:
        return _from_gradients(drawn, model, inputs, moved)
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
    # `out += shortcut` behind a ReLU: what the backward pass needs is kept aside, which costs time and memory
    with allow_mutation_on_saved_tensors():
        return _from_gradients(drawn, model, inputs, moved)


def _from_gradients(
    drawn: "Drawn", model: nn.Module, inputs: Sequence[Any], moved: Sequence[Tensor]
) -> tuple[int, ...]:
    values, leaves = _with_gradients(model, inputs)
    seed_everything(drawn.seed)
    with torch.enable_grad(), Widen():
        outputs = flatten_outputs(model(*values))
        return tuple(_largest(t, by, leaves) for t, by in zip(outputs, moved, strict=True))


def _moved(drawn: "Drawn", model: nn.Module, inputs: Sequence[Any]) -> list[Tensor]:
    """How far each output element moves when every input and parameter does, by about a millionth."""
    rng = torch.Generator(drawn.device).manual_seed(derive_seed(b"kernelward fan-in", drawn.seed))

    def nudged(x: Any) -> Any:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return x
        noise = torch.randn(x.shape, generator=rng, dtype=x.dtype, device=x.device)
        return x + _NUDGE * (1.0 + x.abs()) * noise

    copied = copy.deepcopy(model)  # outside of `Widen`, which no copy of a storage knows
    with Widen():
        plain = run_forward(copied, cast_inputs(inputs, torch.float64), drawn.seed)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for p in copied.parameters():
            p.copy_(nudged(p))
    with Widen():
        changed = run_forward(copied, tree_map(nudged, cast_inputs(inputs, torch.float64)), drawn.seed)
    return [
        (b.double() - a.double()).abs().reshape(-1) if a.shape == b.shape else a.double().reshape(-1).zero_()
        for a, b in zip(plain, changed, strict=True)
    ]


def _with_gradients(model: nn.Module, inputs: Sequence[Any]) -> tuple[list[Any], list[Tensor]]:
    """Inputs that may be changed in place, and the leaves that their gradients arrive at."""
    wide = cast_inputs(inputs, torch.float64)
    leaves = [x.requires_grad_() for x in tree_leaves(wide) if isinstance(x, Tensor) and x.is_floating_point()]
    leaves += [p.requires_grad_() for p in model.parameters() if p.is_floating_point()]
    return tree_map(lambda x: x.clone() if isinstance(x, Tensor) and x.is_floating_point() else x, wide), leaves


def _largest(output: Tensor, moved: Tensor, leaves: list[Tensor]) -> int:
    if not output.requires_grad or output.numel() == 0:
        return 1
    flat = output.reshape(-1)
    alive = torch.nonzero(moved > 0).reshape(-1)
    places = alive if alive.numel() else torch.arange(flat.numel(), device=flat.device)
    spread = torch.linspace(0, places.numel() - 1, SAMPLES, dtype=torch.float64).round().long().to(places.device)
    most_moved = moved.nan_to_num().topk(min(SAMPLES, flat.numel())).indices
    chosen = {*most_moved.tolist(), *places[spread].tolist()}
    most = 1
    for at in sorted(chosen):
        gradients = torch.autograd.grad(flat[at], leaves, retain_graph=True, allow_unused=True)
        most = max(most, sum(int(torch.count_nonzero(g)) for g in gradients if g is not None))
    return most
