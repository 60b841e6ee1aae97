"""Second looks: who is chosen, what counts as a false accept, what is estimated, and that no reward waits for it."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernelward.reward.audit import (
    Finding,
    Sample,
    ShadowConfig,
    Tally,
    estimate,
    estimate_metrics,
    look_again,
    sampled,
)
from kernelward.reward.audit_entries import MOST_TRIED, audit_candidates
from kernelward.reward.bank import KernelBank
from kernelward.reward.cache import VerdictCache
from kernelward.reward.client import JudgeClient, JudgeLost
from kernelward.reward.oversight import Judged, Oversight, OversightOptions
from kernelward.reward.store import RunStore
from kernelward.reward.task import Task
from kernelward.reward.verdict import Outcome, Verdict
from kernelward.suites.entry import Entry
from kernelward.suites.hashing import sha256_text
from kernelward.suites.problem import Problem

KEY = b"tests"
RIGHT = Verdict(Outcome.CORRECT)
WRONG = Verdict(
    Outcome.INCORRECT, "value", entry="negative-1", seed=7, err=math.inf, recipe=Entry.make("negative").to_dict()
)


@pytest.fixture(scope="module")
def task(tiny_relu: Problem) -> Task:
    return Task("class ModelNew: ...", tiny_relu, run_key=KEY, epoch=3)


def answers(*verdicts: Verdict | None) -> tuple[Callable[[Task], Verdict | None], list[Task]]:
    """A judge that gives these answers in turn, and what it was asked."""
    asked: list[Task] = []

    def judge(task: Task) -> Verdict | None:
        asked.append(task)
        return verdicts[len(asked) - 1]

    return judge, asked


# --- the estimate -----------------------------------------------------------------------------------------------------


def test_without_samples_there_is_no_estimate() -> None:
    assert estimate(0, 0) is None
    assert Tally().false_accept_rate is None
    assert all(map(math.isnan, estimate_metrics("rate", None).values()))
    with pytest.raises(ValueError, match="3 of 2"):
        estimate(3, 2)


@settings(deadline=None)
@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_is_clopper_and_pearsons(counts: tuple[int, int]) -> None:
    from scipy.stats import binom

    found, samples = counts
    known = estimate(found, samples)
    assert known is not None
    assert known.low <= known.rate == found / samples <= known.high
    # by definition: at each end what was seen, or more extreme, has a chance of one in forty
    if found:
        assert math.isclose(binom.sf(found - 1, samples, known.low), 0.025, rel_tol=1e-6)
    if found < samples:
        assert math.isclose(binom.cdf(found, samples, known.high), 0.025, rel_tol=1e-6)
    assert (known.low == 0.0, known.high == 1.0) == (found == 0, found == samples)


# --- the sample -------------------------------------------------------------------------------------------------------


def test_the_choice_depends_on_the_run_key_the_candidate_and_the_step_alone(task: Task) -> None:
    steps = range(4000)
    chosen = [s for s in steps if sampled("audit", task, s, KEY, 0.05)]
    assert 140 < len(chosen) < 260  # 200, by 4 standard deviations
    assert chosen == [s for s in steps if sampled("audit", replace(task, epoch=9), s, KEY, 0.05)]
    assert set(chosen) <= {s for s in steps if sampled("audit", task, s, KEY, 0.1)}
    for other in (("shadow", task, KEY), ("audit", replace(task, candidate="x"), KEY), ("audit", task, b"other run")):
        assert chosen != [s for s in steps if sampled(other[0], other[1], s, other[2], 0.05)]  # type: ignore[arg-type]
    assert not any(sampled("audit", task, s, KEY, 0.0) for s in steps)
    assert all(sampled("audit", task, s, KEY, 1.0) for s in steps)


def test_a_sample_goes_through_the_store_without_the_run_key(task: Task) -> None:
    sample = Sample("audit", task, 5, True)
    assert KEY.hex() not in str(sample.to_json())
    again = Sample.from_json(sample.to_json(), KEY)
    assert (again.key, again.task.candidate, again.task.run_key) == (sample.key, task.candidate, KEY)


def test_entries_of_an_audit_are_in_no_suite_and_differ_between_runs(example: Callable[[str], Problem]) -> None:
    from kernelward.mutants.pool import pool_entries
    from kernelward.suites.defaults import cached_default_suite

    problem = example("softmax")
    chosen = list(audit_candidates(problem, KEY, "cpu"))
    assert len(chosen) == len({e.id for e in chosen}) == MOST_TRIED
    assert chosen == list(audit_candidates(problem, KEY, "cpu"))
    assert chosen != list(audit_candidates(problem, b"other", "cpu"))
    assert chosen[0].generator == "normal"
    assert any(e.declared_shape for e in chosen[:2])
    assert len({e.generator for e in chosen[:4]}) == 4 or chosen[1].generator == "normal"
    suite, _ = cached_default_suite(problem)
    assert suite is not None
    used = {item.entry.id for item in (*suite.entries, *suite.reserves)} | {e.id for e in pool_entries(problem, "cpu")}
    assert not used & {e.id for e in chosen}
    first = chosen[0].id
    assert first not in {e.id for e in audit_candidates(problem, KEY, "cpu", excluded={first})}


def test_a_problem_whose_inputs_are_indices_is_audited_by_its_own_draws(example: Callable[[str], Problem]) -> None:
    chosen = list(audit_candidates(example("embedding_sum"), KEY, "cpu"))
    assert chosen
    assert {(e.generator, e.draw) for e in chosen} == {("own", 1)}


# --- what counts ------------------------------------------------------------------------------------------------------


def test_a_failure_in_three_of_three_draws_is_a_false_accept(task: Task) -> None:
    judge, asked = answers(WRONG, WRONG, WRONG)
    finding = look_again(Sample("audit", task, 5, True), judge)
    assert finding is not None
    assert finding.wrong
    assert [(t.only_entry, t.epoch) for t in asked] == [(None, 3), ("negative-1", -1), ("negative-1", -2)]
    assert all(t.audit and t.background and not t.speed for t in asked)
    evidence = finding.evidence
    assert evidence is not None
    assert (evidence.entry, evidence.seed, evidence.as_entry) == ("negative-1", 7, Entry.make("negative"))
    stored = finding.to_json()
    assert (stored["entry"], stored["seed"], stored["wrong"]) == ("negative-1", 7, True)


@pytest.mark.parametrize(
    ("verdicts", "counted"),
    [
        ((RIGHT,), True),
        ((WRONG, RIGHT), True),  # unsteady
        ((None,), False),
        ((Verdict(Outcome.INFRA_ERROR),), False),
        ((Verdict(Outcome.UNREFEREEABLE),), False),
        ((Verdict(Outcome.COMPILE_ERROR, "out-of-time"),), False),
        ((Verdict(Outcome.INCORRECT, "refused", entry="x"),), False),
        ((WRONG, Verdict(Outcome.INFRA_ERROR)), False),
    ],
)
def test_everything_else_is_none(task: Task, verdicts: tuple[Verdict | None, ...], counted: bool) -> None:
    finding = look_again(Sample("audit", task, 5, True), answers(*verdicts)[0])
    assert (finding is not None) is counted
    if finding is not None:
        assert not finding.wrong
        assert finding.evidence is None
        assert finding.unsteady == (len(verdicts) == 2)


@pytest.mark.parametrize(
    ("accepted", "official", "disagrees"), [(True, RIGHT, False), (False, RIGHT, True), (True, WRONG, True)]
)
def test_a_shadow_disagrees_where_it_says_something_else(
    task: Task, accepted: bool, official: Verdict, disagrees: bool
) -> None:
    judge, asked = answers(official)
    finding = look_again(Sample("shadow", task, 5, accepted), judge, "kernelbench")
    assert finding is not None
    assert finding.wrong is disagrees
    assert finding.evidence is None
    assert (asked[0].protocol, asked[0].audit) == ("kernelbench", False)


# --- on its thread ----------------------------------------------------------------------------------------------------


@dataclass
class Judge:
    """Stands in for the client: answers when `go` is set."""

    verdict: Verdict = WRONG
    go: threading.Event = field(default_factory=threading.Event)
    asked: list[Task] = field(default_factory=list)

    def submit(self, task: Task) -> "Future[dict[str, Any]]":
        self.asked.append(task)
        future: Future[dict[str, Any]] = Future()

        def answer() -> None:
            self.go.wait(20)
            future.set_result({"op": "verdict", "verdict": self.verdict.to_json()})

        threading.Thread(target=answer, daemon=True).start()
        return future


@dataclass
class Watched:
    """An oversight with its parts."""

    oversight: Oversight
    judge: Judge
    cache: VerdictCache
    store: RunStore
    bank: KernelBank | None


Start = Callable[..., Watched]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[Oversight] = []

    def begin(judge: Judge | None = None, banked: bool = True, **changes: Any) -> Watched:
        judge = judge or Judge()
        options = replace(OversightOptions(1.0, None, KEY, True), **changes)
        store = RunStore(tmp_path / "run.sqlite", KEY)
        cache = VerdictCache(10, store)
        bank = KernelBank(tmp_path / "bank.sqlite") if banked else None
        oversight = Oversight(options, judge, cache, store, bank)  # type: ignore[arg-type]
        made.append(oversight)
        return Watched(oversight, judge, cache, store, bank)

    yield begin
    for oversight in made:
        oversight.close()


def accepted(task: Task) -> Judged:
    verdict = replace(RIGHT, candidate=sha256_text(task.candidate), problem_hash=task.problem.hash, suite="abc")
    return Judged(task, replace(verdict, backend="torch"))


def test_nothing_waits_and_a_false_accept_loses_its_verdict(
    start: Start, task: Task, caplog: pytest.LogCaptureFixture
) -> None:
    watched = start()
    one = accepted(task)
    watched.cache.put("key", one.verdict)
    began = time.monotonic()
    watched.oversight.watch([one], step=1)
    assert math.isnan(watched.oversight.metrics("k")["k/audit/false_accept_rate"])
    assert time.monotonic() - began < 5.0  # while the judge does not answer
    watched.judge.go.set()
    assert watched.oversight.drain(20)
    assert watched.cache.get("key") is None
    values = watched.oversight.metrics("k")
    assert (values["k/audit/samples"], values["k/audit/false_accepts"]) == (1.0, 1.0)
    assert values["k/audit/false_accept_rate"] == 1.0
    assert 0.02 < values["k/audit/false_accept_rate_low"] < 0.03
    assert values["k/bank/false_accepts"] == watched.oversight.false_accepts == 1.0
    assert "fails entry negative-1 (seed 7, value), found by audit" in caplog.text
    assert watched.bank is not None
    (kernel,) = watched.bank.kernels()
    assert (kernel.state, kernel.suite, kernel.epoch, kernel.backend) == ("false-accept", "abc", 3, "torch")


def test_the_same_candidate_counts_once_a_step_and_is_judged_once_an_epoch(start: Start, task: Task) -> None:
    watched = start(Judge(RIGHT))
    watched.judge.go.set()
    for step in (1, 1, 2):
        watched.oversight.watch([accepted(task), accepted(task)], step)
    watched.oversight.watch([accepted(replace(task, epoch=4))], 3)
    assert watched.oversight.drain(20)
    assert watched.oversight.tally == Tally(audits=3)
    assert len(watched.judge.asked) == 2


def test_a_kernel_that_a_killed_process_had_no_time_to_bank_is_banked_by_the_next(start: Start, task: Task) -> None:
    watched = start(share=0.0)
    assert watched.bank is not None
    one = accepted(task)
    watched.oversight.watch([Judged(task, replace(one.verdict, cached=True))], 1)  # judged before, by the store
    assert watched.oversight.drain(20)
    assert [k.source for k in watched.bank.kernels()] == [task.candidate]


def test_kernels_and_samples_are_written_down_while_an_audit_takes_long(start: Start, task: Task) -> None:
    watched = start()
    assert watched.bank is not None
    tasks = [replace(task, candidate=f"{task.candidate}  # {i}") for i in range(3)]
    for step, one in enumerate(tasks):
        watched.oversight.watch([accepted(one)], step)
    deadline = time.monotonic() + 20
    while len(watched.bank.kernels()) < 3 or len(watched.store.pending()) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.02)  # the judge does not answer, and a kill now would lose nothing
    assert len(watched.judge.asked) <= 1
    watched.judge.go.set()
    assert watched.oversight.drain(20)
    assert watched.store.pending() == {}


def test_what_the_calibrator_finds_in_the_bank_is_taken_note_of(
    start: Start, task: Task, caplog: pytest.LogCaptureFixture
) -> None:
    watched = start(share=0.0)
    watched.oversight.watch([accepted(task)], 1)
    assert watched.oversight.drain(20)
    assert watched.bank is not None
    finding = Finding(Sample("audit", task, 1, True), WRONG, True)
    assert finding.evidence is not None
    evidence = replace(finding.evidence, found_by="calibration")
    (kernel,) = watched.bank.kernels("new")
    watched.bank.settle(kernel.hash, "false-accept", evidence.to_json())
    watched.cache.put("key", accepted(task).verdict)
    watched.oversight._polled = -1e9  # as if some seconds had gone by
    watched.oversight.watch([], 2)
    assert watched.oversight.drain(20)
    assert watched.cache.get("key") is None
    assert watched.oversight.false_accepts == 1
    assert "found by calibration" in caplog.text
    assert not watched.judge.asked


def test_samples_that_a_killed_process_left_are_judged_by_the_next_one(start: Start, task: Task) -> None:
    first = start()
    first.oversight.watch([accepted(task)], 1)
    while not first.judge.asked:
        time.sleep(0.01)
    first.oversight.close()
    second = start(Judge(RIGHT))
    second.judge.go.set()
    assert second.oversight.drain(20)
    assert second.oversight.tally == Tally(audits=1)
    assert second.store.pending() == {}


def test_a_judge_that_is_lost_gives_no_estimate(start: Start, task: Task) -> None:
    class Lost(Judge):
        def submit(self, task: Task) -> "Future[dict[str, Any]]":
            raise JudgeLost("no judge")

    watched = start(Lost())
    watched.oversight.watch([accepted(task)], 1)
    assert watched.oversight.drain(20)
    assert watched.oversight.tally.false_accept_rate is None


def test_a_bank_that_cannot_be_written_is_said_once_and_changes_no_metrics_keys(
    start: Start, task: Task, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "bank.sqlite").write_text("no database" * 100)
    watched = start(Judge(RIGHT))
    watched.judge.go.set()
    keys = set(watched.oversight.metrics("k"))
    for step in (1, 2):
        watched.oversight.watch([accepted(replace(task, candidate=f"c{step}"))], step)
    assert watched.oversight.drain(20)
    assert caplog.text.count("accepted kernels are not kept any more") == 1
    assert set(watched.oversight.metrics("k")) == keys
    assert watched.oversight.tally.audits == 2


def test_a_shadow_has_metrics_of_its_own(start: Start, task: Task) -> None:
    watched = start(Judge(RIGHT), share=0.0, shadow=ShadowConfig("kernelbench", 1.0), banked=False)
    watched.judge.go.set()
    watched.oversight.watch([accepted(task), Judged(replace(task, candidate="y"), WRONG)], 1)
    assert watched.oversight.drain(20)
    values = watched.oversight.metrics("k")
    assert values["k/shadow/kernelbench/samples"] == 2.0
    assert values["k/shadow/kernelbench/disagreement"] == 0.5
    assert not [key for key in values if "audit" in key or "bank" in key]


# --- with the real judge ----------------------------------------------------------------------------------------------


def test_the_judge_begins_with_the_background_only_while_nobody_waits(
    judge: JudgeClient, quick: Callable[..., Task]
) -> None:
    judge.judge(quick())  # warm
    done: list[str] = []
    body = "__import__('time').sleep({})\nreturn torch.relu(x)"
    slow = [quick(body.format(0.4 + i / 100)) for i in range(3)]
    futures = [judge.submit(t) for t in slow]
    late = judge.submit(replace(quick("return x.relu()"), background=True))
    late.add_done_callback(lambda _: done.append("background"))
    for future in futures:
        future.add_done_callback(lambda _: done.append("waited for"))
    for future in [*futures, late]:
        future.result(timeout=120)
    assert done == ["waited for"] * 3 + ["background"]


def test_an_audit_by_the_real_judge_names_recipe_and_seed(
    judge: JudgeClient, tiny_relu: Problem, candidate: Callable[[str], str], small_suite: Callable[..., Any]
) -> None:
    suite = small_suite(tiny_relu, {})
    cheat = candidate("return torch.relu(x) if x.shape[0] == 8 else x")  # right at the only shape that the suite asks
    task = Task(cheat, tiny_relu, suite=suite, run_key=KEY)
    assert judge.judge(task).verdict is Outcome.CORRECT
    verdict = judge.judge(replace(task, audit=True, background=True))
    assert verdict.verdict is Outcome.INCORRECT
    assert verdict.recipe is not None
    assert verdict.seed is not None
    assert Entry.from_dict(verdict.recipe).id == verdict.entry
    assert verdict.suite == suite.hash[:12]
    again = judge.judge(replace(task, audit=True, only_entry=verdict.entry, seed=verdict.seed))
    assert (again.verdict, again.err) == (verdict.verdict, verdict.err)
    honest = replace(task, candidate=candidate("return torch.relu(x)"), audit=True)
    assert judge.judge(honest).verdict is Outcome.CORRECT
