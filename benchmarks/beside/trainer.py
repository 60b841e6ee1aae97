"""A training to watch: TRL's GRPOTrainer with the real reward and the toy policy of examples/, in a process of its own.

    python benchmarks/beside/trainer.py SETTINGS.json

It resumes from its last whole checkpoint, and ends after `steps` or when FOLDER/stop is there. FOLDER/log.jsonl gets
what the trainer logs, as it is logged, with the time; FOLDER/paid.jsonl what each call of the reward paid, by what the
completions are by construction.
"""

import json
import logging
import os
import statistics
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import toy_policy
from kernelward.mutants.callback import CoverageCallback
from kernelward.reward.config import RewardConfig
from kernelward.reward.function import KernelReward


@dataclass(frozen=True, slots=True)
class Settings:
    """What a training is started with.

    Attributes:
        folder: of its log and its checkpoints.
        config: file of the reward's configuration.
        out: what the watcher publishes into.
        problems: files of problems that the toy policy knows, by turns.
        steps: at most so many.
        group: completions per prompt and step.
        save_steps: between checkpoints; 0 = none.
        rate: learning rate.
    """

    folder: str
    config: str
    out: str
    problems: tuple[str, ...]
    steps: int
    group: int = 8
    save_steps: int = 0
    rate: float = 5e-3


class Paid(KernelReward):
    """The reward, which writes down what it pays."""

    def __init__(self, config: RewardConfig, place: Path) -> None:
        super().__init__(config)
        self.place = place

    def __call__(self, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """Score, as `KernelReward` does."""
        rewards = super().__call__(completions, **columns)
        paid: dict[str, list[float]] = {}
        for problem, completion, reward in zip(columns["problem"], completions, rewards, strict=True):
            if reward is not None:
                paid.setdefault(toy_policy.truth(completion, Path(problem).stem), []).append(reward)
        row = {c: {"n": len(v), "mean": statistics.fmean(v), "most": max(v)} for c, v in paid.items()}
        append(self.place, {"time": time.time(), "step": columns["trainer_state"].global_step, "paid": row})
        return rewards


def append(place: Path, row: dict[str, Any]) -> None:
    """Add a line, on one that is whole."""
    with place.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            torn = file.read(1) != b"\n"
            file.write(b"\n" if torn else b"")
        file.write(json.dumps(row).encode() + b"\n")


def last_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that is whole: the trainer writes `trainer_state.json` last."""
    found = sorted(folder.glob("checkpoint-*"), key=lambda p: int(p.name.rpartition("-")[2]), reverse=True)
    for place in found:
        try:
            json.loads((place / "trainer_state.json").read_text())
            return place
        except (OSError, ValueError):
            continue
    return None


def run(settings: Settings) -> None:
    """Train."""
    import torch
    from datasets import Dataset
    from transformers import PrinterCallback, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    folder = Path(settings.folder)
    torch.set_num_threads(1)
    reward = Paid(RewardConfig.load(settings.config), folder / "paid.jsonl")

    class Logger(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            append(folder / "log.jsonl", {"time": time.time(), "step": state.global_step, **(logs or {})})

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop |= (folder / "stop").exists()

    tokenizer = toy_policy.make_tokenizer()
    rows = [{"prompt": toy_policy.prompt(Path(p).stem), "problem": p} for p in settings.problems]
    trainer = GRPOTrainer(
        model=toy_policy.make_model(tokenizer, seed=0),
        reward_funcs=reward,
        args=GRPOConfig(
            output_dir=str(folder),
            seed=0,
            max_steps=settings.steps,
            per_device_train_batch_size=settings.group * len(rows),
            num_generations=settings.group,
            shuffle_dataset=False,
            max_completion_length=toy_policy.TOKENS_PER_KERNEL,
            learning_rate=settings.rate,
            lr_scheduler_type="constant",
            logging_steps=1,
            save_strategy="steps" if settings.save_steps else "no",
            save_steps=settings.save_steps or 500,
            save_total_limit=3,
            report_to="none",
            bf16=False,
            use_cpu=True,
            gradient_checkpointing=False,
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list(rows * 64),
        processing_class=tokenizer,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(Logger())
    CoverageCallback(settings.out, reward).attach(trainer)
    checkpoint = last_checkpoint(folder)
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        reward.finish_audits(120.0)
    finally:
        reward.close()


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=FutureWarning)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    values = json.loads(Path(sys.argv[1]).read_text())
    run(Settings(**values | {"problems": tuple(values["problems"])}))
