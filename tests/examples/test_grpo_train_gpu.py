"""The training script with trainer and judge on the same GPU."""

import json
from pathlib import Path

import grpo_train
import pytest

pytest.importorskip("trl", reason="the extra `trl` is not installed")

CONTEXTS_GIB = 4.0  # CUDA contexts and libraries of the trainer, the judge and the candidates' processes


@pytest.mark.gpu
@pytest.mark.parametrize("protocol", ["kernelward", "kernelbench"])
def test_trainer_and_judge_share_a_gpu_within_the_budget(
    tmp_path: Path, protocol: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--device", "cuda", "--steps", "3", "--memory-gib", "1", "--protocol", protocol]
    assert grpo_train.main([*arguments, "--out", str(tmp_path)]) == 0
    run = json.loads((tmp_path / "grpo.json").read_text())["runs"][0]
    assert run["disagreements"] == []
    assert 0.0 < run["gpu_gib"] < 1.0 + CONTEXTS_GIB
    shown = capsys.readouterr().out
    assert "of it waiting for the reward" in shown
    assert "GiB of the GPU" in shown
    print(shown)
