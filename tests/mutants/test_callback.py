"""The callback that logs coverage beside the reward, in real trainings of a tiny policy."""

import json
import logging
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import toy_policy
import trl_tiny
from kernelward.mutants.promote import Case, Proposal, Validity, write_proposal
from kernelward.reward.audit import ShadowConfig, Tally
from kernelward.reward.config import RewardConfig
from kernelward.reward.function import KernelReward
from kernelward.reward.promoted import PromotionRule, suite_files
from kernelward.suites.entry import Entry
from kernelward.suites.suite import Suite, SuiteEntry

trl = pytest.importorskip("trl", reason="the extra `trl` is not installed")
from kernelward.mutants.callback import CoverageCallback  # noqa: E402  (needs transformers)

pytestmark = pytest.mark.filterwarnings("ignore:.*checkpointing.*:FutureWarning")


def counted(detected: int, witnessed: int) -> dict[str, Any]:
    share = detected / witnessed if witnessed else None
    return {"detected": detected, "witnessed": witnessed, "unknown": 0, "share": share, "low": 0.5, "high": 0.99}


def published(policy: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    found = {
        "format": 1,
        "time": time.time() - 5.0,
        "suites": {"relu": {"hash": "a" * 64, "origin": "file", "entries": ["own-1"]}},
        "overall": counted(90, 100),
        "families": {"boundary": counted(45, 50), "pipeline": counted(0, 0)},
        "bank": None if policy is None else {"overall": policy, "families": {}},
        "stale": {"mutants": 10, "of": 40, "share": 0.25},
    }
    return found | changes


def publish(out: Path, found: dict[str, Any]) -> None:
    out.mkdir(exist_ok=True)
    (out / "coverage.json").write_text(json.dumps(found))


def log(callback: CoverageCallback, step: int = 1, zero: bool = True, **state: Any) -> tuple[dict[str, float], bool]:
    """What one event adds to the logs, and whether the training is to end."""
    logs: dict[str, float] = {}
    control = SimpleNamespace(should_training_stop=False)
    trainer_state = SimpleNamespace(is_world_process_zero=zero, global_step=step, log_history=[{}], **state)
    callback.on_log(None, trainer_state, control, logs)
    assert trainer_state.log_history[-1] == logs
    return logs, control.should_training_stop


def make_trainer(folder: Path, reward: Any, **changes: Any) -> Any:
    tokenizer = toy_policy.make_tokenizer()
    return trl.GRPOTrainer(
        model=toy_policy.make_model(tokenizer, seed=0),
        reward_funcs=reward,
        args=trl.GRPOConfig(**trl_tiny.arguments(folder, **changes)),
        train_dataset=trl_tiny.rows(8, chat=False),
        processing_class=tokenizer,
    )


def test_a_training_logs_coverage_resumes_and_ends_where_it_falls_too_low(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from transformers import TrainerCallback

    out, folder = tmp_path / "calibration", tmp_path / "run"
    publish(out, published(counted(30, 40)))
    seen: list[dict[str, float]] = []

    class Logger(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            seen.append(dict(logs))

    config = replace(RewardConfig(), device="cpu", run_key="test", audit=1.0, shadow=ShadowConfig("kernelbench", 1.0))
    reward = KernelReward(config)
    try:
        for resumed in (False, True):
            trainer = make_trainer(folder, reward, max_steps=6 if resumed else 2, save_strategy="steps", save_steps=2)
            trainer.add_callback(Logger())
            callback = CoverageCallback(out, reward, warn_below=0.8, stop_below=0.5)
            callback.attach(trainer)
            if not resumed:
                trainer.train()
                began = callback.suites_since
                assert callback.warned
                assert reward.finish_audits(60)
                publish(out, published(counted(10, 40)))
            else:
                trainer.train(resume_from_checkpoint=str(folder / "checkpoint-2"))
                assert callback.suites_since == began > 0.0
                assert trainer.state.global_step == 3
    finally:
        reward.close()
    rows = [row for row in seen if "reward" in row]
    history = [row for row in trainer.state.log_history if "reward" in row]
    assert [row["kernelward/suite_age_s"] for row in history] == [row["kernelward/suite_age_s"] for row in rows]
    assert all(row["kernelward/coverage/boundary"] == row["kernelward/coverage/overall"] == 0.9 for row in rows)
    assert [row["kernelward/coverage/policy"] for row in rows] == [0.75, 0.75, 0.25]
    assert rows[0]["kernelward/coverage/overall_low"] == 0.5
    assert rows[0]["kernelward/stale_share"] == 0.25
    assert rows[2]["kernelward/suite_age_s"] > rows[0]["kernelward/suite_age_s"]
    assert rows[2]["kernelward/disagreement_samples"] > 0  # of what the first part's steps were paid
    assert {"kernelward/seconds_per_verdict", "kernelward/verdicts_per_minute", "kernelward/share_no_verdict"} <= set(
        rows[0]
    )
    assert not [key for row in rows for key in row if "pipeline" in key]  # nothing was witnessed: no share
    assert json.loads((out / "trainer.json").read_text()) == {"step": 3}
    assert caplog.text.count("less than 80.0 %: the reward may be easy to fool") == 1  # the checkpoint remembers it
    assert "detect 25.0% of 40 mutants of the policy's own kernels, less than 50.0 %: the training ends" in caplog.text
    assert caplog.text.count("the training ends") == 1


def test_without_a_publication_nothing_is_invented(tmp_path: Path) -> None:
    callback = CoverageCallback(tmp_path / "none", warn_below=1.0, stop_below=1.0)
    assert log(callback) == ({}, False)
    (tmp_path / "none" / "coverage.json").write_text('{"format": 1, "overall"')
    assert log(callback) == ({}, False)
    publish(tmp_path / "none", published(overall=None, families={}, suites={}, stale={}))
    assert set(log(callback)[0]) == {"kernelward/coverage_age_s"}


@pytest.mark.parametrize(
    ("found", "warned", "stops"),
    [
        (published(counted(39, 40)), False, False),
        (published(counted(30, 40)), True, False),
        (published(counted(10, 40)), True, True),
        (published(counted(1, 10)), False, False),  # too few of the policy's: all mutants count
        (published(None, overall=counted(4, 10)), False, False),
        (published(None, overall=counted(40, 100)), True, True),
    ],
)
def test_thresholds_look_at_the_policys_own_kernels_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, found: dict[str, Any], warned: bool, stops: bool
) -> None:
    publish(tmp_path, found)
    callback = CoverageCallback(tmp_path, warn_below=0.9, stop_below=0.5)
    assert log(callback)[1] is stops
    assert log(callback)[1] is stops
    assert caplog.text.count("may be easy to fool") == warned


def test_a_warning_comes_again_after_a_recovery(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    callback = CoverageCallback(tmp_path, warn_below=0.9)
    for detected in (30, 40, 30):
        publish(tmp_path, published(counted(detected, 40)))
        log(callback)
    assert caplog.text.count("may be easy to fool") == 2


def test_only_rank_zero_reads_and_all_ranks_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tmp_path, published(counted(10, 40)))
    said: dict[str, str] = {}
    monkeypatch.setattr("kernelward.mutants.callback.from_rank_zero", lambda name, value: said.setdefault(name, value))
    zero, one = (CoverageCallback(tmp_path, stop_below=0.5) for _ in range(2))
    logs, stops = log(zero, step=4)
    assert stops
    assert logs
    assert log(one, step=4, zero=False) == ({}, True)
    assert said == {"stop/kernelward/4": "1"}


def test_changed_suites_are_younger(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    callback = CoverageCallback(tmp_path)
    callback.suites, callback.suites_since = {"relu": "a" * 64}, time.time() - 100
    publish(tmp_path, published())
    assert log(callback)[0]["kernelward/suite_age_s"] >= 100
    publish(tmp_path, published(suites={"relu": {"hash": "b" * 64}}))
    with caplog.at_level(logging.INFO):
        assert log(callback)[0]["kernelward/suite_age_s"] < 50
    assert f"other suites are in use now: relu: {'b' * 12}" in caplog.text


class Reward:
    """What the callback needs of a reward."""

    def __init__(self, config: RewardConfig, tally: Tally | None = None) -> None:
        self.config = config
        self.audits = tally or Tally()
        self.false_accepts = 2
        self.store = SimpleNamespace(
            metrics_after=lambda last: (1, [{"kernelward/share_correct": 0.5}] if not last else [])
        )


def test_the_reward_adds_its_audits_and_what_other_processes_stored(tmp_path: Path) -> None:
    callback = CoverageCallback(tmp_path, Reward(RewardConfig(), Tally(audits=4, false_accepts=1)))  # type: ignore[arg-type]
    logs, _ = log(callback)
    assert logs["kernelward/share_correct"] == 0.5
    assert logs["kernelward/false_accepts"] == 2.0
    assert logs["kernelward/false_accept_rate"] == 0.25
    assert logs["kernelward/false_accept_rate_samples"] == 4.0
    assert not [key for key in logs if "disagreement" in key]  # no sample: no estimate
    assert "kernelward/share_correct" not in log(callback)[0]


def test_a_rule_promotes_from_the_trainers_side(tmp_path: Path) -> None:
    suites = tmp_path / "suites"
    suites.mkdir()
    case = Case("k", "audit", "e", 1, "value", "incorrect", "e", 2)
    suite = Suite("relu", "a" * 64, (SuiteEntry(Entry("own", draw=1)),))
    proposal = Proposal(suite, "0" * 64, "false-accept", Validity(accepted=("the reference",)), (case,))
    callback = CoverageCallback(tmp_path, Reward(replace(RewardConfig(), suites=str(suites))))  # type: ignore[arg-type]
    write_proposal(tmp_path / "proposals", proposal)
    log(callback)
    assert suite_files(suites) == {}  # without a rule nothing is promoted
    config = replace(RewardConfig(), suites=str(suites), promote=PromotionRule(false_accepts=True))
    callback = CoverageCallback(tmp_path, Reward(config))  # type: ignore[arg-type]
    log(callback)
    assert [s.hash for s in suite_files(suites).values()] == [suite.hash]


def test_a_callback_that_the_trainer_makes_again_finds_its_reward(tmp_path: Path) -> None:
    reward = Reward(RewardConfig())
    first = CoverageCallback(tmp_path, reward, warn_below=0.9, least=3)  # type: ignore[arg-type]
    first.warned = True
    again = CoverageCallback.from_state(json.loads(json.dumps(first.state())))
    assert (again.reward, again.warn_below, again.least, again.warned) == (reward, 0.9, 3, True)
