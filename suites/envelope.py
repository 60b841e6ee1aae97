"""The envelope: how far from truth implementations are that a policy calls correct, over several draws."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .compare import SMALL_OUTPUT, Selection, is_exact, normalised_error, pooled_scale, row_scale
from .controls import control_errors
from .emulate import MEMBERS, Member, member_outputs
from .oracle import OracleError, ReferenceFlags, Truth, cast_inputs, reference_outputs, run_forward
from .slices import SlicePlan, find_plan
from .tolerance import ENVELOPE_FACTOR

if TYPE_CHECKING:
    from .draw import Drawn

REFERENCE = "reference"
WITNESS = "reordered"  # the member that says, beside the reference, how well a draw can be computed
WITNESS_BYTES = 64 << 20  # of inputs and outputs up to which it is asked; a large output averages over its rows anyway
HARDWARE_TF32 = "tf32_hardware"  # the reference with torch's switches on: only on a GPU, only where TF32 is allowed
_ROUNDING = ("fp16", "bf16")


@dataclass(slots=True)
class Samples:
    """Errors over the draws of one entry (at least one).

    Outputs of fewer than 64 elements wait until all draws are in: their scale is pooled over the draws (honest
    summation orders of a signed scalar sum differ by more than one draw shows).

    Attributes:
        members: member -> largest error per output so far.
        controls: control -> least error per output so far (None: not applicable).
        skipped: member -> why it did not run.
    """

    members: dict[str, list[float]] = field(default_factory=dict)
    controls: dict[str, list[float | None]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    _truths: list[list[Tensor]] = field(default_factory=list)
    _answers: list[tuple[str, int, int, slice, Tensor]] = field(default_factory=list)
    _inputs: list[list[Tensor]] = field(default_factory=list)

    def add(self, drawn: "Drawn", truth: Truth, members: Sequence[str]) -> None:
        """Run members and every control on one draw.

        Args:
            drawn: the draw.
            truth: of this draw, with the reference's own outputs.
            members: names, as `TolerancePolicy.members` gives them.
        """
        draw = len(self._truths)
        small = [is_small(t) for t in truth.outputs]
        self._truths.append([t.cpu() if s else t.new_empty(0) for t, s in zip(truth.outputs, small, strict=True)])
        small_inputs = [x for x in drawn.inputs if isinstance(x, Tensor) and x.numel() < SMALL_OUTPUT]
        self._inputs.append([x.detach().cpu() for x in small_inputs])
        for name, part, answers in self._member_runs(drawn, truth, members):
            for i, y in enumerate(answers):
                y = y if is_exact(truth.outputs[i]) else y.to(truth.output_dtypes[i])
                if small[i]:
                    self._answers.append((name, draw, i, part, y.cpu()))
                    continue
                if name in _ROUNDING and is_exact(truth.outputs[i]):
                    continue  # shorter types may tie what differs; indices stay exact under every policy
                self._offer(name, i, _error_of(y, truth.outputs[i], truth.scales[i], truth.selection(i), part))
        for i, target in enumerate(truth.outputs):
            if not small[i]:
                self._offer_controls(i, control_errors(target, truth.scales[i], drawn.inputs))

    def _member_runs(
        self, drawn: "Drawn", truth: Truth, members: Sequence[str]
    ) -> Iterator[tuple[str, slice, list[Tensor]]]:
        whole = slice(None)
        assert truth.reference is not None
        yield REFERENCE, whole, list(truth.reference)
        if "tf32" in members and drawn.device.type == "cuda":
            yield HARDWARE_TF32, whole, reference_outputs(drawn, ReferenceFlags(True, True))
        for name in members:
            if name == REFERENCE or name in self.skipped:
                continue
            member = MEMBERS[name]
            try:
                answers = member_outputs(member, drawn)
                if answers is not None:
                    yield name, whole, answers
            except OracleError as error:
                plan = _slices(drawn, truth) if error.reason == "out-of-memory" else None
                if plan is None:
                    self.skipped[name] = str(error)
                    continue
                try:
                    yield from _sliced_runs(member, drawn, plan)
                except OracleError as again:
                    self.skipped[name] = str(again)

    def _offer(self, member: str, output: int, err: float) -> None:
        row = self.members.setdefault(member, [0.0] * len(self._truths[0]))
        row[output] = max(row[output], err)

    def _offer_controls(self, output: int, errors: dict[str, float]) -> None:
        for name, err in errors.items():
            row = self.controls.setdefault(name, [None] * len(self._truths[0]))
            before = row[output]
            row[output] = err if before is None else min(before, err)

    def finish(self) -> tuple[tuple[float, ...] | None, ...]:
        """Pool the small outputs and judge what waited for that. Returns the pooled row scales per output."""
        pools: list[tuple[float, ...] | None] = []
        scales: dict[int, Tensor] = {}
        for i in range(len(self._truths[0])):
            draws = [t[i] for t in self._truths]
            if not is_small(draws[0]) or draws[0].numel() == 0:
                pools.append(None)
                continue
            scales[i] = pooled_scale(draws)
            pools.append(tuple(scales[i].flatten().tolist()))
        for name, draw, i, part, y in self._answers:
            truth = self._truths[draw][i]
            self._offer(name, i, _error_of(y, truth, _own_or_pooled(truth, scales[i]), None, part))
        for draw, truths in enumerate(self._truths):
            for i, scale in scales.items():
                other = self._truths[draw - 1][i] if len(self._truths) > 1 else None
                errors = control_errors(truths[i], _own_or_pooled(truths[i], scale), self._inputs[draw], other)
                self._offer_controls(i, errors)
        return tuple(pools)

    def envelope(self) -> tuple[float, ...]:
        """The largest error of any member, per output."""
        return tuple(max(row[i] for row in self.members.values()) for i in range(len(self._truths[0])))

    def worst_member(self, output: int) -> str:
        """Which member the envelope of an output comes from."""
        return max(self.members, key=lambda name: self.members[name][output])


def is_small(truth: Tensor) -> bool:
    """Whether an output waits until all draws are in, because its scale is pooled over them."""
    return truth.numel() < SMALL_OUTPUT and not is_exact(truth)


def _error_of(y: Tensor, truth: Tensor, scale: Tensor | None, selection: Selection | None, part: slice) -> float:
    """Error of some items of the batch (all of them where `part` is everything)."""
    if scale is not None and scale.dim() and scale.shape[0] == truth.shape[0]:
        scale = scale[part]  # else the batch is the only row
    if selection is not None and part != slice(None):
        selection = replace(selection, values=selection.values[part])
    return normalised_error(y, truth[part] if truth.dim() else truth, scale, selection)


def _own_or_pooled(truth: Tensor, pooled: Tensor) -> Tensor:
    return torch.maximum(row_scale(truth), pooled)


def _slices(drawn: "Drawn", truth: Truth) -> SlicePlan | None:
    assert truth.reference is not None
    model = drawn.build_model()

    def run(part: Sequence[object]) -> list[Tensor]:
        return run_forward(model, cast_inputs(part, drawn.dtype), drawn.seed)

    return find_plan(run, drawn.inputs, truth.reference)


def _sliced_runs(member: Member, drawn: "Drawn", plan: SlicePlan) -> Iterator[tuple[str, slice, list[Tensor]]]:
    """The member on the first, the middle and the last items of the batch, about a sixteenth of it each."""
    size = max(1, math.ceil(plan.batch / 16))
    for start in sorted({0, plan.batch // 2, plan.batch - size}):
        answers = member_outputs(member, drawn, plan.cut(drawn.inputs, start, start + size))
        if answers is not None:
            yield member.name, slice(start, start + size), answers


def draw_errors(drawn: "Drawn", truth: Truth) -> tuple[float, ...]:
    """How far from truth implementations known to be right are on this very draw, per output.

    The gate measures a tolerance on a few draws. Where the error has a heavy tail (attention whose spikes meet), a
    later draw can be worse conditioned than all of those; two implementations show that, where one may be lucky.

    Args:
        drawn: the draw.
        truth: of this draw.
    """
    held = sum(x.numel() * x.element_size() for x in drawn.inputs if isinstance(x, Tensor))
    if held + sum(t.numel() for t in truth.outputs) * drawn.dtype.itemsize > WITNESS_BYTES:
        return truth.reference_errors
    try:
        answers = member_outputs(MEMBERS[WITNESS], drawn)
    except OracleError:  # it is a second opinion: the reference's own error stands without it
        return truth.reference_errors
    errors = list(truth.reference_errors)
    for i, y in enumerate(answers or ()):
        if not is_exact(truth.outputs[i]):
            err = normalised_error(y.to(truth.output_dtypes[i]), truth.outputs[i], truth.scales[i], truth.selection(i))
            errors[i] = max(errors[i], err)
    return tuple(errors)


def strain(errors: Sequence[float], tolerances: Sequence[float]) -> float:
    """How much worse a draw is conditioned than any that the tolerances come from; at most 1 for those.

    A tolerance is four times what implementations known to be right erred by when it was measured. Beyond 1 an honest
    candidate may err by several times as much as another one, and so by more than the tolerance.

    Args:
        errors: `draw_errors`, one per output; () = nothing is known.
        tolerances: one per output.
    """
    pairs = zip(errors, tolerances, strict=False)
    ratios = (ENVELOPE_FACTOR * error / tolerance if tolerance else math.inf for error, tolerance in pairs if error)
    return max(ratios, default=0.0)
