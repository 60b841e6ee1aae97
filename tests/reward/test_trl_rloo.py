"""TRL's RLOOTrainer with the real judge, on the CPU."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import toy_policy
import trl_tiny
from kernelward.reward.config import RewardConfig
from kernelward.reward.function import KernelReward

trl = pytest.importorskip("trl", reason="the extra `trl` is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:.*checkpointing.*:FutureWarning")  # renamed in newer transformers


def test_training_is_paid_what_the_judge_found(tmp_path: Path) -> None:
    reward = KernelReward(replace(RewardConfig(name="kw"), device="cpu", run_key="test"))
    tokenizer = toy_policy.make_tokenizer()
    trainer = trl.RLOOTrainer(
        model=toy_policy.make_model(tokenizer, seed=0),
        reward_funcs=reward,
        args=trl.RLOOConfig(**trl_tiny.arguments(tmp_path)),
        train_dataset=trl_tiny.rows(8, chat=False),
        processing_class=tokenizer,
    )
    try:
        trainer.train()
    finally:
        reward.close()
    log = [row for row in trainer.state.log_history if "reward" in row]
    assert len(log) == 2
    for row in log:
        built = row["kw/share_incorrect"] + row["kw/share_runtime_error"]
        assert math.isclose(row["rewards/kw/mean"], 1.1 * row["kw/share_correct"] + 0.1 * built, abs_tol=1e-5)
