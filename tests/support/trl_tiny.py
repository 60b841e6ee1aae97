"""What the TRL tests share: small problems, candidates of every kind, trainers for a tiny model on the CPU."""

from pathlib import Path
from typing import Any

import toy_policy

RELU = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)

def get_inputs():
    return [torch.rand(8, 64)]

def get_init_inputs():
    return []
"""


def kernel(problem: str, kind: str) -> str:
    """A completion of the toy policy that is `honest`, a `cheat`, `wrong` or `broken` for a problem."""
    head = next(p.text for p in toy_policy.PIECES if p.head)
    for piece in toy_policy.PIECES:
        if not piece.head and toy_policy.truth(piece.text + head, problem) == kind:
            return piece.text + head
    return head


def arguments(folder: Path, **changes: Any) -> dict[str, Any]:
    """Arguments of a GRPOConfig or RLOOConfig for a few steps on the CPU."""
    return {
        "output_dir": str(folder),
        "max_steps": 2,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": toy_policy.TOKENS_PER_KERNEL,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "bf16": False,
        "use_cpu": True,
        "gradient_checkpointing": False,
        "beta": 0.0,
        "disable_tqdm": True,
        "seed": 3,
    } | changes


def rows(count: int, chat: bool) -> Any:
    """A dataset with the column `reference` and one that is nobody's business."""
    from datasets import Dataset

    text = toy_policy.prompt("relu")
    prompt: Any = [{"role": "user", "content": text}] if chat else text
    return Dataset.from_list([{"prompt": prompt, "reference": RELU, "difficulty": i} for i in range(count)])
