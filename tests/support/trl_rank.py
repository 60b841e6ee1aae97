"""One rank of a GRPO training on the CPU (gloo); started by tests/reward/test_trl_ranks.py through torchrun."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import toy_policy
import trl_tiny
from kernelward.reward.config import RewardConfig
from kernelward.reward.function import KernelReward
from trl import GRPOConfig, GRPOTrainer


class Watched(KernelReward):
    """Writes down what this rank was asked and what it logged."""

    calls: list[dict[str, Any]] = []  # noqa: RUF012

    def __call__(self, completions: Any, **columns: Any) -> list[float | None]:
        keys: list[str] = []
        log = columns.pop("log_metric")

        def log_metric(name: str, value: float) -> None:
            keys.append(name)
            log(name, value)

        rewards = super().__call__(completions, log_metric=log_metric, **columns)
        self.calls.append({"completions": list(completions), "rewards": rewards, "keys": keys})
        return rewards


def main(folder: Path) -> None:
    """Train two steps, each group split over the ranks, then judge one more candidate."""
    reward = Watched(replace(RewardConfig(), device="cpu"))
    tokenizer = toy_policy.make_tokenizer()
    changes = {"per_device_train_batch_size": 2, "num_generations": 4, "ddp_backend": "gloo"}
    trainer = GRPOTrainer(
        model=toy_policy.make_model(tokenizer, seed=0),
        reward_funcs=reward,
        args=GRPOConfig(**trl_tiny.arguments(folder, **changes)),
        train_dataset=trl_tiny.rows(8, chat=False),
        processing_class=tokenizer,
    )
    trainer.train()
    path = folder / f"relu-{os.environ['RANK']}.py"
    path.write_text(trl_tiny.RELU)
    cheat = reward.judge([trl_tiny.kernel("relu", "cheat")], [str(path)]).verdicts["kernelward"][0]
    result = {
        "key": reward.run_key.hex(),
        "calls": reward.calls,
        "cheat": {"verdict": cheat.verdict, "entry": cheat.entry, "seed": cheat.seed},
        "log": [row for row in trainer.state.log_history if "reward" in row],
    }
    (folder / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(result))
    reward.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
