"""The envelope's members: a reference run op by op with some ops computed another, equally correct way.

A member is a dispatch mode, so that any problem can be emulated without knowing its structure: compound ops
(normalisations, softmax, losses, norms) are first taken apart with torch's own decompositions, then their sums,
products, scans and elementary functions are replaced. What a mode does not know runs as torch runs it: an unknown op
weakens a member, never breaks it. A member that found nothing to replace is the reference again and is left out.

On a GPU everything runs there but the strictly sequential orders, which are followed on the CPU for a bounded number of
outputs per operation (`emulate_order`). Where a member does not fit beside a declared shape, it runs on the first, the
middle and the last slices of the batch, if slices are shown to give the same outputs; else it is skipped and noted.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._decomp import decomposition_table
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map

from .dispatch import OpMode
from .emulate_online import online_rules
from .emulate_order import Blocked, Order, Reordered, Sequential
from .emulate_pointwise import EXP2_RULES, FAST_MATH_RULES, rounded_mantissa
from .emulate_rules import Rule, one_pass_rules, operand_rules, order_rules
from .oracle import TRUE_FP32, cast_inputs, oracle_errors, run_forward, tf32
from .problem import RNG_LOCK

if TYPE_CHECKING:
    from .draw import Drawn

aten = torch.ops.aten

_COMPOUND = (
    "native_layer_norm",
    "native_group_norm",
    "native_batch_norm",
    "_native_batch_norm_legit",
    "cudnn_batch_norm",
    "_batch_norm_with_update",
    "_fused_rms_norm",
    "_softmax",
    "_log_softmax",
    "_safe_softmax",
    "logsumexp",
    "linalg_vector_norm",
    "norm",
    "mse_loss",
    "huber_loss",
    "smooth_l1_loss",
    "nll_loss_forward",
    "nll_loss2d_forward",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "soft_margin_loss",
    "silu",
    "elu",
    "mish",
    "softplus",
    "gelu",
    "log_sigmoid_forward",
    "glu",
)


def _decompositions() -> dict[Any, Rule]:
    table: Mapping[Any, Rule] = decomposition_table
    packets = [getattr(aten, name) for name in _COMPOUND if hasattr(aten, name)]
    overloads = [getattr(packet, name) for packet in packets for name in packet.overloads() if "out" not in name]
    return {op: table[op] for op in overloads if op in table}


DECOMPOSITIONS = _decompositions()


class Emulation(OpMode):
    """Runs rules in place of ops, counts how often, and takes compound ops apart so that the rules see their parts."""

    def __init__(self, rules: Mapping[Any, Rule], decompose: bool) -> None:
        super().__init__()
        self.hits = 0
        self._rules = dict(rules)
        self._decompose = decompose
        for op, rule in rules.items():  # x.exp_() is exp too
            twin = getattr(aten, op.overloadpacket.__name__ + "_", None)
            if twin is not None and op._overloadname in twin.overloads():
                self._rules[getattr(twin, op._overloadname)] = _in_place(rule)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not _is_single(args):
            return func(*args, **kwargs)
        if func in self._rules:
            result = self._rules[func](*args, **kwargs)
            if result is not NotImplemented:
                self.hits += 1
                return result
        if self._decompose:
            with self:  # `decompose` knows what torch itself defines through other ops, and says NotImplemented else
                result = DECOMPOSITIONS.get(func, func.decompose)(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return func(*args, **kwargs)


def _is_single(args: tuple[Any, ...]) -> bool:
    first = args[0] if args else None
    return isinstance(first, Tensor) and first.dtype == torch.float32


def _in_place(rule: Rule) -> Rule:
    def run(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        result = rule(x, *args, **kwargs)
        return result if result is NotImplemented else x.copy_(result)

    return run


class RoundResults(OpMode):
    """Rounds every float32 result to a shorter type and back: eager half precision, with float32 inside each op."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.hits = 0
        self._dtype = dtype

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.hits += 1
        if func._schema.is_mutable:
            for value, spec in zip(args, func._schema.arguments, strict=False):
                if spec.alias_info is not None and spec.alias_info.is_write and isinstance(value, Tensor):
                    value.copy_(self._rounded(value))
            return result
        if any(r.alias_info is not None for r in func._schema.returns):  # a view of rounded values
            return result
        return tree_map(self._rounded, result)

    def _rounded(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value.dtype == torch.float32:
            return value.to(self._dtype).float()
        return value


# ---------------------------------------------------------------- members


@dataclass(frozen=True, slots=True)
class Member:
    """One way of computing that a policy calls correct.

    Attributes:
        name: as in `TolerancePolicy.members`.
        mode: makes the dispatch mode for a model; it counts its hits.
        shorten: inputs and parameters are rounded to this type before they enter.
        note: what it stands for, and what allowing it hides.
    """

    name: str
    mode: Callable[[nn.Module], Emulation | RoundResults]
    note: str
    shorten: torch.dtype | None = None


def _in_order(order: Callable[[nn.Module], Order]) -> Callable[[nn.Module], Emulation]:
    return lambda model: Emulation(order_rules(order(model)), True)


def _convolutions(model: nn.Module) -> int:
    """How many layers are convolutions; those that a forward calls as functions do not count."""
    kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    return sum(isinstance(layer, kinds) for layer in model.modules())


def _members() -> Iterator[Member]:
    yield Member(
        "reordered", _in_order(lambda _: Reordered()), "terms added from the last to the first, in two unequal parts"
    )
    yield Member(
        "sequential",
        _in_order(lambda model: Sequential(_convolutions(model))),
        "one thread and one accumulator per output",
    )
    yield Member("blocked", _in_order(lambda _: Blocked()), "block-wise scans and tiled products")
    yield Member(
        "online", lambda _: Emulation(online_rules(), True), "running means and variances in lanes, merged in pairs"
    )
    yield Member("exp2", lambda _: Emulation(EXP2_RULES, True), "exp, tanh, sigmoid, log through exp2 and log2")
    yield Member(
        "tf32",
        lambda _: Emulation(operand_rules(lambda x: rounded_mantissa(x, 10)), False),
        "TF32 operands, to nearest; the same mantissa as fp16, so fp16 faults in products are hidden too",
    )
    yield Member(
        "tf32_truncated",
        lambda _: Emulation(operand_rules(lambda x: rounded_mantissa(x, 10, truncate=True)), False),
        "TF32 operands as the hardware takes raw float32: towards zero; biased, so twice the error",
    )
    for name, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
        yield Member(name, lambda _, d=dtype: RoundResults(d), f"every intermediate result in {name}", dtype)  # type: ignore[misc]
    yield Member("fast_math", lambda _: Emulation(FAST_MATH_RULES, True), "--use_fast_math: approximate functions, FTZ")
    yield Member("one_pass_variance", lambda _: Emulation(one_pass_rules(), True), "variance as E[x^2] - E[x]^2")


MEMBERS: dict[str, Member] = {m.name: m for m in _members()}
"""Every member but `reference`, which is the reference itself at the entry's dtype."""


@contextlib.contextmanager
def plain_attention() -> Iterator[None]:
    """Attention as products and softmax, and no fused encoder layer, so that the rules see their parts."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def member_outputs(member: Member, drawn: "Drawn", inputs: list[Any] | None = None) -> list[Tensor] | None:
    """The reference's outputs as this member computes them, in float32; None if it changed nothing.

    Inputs and parameters are those of the entry's dtype, widened to float32.

    Args:
        member: one of `MEMBERS`.
        drawn: the draw.
        inputs: in place of the draw's inputs (batch slices of them).

    Raises:
        OracleError: the emulated run raises or runs out of memory.
    """
    with RNG_LOCK, tf32(TRUE_FP32), oracle_errors("emulation-raises"):
        model = drawn.build_model()
        values = cast_inputs(drawn.inputs if inputs is None else inputs, torch.float32)
        if member.shorten is not None:
            model, values = model.to(member.shorten), cast_inputs(cast_inputs(values, member.shorten), torch.float32)
        mode = member.mode(model)
        with plain_attention(), mode:
            outputs = run_forward(model.float(), values, drawn.seed)
    return outputs if mode.hits else None
