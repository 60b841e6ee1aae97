"""Before anything is counted: every substrate must pass every entry, and a kernel that answers zero must fail each.

One kernel that disagrees with all others is quarantined, not the entry; an entry that most kernels disagree with, or
that lets zeros pass, judges nothing. A clean run and a forced failure first are what mutation tools are missed for.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..suites.draw import entry_dtype
from ..suites.problem import Problem
from ..suites.tolerance import TolerancePolicy
from .cell import Question
from .evaluate import Evaluator
from .kernel_run import KernelBroken
from .matrix_schema import ratio
from .mutant import Substrate
from .pool import Pool

#: A kernel that is the substrate with its answer taken away; a checker that accepts it notices nothing.
FORCED_FAILURE = """

_Right = ModelNew


class ModelNew(_Right):
    def forward(self, *args):
        return _nothing(super().forward(*args))


def _nothing(answer):
    return type(answer)(map(_nothing, answer)) if isinstance(answer, (tuple, list)) else answer.clone().zero_()
"""

Failures = Mapping[str, str]
"""Entry id -> what was seen."""


@dataclass(frozen=True, slots=True)
class CleanRun:
    """What the clean run of a problem says.

    Attributes:
        dropped: entries that judge nothing, and why.
        quarantined: substrates of which no mutants are made, and why.
    """

    dropped: Mapping[str, str]
    quarantined: Mapping[str, str]


def settle(failures: Mapping[str, Failures], unnoticed: Failures, loose: Failures) -> CleanRun:
    """Decide who is wrong, entry or substrate.

    Args:
        failures: by substrate, the entries that it fails.
        unnoticed: entries that the forced failure passes.
        loose: entries whose tolerance is beyond what the policy allows.
    """
    dropped = dict(loose) | {uid: f"a kernel that answers zero passes: {why}" for uid, why in unnoticed.items()}
    for uid in sorted({uid for found in failures.values() for uid in found}):
        against = sorted(name for name, found in failures.items() if uid in found)
        if len(against) >= 2 and 2 * len(against) > len(failures):
            dropped[uid] = f"{len(against)} of {len(failures)} substrates disagree with it: {', '.join(against)}"
    quarantined = {}
    for name, found in failures.items():
        wrong = sorted(set(found) - set(dropped))
        if wrong:
            quarantined[name] = f"fails {len(wrong)} entries, {wrong[0]} for one: {found[wrong[0]]}"[:500]
    return CleanRun(dropped, quarantined)


def too_loose(pool: Pool) -> dict[str, str]:
    """The admitted entries whose tolerance is above their policy's cap: what the gate refuses, however it came in."""
    found = {}
    for a in pool.admitted:
        assert a.measured is not None  # of every admitted entry
        cap, largest = TolerancePolicy.parse(a.measured.policy).cap(entry_dtype(a.entry)), max(a.measured.tolerance)
        if not largest <= cap:
            found[a.entry.id] = f"its tolerance of {largest:.3g} is above the cap of {cap:g}"
    return found


def closest_text(ratios: Mapping[str, float]) -> str:
    """How near a correct kernel came to being refused: the end of its row's `detail` in the matrix; "" of nothing.

    Args:
        ratios: entry id -> err / tolerance of the entries that it passes.
    """
    if not ratios:
        return ""
    uid = max(ratios, key=lambda entry: ratios[entry])
    return f"; largest error {ratios[uid]:.3g} of the tolerance, on {uid}"


def closest_of(detail: str) -> tuple[float, str] | None:
    """The (err / tolerance, entry id) that `closest_text` wrote; None where it wrote nothing."""
    found = re.search(r"; largest error (\S+) of the tolerance, on (\S+)$", detail)
    return None if found is None else (float(found[1]), found[2])


def failures_of(
    evaluator: Evaluator, problem: Problem, pool: Pool, substrate: Substrate
) -> tuple[dict[str, str], dict[str, float]]:
    """The entries that a kernel fails, and how; and err / tolerance of each that it passes."""
    found: dict[str, str] = {}
    ratios: dict[str, float] = {}
    shapes: set[object] = set()
    with evaluator.open(substrate.source, substrate.backend, problem) as run:
        for admission in pool.admitted:
            shape = admission.entry.constants
            question = Question(admission.entry, admission.measured, "strict", races=shape not in shapes)
            shapes.add(shape)
            try:
                cell = run.cell(question)
            except KernelBroken as error:
                return {**found, admission.entry.id: str(error)}, ratios
            if cell is not None and cell.killed:
                found[admission.entry.id] = cell.detail or f"error {max(cell.errs):.3g}"
            elif cell is not None and cell.errs and admission.measured is not None:
                ratios[admission.entry.id] = ratio(cell.errs, admission.measured.tolerance)
    return found, ratios


def unnoticed_by(evaluator: Evaluator, problem: Problem, pool: Pool, substrate: Substrate) -> dict[str, str]:
    """The entries that a kernel which answers zero passes."""
    found: dict[str, str] = {}
    with evaluator.open(substrate.source + FORCED_FAILURE, substrate.backend, problem) as run:
        for admission in pool.admitted:
            cell = run.cell(Question(admission.entry, admission.measured, "strict"))
            if cell is not None and cell.cls == "pass":
                found[admission.entry.id] = f"error {max(cell.errs):.3g} is within tolerance"
    return found
