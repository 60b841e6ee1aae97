"""Second looks at a sample of what was judged: does the suite accept what other entries show to be wrong?

The unit is a candidate that was accepted in an optimiser step. Which ones are looked at again follows from the run key,
so all ranks choose alike and no policy can tell; the entries are those of `audit_entries`, which pay nobody. A failure
counts as a false accept where it holds in three of three draws, as a mutant's kill has to. A few decided candidates can
be judged by a further protocol as well, the shadow, to see how often it disagrees.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..suites.hashing import SEED_BITS, derive_seed, sha256_text, stable_hash
from .bank import Evidence
from .task import Task
from .verdict import Outcome, Verdict

DRAWS = 3  # a failure has to hold in so many
CONFIDENCE = 0.95
Kind = Literal["audit", "shadow"]
#: Judges a task in the background; None where that gave no verdict.
Judge = Callable[[Task], Verdict | None]
_WRONG = (Outcome.INCORRECT, Outcome.RUNTIME_ERROR, Outcome.TIMEOUT)


@dataclass(frozen=True, slots=True)
class ShadowConfig:
    """A protocol that judges a sample of the decided candidates, for the metrics only.

    Attributes:
        protocol: its name, or the path of a YAML file.
        share: of the candidates that have a verdict.
    """

    protocol: str
    share: float = 0.02


@dataclass(frozen=True, slots=True)
class Estimate:
    """A share with its Clopper-Pearson interval (95 %).

    Attributes:
        rate: found / samples.
        low, high: the interval's ends.
    """

    found: int
    samples: int
    rate: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.rate:.2%} ({self.low:.2%} to {self.high:.2%}; {self.found} of {self.samples})"


def estimate(found: int, samples: int) -> Estimate | None:
    """The estimate of a share; None, which is no estimate, without samples.

    Raises:
        ValueError: more found than there are samples.
    """
    if not 0 <= found <= samples:
        raise ValueError(f"{found} of {samples}")
    if not samples:
        return None
    from scipy.stats import binomtest  # here, so that importing the reward stays light

    ends = binomtest(found, samples).proportion_ci(CONFIDENCE, "exact")
    return Estimate(found, samples, found / samples, float(ends.low), float(ends.high))


def sampled(kind: Kind, task: Task, step: int, run_key: bytes, share: float) -> bool:
    """Whether this candidate is looked at again in this step: the same answer on every rank."""
    drawn = derive_seed(run_key, kind, sha256_text(task.candidate), task.problem.hash, step)
    return drawn < share * 2.0**SEED_BITS


def sample_key(kind: Kind, task: Task, step: int) -> str:
    """Names a sample, so that it is judged and counted once."""
    return stable_hash([kind, sha256_text(task.candidate), task.problem.hash, step])


@dataclass(frozen=True, slots=True)
class Sample:
    """A candidate to look at again.

    Attributes:
        kind: `audit`, or `shadow`.
        task: as the reward judged it.
        step: in which optimiser step (or call) that was.
        accepted: whether it was correct.
    """

    kind: Kind
    task: Task
    step: int
    accepted: bool

    @property
    def key(self) -> str:
        """Its name in the store."""
        return sample_key(self.kind, self.task, self.step)

    @property
    def group(self) -> tuple[str, str, str, int]:
        """Samples of one group get one answer: the same candidate on the same inputs."""
        return self.kind, self.task.candidate, self.task.problem.hash, self.task.epoch

    def to_json(self) -> dict[str, Any]:
        """For the store; without the run key, which a file must not hold."""
        task = {k: v for k, v in self.task.to_wire().items() if k != "run_key"}
        return {"kind": self.kind, "task": task, "step": self.step, "accepted": self.accepted}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], run_key: bytes) -> "Sample":
        """Inverse of `to_json`."""
        task = Task.from_wire(dict(data["task"]) | {"run_key": run_key.hex()})
        return cls(data["kind"], task, int(data["step"]), bool(data["accepted"]))


@dataclass(frozen=True, slots=True)
class Finding:
    """What a second look gave.

    Attributes:
        sample: what was looked at.
        verdict: the first draw's.
        wrong: an audit: a false accept. A shadow: it disagrees with the reward.
        unsteady: an audit that failed, but not in every draw; it does not count as a false accept.
    """

    sample: Sample
    verdict: Verdict
    wrong: bool
    unsteady: bool = False

    @property
    def evidence(self) -> Evidence | None:
        """Why it is a false accept; None where it is none."""
        verdict = self.verdict
        if self.sample.kind != "audit" or not self.wrong or verdict.entry is None or verdict.recipe is None:
            return None
        return Evidence(
            entry=verdict.entry,
            recipe=verdict.recipe,
            found_by="audit",
            reason=verdict.reason or verdict.verdict.value,
            seed=verdict.seed,
            err=verdict.err,
            tolerance=verdict.tolerance,
            message=verdict.message[:500],
        )

    def to_json(self) -> dict[str, Any]:
        """For the store: what a run's history needs, with the entry and the seed of a failure."""
        verdict, task = self.verdict, self.sample.task
        return {
            "kind": self.sample.kind,
            "candidate": sha256_text(task.candidate),
            "problem": task.problem.id,
            "problem_hash": task.problem.hash,
            "step": self.sample.step,
            "epoch": task.epoch,
            "suite": verdict.suite,
            "protocol": verdict.protocol,
            "accepted": self.sample.accepted,
            "verdict": verdict.verdict.value,
            "reason": verdict.reason,
            "entry": verdict.entry,
            "recipe": verdict.recipe,
            "seed": verdict.seed,
            "err": None if verdict.err is None else str(verdict.err),
            "tolerance": verdict.tolerance,
            "wrong": self.wrong,
            "unsteady": self.unsteady,
        }


def look_again(sample: Sample, judge: Judge, shadow: str | None = None) -> Finding | None:
    """Judge a sample; None where that says nothing about it.

    Args:
        judge: see `Judge`.
        shadow: the protocol of a shadow's sample.
    """
    if sample.kind == "shadow":
        assert shadow is not None
        verdict = judge(replace(sample.task, protocol=shadow, speed=False, background=True))
        if verdict is None or not verdict.verdict.decided:
            return None
        return Finding(sample, verdict, (verdict.verdict is Outcome.CORRECT) != sample.accepted)
    task = replace(sample.task, audit=True, speed=False, background=True)
    verdict = judge(task)
    if verdict is None or verdict.reason == "refused":  # it refused these shapes, which it may
        return None
    if verdict.verdict is Outcome.CORRECT:
        return Finding(sample, verdict, False)
    if verdict.verdict not in _WRONG or verdict.entry is None:
        return None  # it was built before: that it cannot be built now is no answer of the kernel
    for draw in range(1, DRAWS):
        again = judge(replace(task, only_entry=verdict.entry, epoch=-draw))  # inputs that no epoch has
        if again is None or not again.verdict.decided:
            return None
        if again.verdict is Outcome.CORRECT:
            return Finding(sample, verdict, False, unsteady=True)
    return Finding(sample, verdict, True)


@dataclass(frozen=True, slots=True)
class Tally:
    """How many samples of each kind there are, and how many of them are wrong."""

    audits: int = 0
    false_accepts: int = 0
    shadows: int = 0
    disagreements: int = 0

    def plus(self, body: Mapping[str, Any]) -> "Tally":
        """With one more stored finding."""
        wrong = bool(body.get("wrong"))
        if body.get("kind") == "audit":
            return replace(self, audits=self.audits + 1, false_accepts=self.false_accepts + wrong)
        if body.get("kind") == "shadow":
            return replace(self, shadows=self.shadows + 1, disagreements=self.disagreements + wrong)
        return self

    @property
    def false_accept_rate(self) -> Estimate | None:
        """The share of accepted candidates that are wrong; None without samples."""
        return estimate(self.false_accepts, self.audits)

    @property
    def disagreement(self) -> Estimate | None:
        """The share of candidates on which the shadow disagrees; None without samples."""
        return estimate(self.disagreements, self.shadows)


def estimate_metrics(name: str, found: Estimate | None) -> dict[str, float]:
    """`name`, `name_low` and `name_high`: NaN where there is no estimate (every rank has to log the same keys)."""
    values = (math.nan,) * 3 if found is None else (found.rate, found.low, found.high)
    return dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))
