"""From a child's reply to a result: findings first, then the values, as the protocol compares them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..suites.compare import allclose_margin, allclose_pass, compare_outputs
from ..suites.protocol import AllClose, ProtocolSpec
from ..suites.validity import Measured
from .sandbox.session import RunReply
from .truth_cache import Reference
from .verdict import Outcome

#: Findings that decide, in this order, where the protocol is adversarial. Others are notes.
FINDINGS: Mapping[str, Outcome] = {
    "out-of-bounds": Outcome.RUNTIME_ERROR,
    "illegal-access": Outcome.RUNTIME_ERROR,
    "shared-out-of-bounds": Outcome.RUNTIME_ERROR,
    "out-of-bounds-write": Outcome.RUNTIME_ERROR,
    "misaligned": Outcome.RUNTIME_ERROR,
    "shared-memory-limit": Outcome.RUNTIME_ERROR,
    "launch-error": Outcome.RUNTIME_ERROR,
    "deadlock": Outcome.TIMEOUT,
    "divergent-barrier": Outcome.RUNTIME_ERROR,
    "race": Outcome.INCORRECT,
    "warp-synchronous": Outcome.INCORRECT,
    "divergent-warp": Outcome.INCORRECT,
    "warp-mask": Outcome.INCORRECT,
}


@dataclass(frozen=True, slots=True)
class Judged:
    """One reply, judged.

    Attributes:
        ok: whether it is right.
        outcome, reason, message: what is wrong, if anything.
        err, tolerance: of the worst output, where values were compared.
        seconds: the run, by the judge's clock.
        crash: a finding decided, not the values; further variants tell nothing new.
    """

    ok: bool
    outcome: Outcome
    reason: str
    message: str
    err: float | None
    tolerance: float | None
    seconds: float
    crash: bool = False

    @property
    def ratio(self) -> float:
        """err / tolerance, 0 where values were not compared."""
        return 0.0 if not self.err or not self.tolerance else self.err / self.tolerance

    @property
    def severity(self) -> tuple[bool, bool, float]:
        """Orders results: right, wrong by value, broken off."""
        return not self.ok, self.crash, self.ratio


def judge_reply(
    reply: RunReply,
    reference: Reference,
    measured: Measured | None,
    spec: ProtocolSpec,
    *,
    side_effects: bool = True,
    own_kernel: bool = False,
) -> Judged:
    """Judge one forward call.

    Args:
        reply: what came back.
        reference: what is right.
        measured: the entry's tolerances; None for the allclose protocols.
        spec: how to compare.
        side_effects: whether changed inputs and aliased outputs count (not where the reference does the same).
        own_kernel: whether a candidate that launched no kernel is refused.
    """
    codes = {f["code"]: f["message"] for f in reply.findings}
    if own_kernel and "never-launched" in codes:
        message = codes["never-launched"]
        return Judged(False, Outcome.REJECTED, "never-launched", message, None, None, reply.seconds, crash=True)
    if spec.adversarial:
        for code, outcome in FINDINGS.items():
            if code in codes:
                return Judged(False, outcome, code, codes[code], None, None, reply.seconds, crash=True)
    if side_effects and spec.check_inputs and reply.inputs_changed:
        message = "the forward call changed its inputs"
        return Judged(False, Outcome.INCORRECT, "input-mutated", message, None, None, reply.seconds)
    judged = _allclose(reply, reference, spec.comparison, spec) if isinstance(spec.comparison, AllClose) else None
    if judged is None:
        judged = _truth(reply, reference, measured)
    if judged.ok and side_effects and spec.check_inputs and "output-aliases-input" in codes:
        message = codes["output-aliases-input"]
        return replace(judged, ok=False, outcome=Outcome.INCORRECT, reason="aliased", message=message)
    return judged


def _truth(reply: RunReply, reference: Reference, measured: Measured | None) -> Judged:
    assert reference.truth is not None
    assert measured is not None
    found = compare_outputs(reply.outputs, reference.truth, measured.tolerance)
    message = ""
    if not found.ok:
        where = f"output {found.output} at {list(found.index)}"
        held = (
            "compared exactly" if reference.truth.scales[found.output] is None else f"tolerance {found.tolerance:.3g}"
        )
        message = f"{where}: error {found.err:.3g}, {held}"
    return Judged(found.ok, Outcome.INCORRECT, found.reason, message, found.err, found.tolerance, reply.seconds)


def _allclose(reply: RunReply, reference: Reference, comparison: AllClose, spec: ProtocolSpec) -> Judged:
    worst = 0.0
    failed: int | None = None
    atol = comparison.atol
    for i, (right, got) in enumerate(zip(reference.outputs, reply.outputs, strict=True)):
        atol, rtol = comparison.bounds(str(right.dtype).removeprefix("torch."))
        worst = max(worst, allclose_margin(right, got))
        if failed is None and not allclose_pass(right, got, atol, rtol):
            failed = i
    if failed is None:
        return Judged(True, Outcome.CORRECT, "", "", worst, atol, reply.seconds)
    reason = "nan" if math.isinf(worst) and not _finite(reply.outputs[failed]) else "value"
    message = f"output {failed}: allclose fails at {atol:g}, the margin is {worst:.3g}"
    return Judged(False, Outcome.INCORRECT, reason, message, worst, atol, reply.seconds)


def _finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())


def differs(first: Sequence[Tensor], second: Sequence[Tensor], reference: Reference, measured: Measured | None) -> bool:
    """Whether two runs on the same inputs gave answers that differ by more than twice the tolerance.

    Two right answers may lie on either side of the truth, so less than that is rounding (atomics, for one).
    """
    if reference.truth is None or measured is None:
        return False
    twice = [2 * t for t in measured.tolerance]
    wide = tuple(t.double() if t.is_floating_point() else t for t in first)
    return not compare_outputs(second, replace(reference.truth, outputs=wide, reference=None, selections=()), twice).ok
