"""TRL's GRPOTrainer with the real judge, on the CPU."""

import logging
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import toy_policy
import trl_tiny
from kernelward.reward.config import RewardConfig
from kernelward.reward.function import KernelReward
from kernelward.reward.metrics import log_stored_metrics
from kernelward.reward.store import RunStore
from kernelward.suites.errors import InputError

trl = pytest.importorskip("trl", reason="the extra `trl` is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:.*checkpointing.*:FutureWarning")  # renamed in newer transformers


@pytest.fixture(scope="module")
def reward() -> Iterator[KernelReward]:
    made = KernelReward(replace(RewardConfig(), device="cpu", run_key="test", measure=("kernelbench",)))
    yield made
    made.close()


def train(reward: Any, folder: Path, dataset: Any, **changes: Any) -> list[dict[str, float]]:
    tokenizer = toy_policy.make_tokenizer()
    trainer = trl.GRPOTrainer(
        model=toy_policy.make_model(tokenizer, seed=0),
        reward_funcs=reward,
        args=trl.GRPOConfig(**trl_tiny.arguments(folder, **changes)),
        train_dataset=dataset,
        processing_class=tokenizer,
    )
    trainer.train()
    return [row for row in trainer.state.log_history if "reward" in row]


@pytest.mark.parametrize("chat", [False, True], ids=["standard", "conversational"])
def test_training_is_paid_what_the_judge_found(reward: KernelReward, tmp_path: Path, chat: bool) -> None:
    log = train(reward, tmp_path, trl_tiny.rows(8, chat))
    assert len(log) == 2
    for row in log:
        shares = {k.removeprefix("kernelward/share_"): v for k, v in row.items() if k.startswith("kernelward/share_")}
        assert shares["no_verdict"] == 0.0
        decided = ("correct", "incorrect", "compile_error", "runtime_error", "timeout", "rejected")
        assert math.isclose(sum(shares[name] for name in decided), 1.0, abs_tol=1e-6)
        paid = 1.1 * shares["correct"] + 0.1 * (shares["incorrect"] + shares["runtime_error"])
        assert math.isclose(row["rewards/kernelward/mean"], paid, abs_tol=1e-5)
        assert "kernelward/kernelbench/rejects_accepted" in row
        assert row["kernelward/waited_s"] > 0.0


def test_the_real_judge_tells_honest_kernels_from_cheats_and_wrong_ones(reward: KernelReward) -> None:
    kinds = ["honest", "cheat", "wrong", "broken", "honest"]
    logged: dict[str, float] = {}
    rewards = reward(
        completions=[trl_tiny.kernel("relu", kind) for kind in kinds],
        reference=[trl_tiny.RELU] * len(kinds),
        log_metric=logged.__setitem__,
    )
    assert rewards == [1.1, 0.1, 0.1, 0.1, 1.1]
    assert logged["kernelward/kernelbench/accepts_rejected"] == 0.2  # the identity, on inputs without a negative


def test_a_problem_column_of_paths_is_found(reward: KernelReward, tmp_path: Path) -> None:
    path = tmp_path / "relu.py"
    path.write_text(trl_tiny.RELU)
    dataset = trl_tiny.rows(4, chat=False).remove_columns("reference").add_column("problem", [str(path)] * 4)
    assert len(train(reward, tmp_path, dataset, max_steps=1)) == 1


def test_a_dataset_without_the_columns_ends_the_training_with_a_clear_message(
    reward: KernelReward, tmp_path: Path
) -> None:
    dataset = trl_tiny.rows(4, chat=False).rename_column("reference", "source")
    with pytest.raises(InputError, match="Its other columns: difficulty, source"):
        train(reward, tmp_path, dataset, max_steps=1)


def test_training_goes_on_where_there_is_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reward = KernelReward(replace(RewardConfig(), device="cpu"))

    def lost(*_: Any, **__: Any) -> Any:
        raise OSError("no judge on this machine")

    monkeypatch.setattr("kernelward.reward.client.JudgeClient.judge_each", lost)
    with caplog.at_level(logging.WARNING):
        log = train(reward, tmp_path, trl_tiny.rows(4, chat=False))
    assert len(log) == 2
    assert all(row["kernelward/share_no_verdict"] > 0.0 for row in log)
    assert "watch kernelward/share_no_verdict" in caplog.text


def test_the_packaged_function_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelward.reward import reward_fn

    try:
        log = train(reward_fn, tmp_path, trl_tiny.rows(4, chat=False), max_steps=1)
    finally:
        reward_fn.close()
    assert "rewards/kernelward/mean" in log[0]


def test_metrics_of_other_processes_reach_the_trainers_log_and_its_loggers(tmp_path: Path) -> None:
    from transformers import TrainerCallback

    store = RunStore(tmp_path / "run.sqlite", b"key")
    seen: list[dict[str, float]] = []

    class Logger(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            seen.append(dict(logs))

    def elsewhere(completions: list[Any], **_: Any) -> list[float]:
        store.add_metrics({"kernelward/share_correct": 0.25})  # as a rollout worker's reward does, without a logger
        return [0.0] * len(completions)

    tokenizer = toy_policy.make_tokenizer()
    trainer = trl.GRPOTrainer(
        model=toy_policy.make_model(tokenizer, seed=0),
        reward_funcs=elsewhere,
        args=trl.GRPOConfig(**trl_tiny.arguments(tmp_path)),
        train_dataset=trl_tiny.rows(8, chat=False),
        processing_class=tokenizer,
        callbacks=[Logger()],
    )
    log_stored_metrics(trainer, store)
    trainer.train()
    for rows in (seen, trainer.state.log_history):
        assert [row["kernelward/share_correct"] for row in rows if "reward" in row] == [0.25, 0.25]
