"""Better suites: proposed with their evidence, and promoted into the folder that the reward reads.

A proposal is a suite file whose provenance holds the evidence: why it is proposed (a false accept that it catches, or
mutants that it detects besides), that the gate admits its entries, which kernels known to be correct it accepts, and
what it costs. It is promoted by a person (`kernelward suite promote`), or under a rule (`reward.promoted`), and never
where it rejects a kernel known to be correct. Promotion replaces one file atomically and keeps the old suite; the
reward takes the new one up when its inputs change.
"""

import contextlib
import fcntl
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Literal, Self

from ..reward.promoted import PromotionRule, install, read_suite, suite_files, write_suite
from ..suites.errors import InputError
from ..suites.hashing import short
from ..suites.suite import Suite

_KEY = "proposal"


@dataclass(frozen=True, slots=True)
class Gain:
    """Mutants of one family that a suite detects, of those that some entry shows wrong."""

    before: int
    after: int
    witnessed: int


@dataclass(frozen=True, slots=True)
class Case:
    """A false accept that a proposal catches.

    Attributes:
        kernel: its hash in the bank.
        found_by, entry, seed, reason: as the bank says (`reward.bank.Evidence`).
        verdict, at_entry, at_seed: what the proposed suite says of it.
    """

    kernel: str
    found_by: str
    entry: str
    seed: int | None
    reason: str
    verdict: str
    at_entry: str | None
    at_seed: int | None


@dataclass(frozen=True, slots=True)
class Validity:
    """Whether a suite may judge.

    Attributes:
        refused: entries that the gate does not admit, and why.
        accepted: names of the kernels known to be correct that it accepts.
        rejected: those that it does not, and where.
        undecided: those without a verdict.
    """

    refused: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()
    rejected: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()

    @property
    def objection(self) -> str:
        """Why it may not judge; "" where it may."""
        if self.refused:
            return f"the gate does not admit {self.refused[0]}"
        if self.rejected:
            return f"it rejects a kernel known to be correct: {self.rejected[0]}"
        return "" if self.accepted else "no kernel known to be correct was judged by it"


@dataclass(frozen=True, slots=True)
class Proposal:
    """A suite, and why it should be used.

    Attributes:
        base: hash of the suite that it was made from.
        why: `false-accept` or `gain`.
        gain: by family.
        bytes_before, bytes_after: of the entries that run.
    """

    suite: Suite
    base: str
    why: Literal["false-accept", "gain"]
    validity: Validity
    cases: tuple[Case, ...] = ()
    gain: Mapping[str, Gain] = field(default_factory=dict)
    bytes_before: int = 0
    bytes_after: int = 0
    made_at: float = 0.0

    @property
    def id(self) -> str:
        """The problem's name and the suite's hash."""
        return f"{self.suite.problem_id.replace('/', '-')}-{short(self.suite.hash)}"

    @property
    def gained(self) -> float | None:
        """Share of the witnessed mutants that it detects besides; None where none were counted."""
        witnessed = sum(g.witnessed for g in self.gain.values())
        return sum(g.after - g.before for g in self.gain.values()) / witnessed if witnessed else None

    def to_suite(self) -> Suite:
        """The suite with the evidence in its provenance."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "suite"}
        plain["cases"] = [asdict(case) for case in self.cases]
        plain["gain"] = {family: asdict(gain) for family, gain in self.gain.items()}
        plain["validity"] = {name: list(value) for name, value in asdict(self.validity).items()}
        return replace(self.suite, provenance={**self.suite.provenance, _KEY: plain})

    @classmethod
    def of_suite(cls, suite: Suite, where: str = "suite") -> Self:
        """Inverse of `to_suite`.

        Raises:
            InputError: the suite is no proposal.
        """
        try:
            plain = dict(suite.provenance[_KEY])
            plain["cases"] = tuple(Case(**case) for case in plain["cases"])
            plain["gain"] = {family: Gain(**gain) for family, gain in plain["gain"].items()}
            plain["validity"] = Validity(**{name: tuple(value) for name, value in plain["validity"].items()})
            rest = {name: value for name, value in suite.provenance.items() if name != _KEY}
            return cls(suite=replace(suite, provenance=rest), **plain)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{where}: not a proposal: its provenance holds no evidence that can be read") from error


# --- their files ----------------------------------------------------------------------------------------------------


def write_proposal(folder: Path, proposal: Proposal) -> Path:
    """Write a proposal's file; an earlier one for the same problem and the same reason goes.

    Raises:
        InputError: the folder cannot be written.
    """
    path = folder / f"{proposal.id}.yaml"
    write_suite(path, proposal.to_suite())
    for other, old in read_proposals(folder).items():
        if other != path and old.suite.problem_hash == proposal.suite.problem_hash and old.why == proposal.why:
            other.unlink(missing_ok=True)
    return path


def read_proposals(folder: Path) -> dict[Path, Proposal]:
    """The proposals of a folder, the oldest first; files that are none are left out."""
    found = {}
    for path in sorted(folder.glob("*.yaml")):
        with contextlib.suppress(InputError):
            found[path] = Proposal.of_suite(read_suite(path), str(path))
    return dict(sorted(found.items(), key=lambda item: item[1].made_at))


def find_proposal(folder: Path, suite: Suite, base: str) -> Proposal | None:
    """The proposal of a suite in place of another one, if there is one."""
    return next((p for p in read_proposals(folder).values() if p.suite.hash == suite.hash and p.base == base), None)


# --- promotion ------------------------------------------------------------------------------------------------------


def objection(proposal: Proposal, suites: Path) -> str:
    """Why a proposal may not be promoted into a folder; "" where it may.

    Raises:
        InputError: the folder holds a broken suite.
    """
    if proposal.validity.objection:
        return proposal.validity.objection
    own = _held(proposal, suites)
    if own is not None and own.hash == proposal.suite.hash:
        return "it is in use already"
    if own is not None and own.hash != proposal.base:
        return (
            f"it was made from suite {short(proposal.base)}, but {short(own.hash)} is in use by now: propose it again"
        )
    return ""


def allowed(rule: PromotionRule, proposal: Proposal) -> bool:
    """Whether a rule lets a proposal be promoted without a person."""
    gained = proposal.gained
    fixes = rule.false_accepts and bool(proposal.cases)
    gains = rule.least_gain is not None and gained is not None and gained > 0 and gained >= rule.least_gain
    known = len(proposal.validity.accepted) >= rule.known_correct and not proposal.validity.objection
    return (fixes or gains) and known and proposal.bytes_after <= rule.most_bytes


def promote(proposal: Proposal, suites: Path) -> Path:
    """Put a proposed suite into the folder of suites in use; the file.

    Raises:
        InputError: it may not be (`objection`), or the folder cannot be written.
    """
    try:
        suites.mkdir(parents=True, exist_ok=True)
        lock = os.open(suites / ".promote.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise InputError(f"{suites}: cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        why = objection(proposal, suites)
        if why:
            raise InputError(f"proposal {proposal.id} is not promoted: {why}")
        return install(suites, proposal.to_suite())
    finally:
        os.close(lock)


def promote_allowed(rule: PromotionRule, proposals: Path, suites: Path) -> list[Proposal]:
    """Promote the proposals of a folder that a rule allows, the oldest first.

    Raises:
        InputError: the folder of suites cannot be read or written.
    """
    found = []
    for proposal in read_proposals(proposals).values():
        if allowed(rule, proposal) and not objection(proposal, suites):
            promote(proposal, suites)
            found.append(proposal)
    return found


def _held(proposal: Proposal, suites: Path) -> Suite | None:
    held = suite_files(suites).values() if suites.is_dir() else ()
    return next((s for s in held if s.problem_hash == proposal.suite.problem_hash), None)
