"""Fan-in: how many input and parameter elements one output element depends on, counted by autograd in float64.

The ratio of input to output sizes is badly low (47 for a product over 2,048 terms whose fan-in is 2,042), so gradients
of sampled output elements are counted, the first and the last included. Dead outputs (behind a ReLU, say) have none:
callers take the largest count over several draws. The least is 1.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from .compare import flatten_outputs
from .dispatch import Widen
from .oracle import TRUE_FP32, OracleError, cast_inputs, free_memory, oracle_errors, run_forward, tensors_of, tf32
from .problem import RNG_LOCK, seed_everything
from .slices import SlicePlan, find_plan

if TYPE_CHECKING:
    from .draw import Drawn

SAMPLES = 4
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
    model = drawn.build_model().double()
    values, leaves = _with_gradients(model, inputs)
    seed_everything(drawn.seed)
    with torch.enable_grad(), Widen():
        outputs = flatten_outputs(model(*values))
        return tuple(_largest(t, leaves) for t in outputs)


def _with_gradients(model: nn.Module, inputs: Sequence[Any]) -> tuple[list[Any], list[Tensor]]:
    """Inputs that may be changed in place, and the leaves that their gradients arrive at."""
    wide = cast_inputs(inputs, torch.float64)
    leaves = [x.requires_grad_() for x in tree_leaves(wide) if isinstance(x, Tensor) and x.is_floating_point()]
    leaves += [p.requires_grad_() for p in model.parameters() if p.is_floating_point()]
    return tree_map(lambda x: x.clone() if isinstance(x, Tensor) and x.is_floating_point() else x, wide), leaves


def _largest(output: Tensor, leaves: list[Tensor]) -> int:
    if not output.requires_grad or output.numel() == 0:
        return 1
    flat = output.reshape(-1)
    spread = torch.linspace(0, flat.numel() - 1, SAMPLES, dtype=torch.float64).round().long().tolist()
    most = 1
    for at in sorted(set(spread)):
        gradients = torch.autograd.grad(flat[at], leaves, retain_graph=True, allow_unused=True)
        most = max(most, sum(int(torch.count_nonzero(g)) for g in gradients if g is not None))
    return most
