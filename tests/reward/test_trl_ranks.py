"""GRPO on two ranks (gloo), each group split between them, with the real judge."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="the extra `trl` is not installed")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    paths = [str(ROOT / "examples"), str(ROOT / "tests" / "support"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in paths if p), "OMP_NUM_THREADS": "1"}
    environment.pop("KERNELWARD_RUN_KEY", None)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, str(ROOT / "tests" / "support" / "trl_rank.py"), str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]


def test_ranks_share_the_secret_and_therefore_the_inputs(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["key"] == ranks[1]["key"]
    assert len(bytes.fromhex(ranks[0]["key"])) >= 32
    assert ranks[0]["cheat"] == ranks[1]["cheat"]
    assert ranks[0]["cheat"]["verdict"] == "incorrect"
    assert ranks[0]["cheat"]["seed"] is not None


def test_the_same_completion_is_paid_the_same_on_both_ranks(ranks: list[dict[str, Any]]) -> None:
    paid: dict[str, set[float | None]] = {}
    for rank in ranks:
        for call in rank["calls"]:
            for completion, reward in zip(call["completions"], call["rewards"], strict=True):
                paid.setdefault(completion, set()).add(reward)
    assert all(len(rewards) == 1 for rewards in paid.values())
    assert None not in {next(iter(rewards)) for rewards in paid.values()}


def test_both_ranks_log_the_same_keys_at_every_step(ranks: list[dict[str, Any]]) -> None:
    keys = [call["keys"] for rank in ranks for call in rank["calls"]]
    assert len(keys) == 4
    assert all(k == keys[0] for k in keys)


def test_the_trainer_logs_the_mean_over_the_ranks(ranks: list[dict[str, Any]]) -> None:
    for step, row in enumerate(ranks[0]["log"]):
        rewards = [r for rank in ranks for r in rank["calls"][step]["rewards"]]
        assert row["rewards/kernelward/mean"] == pytest.approx(sum(rewards) / len(rewards), abs=1e-5)
