"""From a false accept to a better suite: proposals, their evidence, promotion."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from kernelward.mutants.promote import (
    Case,
    Gain,
    Proposal,
    Validity,
    allowed,
    objection,
    promote,
    promote_allowed,
    read_proposals,
    write_proposal,
)
from kernelward.mutants.promote_command import PromoteOptions, run_promote
from kernelward.mutants.propose import Means, check, propose_fixes, suite_in_use
from kernelward.reward.bank import BankConfig, BankedKernel, Evidence, kernel_hash
from kernelward.reward.config import RewardConfig
from kernelward.reward.function import KernelReward
from kernelward.reward.promoted import HISTORY, PromotionRule, install, suite_files
from kernelward.reward.task import JudgeConfig
from kernelward.suites.entry import Entry
from kernelward.suites.errors import InputError
from kernelward.suites.problem import Problem, problem_from_source
from kernelward.suites.suite import Suite, SuiteEntry
from kernelward.suites.validity import admit

RELU = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)

ROWS = 8
COLUMNS = 64

def get_inputs():
    return [torch.rand(ROWS, COLUMNS)]

def get_init_inputs():
    return []
"""
HONEST = (
    "import torch\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x.clamp(min=0.0)\n"
)
IDENTITY = "import torch\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x.clone()\n"


@dataclass
class Run:
    """A training's reward with a weak suite."""

    problem: Problem
    weak: Suite
    suites: Path
    means: Means
    reward: KernelReward
    bank: BankConfig

    def pay(self, *candidates: str, step: int = 0) -> list[float | None]:
        """Rewards of one call at a step."""
        state = type("State", (), {"global_step": step})
        rows = [self.problem.source] * len(candidates)
        return self.reward(list(candidates), reference=rows, trainer_state=state, log_metric=lambda *_: None)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return problem_from_source(RELU)


@pytest.fixture(scope="module")
def weak(problem: Problem) -> Suite:
    """A suite that knows no negative number."""
    admission = admit(problem, Entry.make("own"))
    assert admission.measured is not None
    return Suite(problem.id, problem.hash, (SuiteEntry(Entry.make("own"), (admission.measured,)),))


@pytest.fixture
def run(problem: Problem, weak: Suite, tmp_path: Path) -> Iterator[Run]:
    suites, bank = tmp_path / "suites", BankConfig(str(tmp_path / "bank.sqlite"))
    suites.mkdir()
    install(suites, weak)
    config = replace(
        RewardConfig(), device="cpu", run_key="test", suites=str(suites), bank=bank, audit=1.0, rotate_every=10
    )
    judge = JudgeConfig(workers=2, threads=1)
    reward = KernelReward(replace(config, judge=judge))
    yield Run(problem, weak, suites, Means(tmp_path / "proposals", suites, judge=judge), reward, bank)
    reward.close()


def test_an_exploit_of_a_weak_suite_is_noticed_named_and_ends_to_pay(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    assert run.pay(IDENTITY, HONEST) == [1.1, 1.1]
    assert run.reward.finish_audits(60)
    tally = run.reward.audits
    assert (tally.audits, tally.false_accepts) == (2, 1)
    with run.bank.open() as bank:
        (exploit,) = bank.kernels("false-accept")
        assert exploit.source.strip() == IDENTITY.strip()
        shown = exploit.evidence
        assert shown is not None
        assert shown.entry not in {item.entry.id for item in run.weak.entries}
        assert shown.seed is not None
        assert f"fails entry {shown.entry} (seed {shown.seed}, value), found by audit" in caplog.text
        (proposal,) = propose_fixes(bank, run.means)
        assert propose_fixes(bank, run.means) == [proposal]
    assert [c.kernel for c in proposal.cases] == [exploit.hash]
    assert proposal.cases[0].entry == shown.entry
    assert proposal.validity.accepted == ("the reference",)
    assert proposal.validity.objection == ""
    assert proposal.bytes_after > proposal.bytes_before > 0
    promote(proposal, run.suites)
    assert run.pay(IDENTITY, step=9) == [1.1]  # the same inputs, the same suite: never in the middle of an epoch
    assert run.pay(IDENTITY, HONEST, step=10) == [0.1, 1.1]
    assert (run.suites / HISTORY / f"{run.weak.hash}.yaml").is_file()
    with run.bank.open() as bank:
        assert propose_fixes(bank, run.means) == []  # the suite in use catches it


def test_the_command_makes_the_proposal_and_promotes_it(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = Evidence("normal-x", Entry.make("normal").to_dict(), "calibration", "value", 7, 1.0, 1e-6)
    with run.bank.open() as bank:
        bank.add(BankedKernel(run.problem.id, run.problem.hash, run.problem.source, "torch", IDENTITY, 1.0))
        bank.settle(kernel_hash(IDENTITY, run.problem.hash), "false-accept", shown.to_json())
    options = PromoteOptions(run.suites, tmp_path / "proposals", Path(str(run.bank.file)), device="cpu", as_json=True)
    assert run_promote(run.problem.id, options) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["promoted"]
    assert said["validity"]["accepted"] == ["the reference"]
    assert said["false_accepts"][0]["verdict"] == "incorrect"
    (held,) = suite_files(run.suites).values()
    assert held.hash == said["suite"] != run.weak.hash
    assert run_promote(None, options) == 0
    assert json.loads(capsys.readouterr().out)[0]["proposal"] == said["proposal"]
    with pytest.raises(InputError, match="it is in use already"):
        run_promote(said["proposal"], options)
    with pytest.raises(InputError, match=r"no proposal 'other'.*source-"):
        run_promote("other", options)


def test_a_suite_that_rejects_a_known_correct_kernel_is_never_promoted(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = Entry.make("normal")
    measured = replace(run.weak.entries[0].measured[0], tolerance=(-1.0,))  # nothing is as exact as that
    strict = replace(run.weak, entries=(*run.weak.entries, SuiteEntry(entry, (measured,))))
    with run.means.client() as client:
        validity = check(run.problem, strict, suite_in_use(run.problem, run.means), client, run.means)
    assert len(validity.rejected) == 1
    assert validity.rejected[0].startswith(f"the reference: incorrect at {entry.id} (seed ")
    proposal = Proposal(strict, run.weak.hash, "gain", validity, gain={"value": Gain(0, 5, 5)})
    assert not allowed(PromotionRule(False, 0.01, 1), proposal)
    with pytest.raises(InputError, match="it rejects a kernel known to be correct: the reference"):
        promote(proposal, run.suites)
    lying = replace(proposal, validity=Validity(accepted=("the reference",)))
    write_proposal(tmp_path / "proposals", lying)
    path = tmp_path / "relu.py"
    path.write_text(run.problem.source)
    named = replace(strict, problem_id=str(path))
    write_proposal(tmp_path / "proposals", replace(lying, suite=named))
    (file,) = read_proposals(tmp_path / "proposals")
    assert run_promote(str(file), PromoteOptions(run.suites, tmp_path / "proposals", device="cpu")) == 1
    assert "not promoted: it rejects a kernel known to be correct" in capsys.readouterr().out
    assert [s.hash for s in suite_files(run.suites).values()] == [run.weak.hash]


# --- without a judge --------------------------------------------------------------------------------------------------

OK = Validity(accepted=("a", "b"))
CASE = Case("k" * 64, "audit", "negative-1", 7, "value", "incorrect", "negative-1", 8)


def make(draw: int = 1, base: str = "0" * 64, problem: str = "a" * 64, **changes: object) -> Proposal:
    suite = Suite("level1/19_ReLU", problem, (SuiteEntry(Entry("own", draw=draw)),))
    return Proposal(suite, base, "gain", OK, **changes)  # type: ignore[arg-type]


def test_a_proposal_is_a_suite_file_that_holds_its_evidence(tmp_path: Path) -> None:
    proposal = make(cases=(CASE,), gain={"boundary": Gain(3, 5, 8)}, bytes_before=4, bytes_after=9, made_at=1.5)
    path = write_proposal(tmp_path, proposal)
    assert read_proposals(tmp_path) == {path: proposal}
    assert suite_files(tmp_path)[path].hash == proposal.suite.hash  # the evidence is no part of it
    assert path.name == f"level1-19_ReLU-{proposal.suite.hash[:12]}.yaml"
    assert proposal.gained == 0.25
    newer = replace(make(draw=2), made_at=2.0)
    write_proposal(tmp_path, newer)
    assert list(read_proposals(tmp_path).values()) == [newer]


def test_a_proposal_that_was_cut_off_is_none(tmp_path: Path) -> None:
    path = write_proposal(tmp_path, make())
    text = path.read_text()
    for length in range(0, len(text) - 1, 97):
        path.write_text(text[:length])
        assert read_proposals(tmp_path) == {}
        assert promote_allowed(PromotionRule(True, 0.0), tmp_path, tmp_path / "suites") == []


@pytest.mark.parametrize(
    ("rule", "changes", "expected"),
    [
        (PromotionRule(), {"cases": (CASE,)}, False),
        (PromotionRule(false_accepts=True), {"cases": (CASE,)}, True),
        (PromotionRule(false_accepts=True), {}, False),
        (PromotionRule(least_gain=0.2), {"gain": {"a": Gain(1, 3, 10)}}, True),
        (PromotionRule(least_gain=0.2), {"gain": {"a": Gain(1, 3, 10), "b": Gain(2, 2, 2)}}, False),
        (PromotionRule(least_gain=0.0), {"gain": {"a": Gain(3, 3, 10)}}, False),
        (PromotionRule(least_gain=0.0), {}, False),
        (PromotionRule(false_accepts=True, known_correct=3), {"cases": (CASE,)}, False),
        (PromotionRule(false_accepts=True), {"cases": (CASE,), "validity": replace(OK, rejected=("c",))}, False),
        (PromotionRule(false_accepts=True), {"cases": (CASE,), "validity": replace(OK, refused=("e",))}, False),
        (PromotionRule(false_accepts=True, most_bytes=8), {"cases": (CASE,), "bytes_after": 9}, False),
    ],
)
def test_what_a_rule_lets_through(rule: PromotionRule, changes: dict[str, object], expected: bool) -> None:
    assert allowed(rule, replace(make(), **changes)) is expected  # type: ignore[arg-type]


def test_rules_promote_once_and_only_in_place_of_the_suite_that_was_measured(tmp_path: Path) -> None:
    rule, suites, folder = PromotionRule(false_accepts=True), tmp_path / "suites", tmp_path / "proposals"
    first = make(cases=(CASE,))
    write_proposal(folder, first)
    assert promote_allowed(rule, folder, suites) == [first]
    assert promote_allowed(rule, folder, suites) == []
    outdated = make(draw=2, cases=(CASE,))
    write_proposal(folder, outdated)
    assert promote_allowed(rule, folder, suites) == []
    assert "is in use by now: propose it again" in objection(outdated, suites)
    current = make(draw=2, base=first.suite.hash, cases=(CASE,))
    write_proposal(folder, current)
    assert promote_allowed(rule, folder, suites) == [current]
    assert {p.name for p in (suites / HISTORY).iterdir()} == {f"{p.suite.hash}.yaml" for p in (first, current)}
    assert list(suite_files(suites)) == [suites / "level1" / "19_ReLU.yaml"]


def test_another_version_of_a_problem_keeps_its_suite(tmp_path: Path) -> None:
    old, new = make(), make(problem="b" * 64)
    assert promote(old, tmp_path) != promote(new, tmp_path)
    assert {s.problem_hash for s in suite_files(tmp_path).values()} == {"a" * 64, "b" * 64}


def test_promotion_goes_where_the_problems_suite_is(tmp_path: Path) -> None:
    mine = tmp_path / "deep" / "mine.yaml"
    mine.parent.mkdir()
    mine.write_text(make().suite.to_yaml())
    assert promote(make(draw=2, base=make().suite.hash), tmp_path) == mine


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        promote(make(), tmp_path / "file")
