"""From a verdict to a number: what the trainer is paid for."""

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from ..suites.yamlnode import Node
from . import screen_rules
from .verdict import Outcome, Verdict

# Outcomes that only a candidate reaches that was built: `compile` is paid for them.
_BUILT = (Outcome.CORRECT, Outcome.INCORRECT, Outcome.RUNTIME_ERROR)
# Reasons that a price makes sense for. Others are accepted too, unless they look like one of these misspelt: a price
# under a name that never comes up would silently not apply.
_USUAL_REASONS = (
    *("value", "shape", "dtype", "nan", "race", "nondeterministic", "shape-specialised", "refused", "unwritten"),
    *("aliased", "input-mutated", "reused-answer", "wrong-when-timed", "no-code", "too-large", "syntax", "segfault"),
    "warp-synchronous",
    *screen_rules.RULES,
)
_OUTCOME_NAMES = tuple(o.value for o in Outcome if o.decided and o is not Outcome.CORRECT)


@dataclass(frozen=True, slots=True)
class Speed:
    """Bonus of a correct candidate: `weight * log(speedup) / log(cap)`, between 0 and `weight`.

    The logarithm pays the step from 1x to 2x as much as that from 2x to 4x; the cap keeps a mismeasured speed-up from
    outweighing everything else.
    """

    weight: float
    cap: float = 8.0

    def bonus(self, speedup: float | None) -> float:
        """Between 0 and `weight`; 0 where no speed was measured."""
        if speedup is None or not speedup > 1.0:  # NaN included
            return 0.0
        return self.weight * min(1.0, math.log(speedup) / math.log(self.cap))


@dataclass(frozen=True, slots=True)
class Brevity:
    """Bonus of a correct candidate: `weight * (1 - characters / limit)`, not below 0. Meant for toys and tests."""

    weight: float
    characters: int

    def bonus(self, characters: int) -> float:
        """Between 0 and `weight`."""
        return self.weight * max(0.0, 1.0 - characters / self.characters)


@dataclass(frozen=True, slots=True)
class Shaping:
    """What each verdict is paid. The sum of its parts is clamped; no verdict is no reward (None).

    Attributes:
        compile: paid to a candidate that was built, right or wrong.
        correct: paid on top to a correct one.
        reasons: added by reason code (`race`, `shape-specialised`, `no-code`, ...) or, where the reason has no line of
            its own, by outcome (`timeout`, `rejected`, ...). Negative amounts are penalties.
        speed, brevity: bonuses of a correct candidate.
        clamp: smallest and largest reward.
    """

    compile: float = 0.1
    correct: float = 1.0
    reasons: Mapping[str, float] = field(default_factory=dict)
    speed: Speed | None = None
    brevity: Brevity | None = None
    clamp: tuple[float, float] = (-1.0, 2.0)

    def reward(self, verdict: Verdict, characters: int = 0) -> float | None:
        """A finite number within `clamp`, or None where there is no verdict.

        Args:
            verdict: the judge's finding.
            characters: length of the candidate.
        """
        if not verdict.verdict.decided:
            return None
        total = self.compile if verdict.verdict in _BUILT else 0.0
        if verdict.verdict is Outcome.CORRECT:
            total += self.correct
            total += self.speed.bonus(verdict.speedup) if self.speed else 0.0
            total += self.brevity.bonus(characters) if self.brevity else 0.0
        else:
            total += self._adjustment(verdict.verdict, verdict.reason)
        low, high = self.clamp
        return min(max(total, low), high)

    def _adjustment(self, outcome: Outcome, reason: str) -> float:
        if reason in self.reasons:
            return self.reasons[reason]
        return self.reasons.get(outcome.value, 0.0)

    @classmethod
    def from_node(cls, node: Node) -> Self:
        """Read a configuration's `shaping:` section.

        Raises:
            InputError: names file, line and key. Also where a candidate that is not correct could earn as much as a
                correct one, or where the clamp would cut the two to the same number.
        """
        keys = node.mapping({"compile", "correct", "reasons", "speed", "brevity", "clamp"})
        shaping = cls(
            compile=keys["compile"].number(minimum=0.0) if "compile" in keys else cls().compile,
            correct=keys["correct"].number(minimum=0.0) if "correct" in keys else cls().correct,
            reasons=_read_reasons(keys["reasons"]) if "reasons" in keys else {},
            speed=_read_speed(keys["speed"]) if "speed" in keys else None,
            brevity=_read_brevity(keys["brevity"]) if "brevity" in keys else None,
            clamp=_read_clamp(keys["clamp"]) if "clamp" in keys else cls().clamp,
        )
        low, high = shaping.clamp
        for outcome, reason in [(o, o) for o in _OUTCOME_NAMES] + [("incorrect", r) for r in shaping.reasons]:
            wrong = (shaping.compile if Outcome(outcome) in _BUILT else 0.0) + shaping._adjustment(
                Outcome(outcome), reason
            )
            if min(max(wrong, low), high) >= min(max(shaping.compile + shaping.correct, low), high):
                at = keys.get("reasons") if reason in shaping.reasons else None
                at = at.mapping()[reason] if at else keys.get("clamp") or keys.get("correct") or node
                raise at.error(
                    f"a candidate that is not correct ({reason}) would earn at least as much as a correct one; "
                    "raise `correct` or `clamp`, or lower this amount"
                )
        return shaping


def _read_reasons(node: Node) -> dict[str, float]:
    amounts = {}
    for name, child in node.mapping().items():
        if name == Outcome.CORRECT or name in (Outcome.INFRA_ERROR, Outcome.UNREFEREEABLE):
            raise child.error("has no amount here: `correct` is a key of its own, and no verdict is no reward")
        known = (*_OUTCOME_NAMES, *_USUAL_REASONS)
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        if close and name not in known:
            raise child.error(f"no verdict has this reason. Did you mean `{close[0]}`?")
        amounts[name] = child.number()
    return amounts


def _read_speed(node: Node) -> Speed | None:
    if node.plain() is None:
        return None
    keys = node.mapping({"weight", "cap"}, required=("weight",))
    speed = Speed(keys["weight"].number(minimum=0.0))
    if "cap" in keys:
        cap = keys["cap"].number()
        if cap <= 1.0:
            raise keys["cap"].error("the speed-up that earns the full weight must be above 1")
        speed = Speed(speed.weight, cap)
    return speed


def _read_brevity(node: Node) -> Brevity | None:
    if node.plain() is None:
        return None
    keys = node.mapping({"weight", "characters"}, required=("weight", "characters"))
    return Brevity(keys["weight"].number(minimum=0.0), keys["characters"].integer(minimum=1))


def _read_clamp(node: Node) -> tuple[float, float]:
    bounds = node.items()
    if len(bounds) != 2:
        raise node.error("give two numbers, the smallest and the largest reward")
    low, high = bounds[0].number(), bounds[1].number()
    if low >= high:
        raise node.error(f"the smallest reward ({low:g}) must be below the largest ({high:g})")
    return low, high
