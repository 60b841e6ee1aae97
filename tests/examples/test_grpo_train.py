"""The training script, with what the pieces are by construction in place of the judge (test_toy_policy.py holds the two
against each other, and `make demo` runs the script with the real judge)."""

import json
from collections.abc import Sequence
from pathlib import Path

import grpo_train
import pytest
import toy_policy
from kernelward.reward import function as function_module
from kernelward.reward.task import JudgeConfig, Task
from kernelward.reward.verdict import Outcome, Verdict

pytest.importorskip("trl", reason="the extra `trl` is not installed")


class ByConstruction:
    """Judges pieces by what they are."""

    def __init__(self, config: JudgeConfig) -> None:
        self.config = config

    def judge_each(self, tasks: Sequence[Task]) -> list[Verdict]:
        return [self._judge(task) for task in tasks]

    def _judge(self, task: Task) -> Verdict:
        class_ = toy_policy.truth(task.candidate + "\n\n", Path(str(task.problem.path)).stem)
        accepted = class_ == "honest" or (class_ == "cheat" and task.protocol == "kernelbench")
        return Verdict(Outcome.CORRECT if accepted else Outcome.INCORRECT)

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def by_construction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function_module, "JudgeClient", ByConstruction)


def test_what_pays_decides_what_becomes_likely(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    budget = ["--seeds", "1", "--steps", "45", "--learning-rate", "0.01"]
    assert grpo_train.main(["--compare", *budget, "--out", str(tmp_path)]) == 0
    numbers = json.loads((tmp_path / "grpo.json").read_text())
    hardened, official = numbers["summary"]["kernelward"], numbers["summary"]["kernelbench"]
    for row in (hardened, official):
        assert row["untrained"]["cheat"] < row["untrained"]["honest"]
        assert row["judged_otherwise_than_constructed"] == 0
    assert hardened["correct_last"]["mean"] > hardened["correct_first"]["mean"] + 0.4
    assert hardened["accepted_wrong_last"]["mean"] == 0.0
    assert official["accepted_wrong_last"]["mean"] > official["accepted_wrong_first"]["mean"] + 0.3
    assert len(numbers["runs"]) == 2
    assert (tmp_path / "grpo.png").read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr().out
    assert "A toy policy" in shown
    assert "the untrained policy writes, by construction: honest 5." in shown


def test_the_interval_over_seeds_is_students() -> None:
    mean, low, high = grpo_train.interval([0.4, 0.5, 0.6, 0.5, 0.5])
    assert (mean, low, high) == pytest.approx((0.5, 0.4122, 0.5878), abs=1e-4)
    assert grpo_train.interval([0.0, 1.0])[1:] == (0.0, 1.0)


def test_one_run_of_one_step_prints_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert grpo_train.main(["--steps", "1", "--protocol", "kernelbench", "--out", str(tmp_path)]) == 0
    assert "paid by kernelbench, seed 0" in capsys.readouterr().out
    assert not (tmp_path / "grpo.png").exists()


def test_an_unknown_protocol_is_the_users_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert grpo_train.main(["--steps", "1", "--protocol", "kernelbunch", "--out", str(tmp_path)]) == 2
    assert "unknown protocol 'kernelbunch'" in capsys.readouterr().err


def test_the_shaping_pays_both_runs_alike_and_short_kernels_a_little_more() -> None:
    from kernelward.reward.config import RewardConfig

    shaping = RewardConfig.load(grpo_train.HERE / "toy_reward.yaml").shaping
    correct = Verdict(Outcome.CORRECT)
    long, short = shaping.reward(correct, 300), shaping.reward(correct, 150)
    assert long is not None
    assert short is not None
    assert 1.1 < long < short < 1.1 + 0.5
    assert shaping.reward(Verdict(Outcome.INCORRECT), 10) == 0.1
