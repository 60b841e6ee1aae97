"""The reward function, with a scripted judge (tests/reward/test_trl_*.py drive the real one)."""

import json
import logging
import math
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kernelward.reward import function as function_module
from kernelward.reward.audit import ShadowConfig
from kernelward.reward.bank import BankConfig
from kernelward.reward.config import RewardConfig
from kernelward.reward.function import KernelReward
from kernelward.reward.promoted import install
from kernelward.reward.task import JudgeConfig, Task
from kernelward.reward.verdict import Outcome, Verdict
from kernelward.suites.entry import Entry
from kernelward.suites.errors import InputError
from kernelward.suites.hashing import sha256_text
from kernelward.suites.suite import Suite, SuiteEntry

SOURCE = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x.relu()

def get_inputs():
    return [torch.randn(4)]

def get_init_inputs():
    return []
"""

Answer = Callable[[Task], Verdict | InputError]


def candidate(word: str) -> str:
    return f"```python\nclass ModelNew: '{word}'\n```"


class ScriptedJudge:
    """Answers by the word in a candidate and writes down what it was asked."""

    asked: list[Task]
    batches: list[int]
    answer: Answer

    def __init__(self, config: JudgeConfig) -> None:
        self.config = config

    def judge_each(self, tasks: Sequence[Task]) -> list[Verdict | InputError]:
        type(self).batches.append(len(tasks))
        type(self).asked.extend(tasks)
        return [type(self).answer(task) for task in tasks]

    def close(self) -> None:
        pass


def by_word(task: Task) -> Verdict | InputError:
    for outcome in Outcome:
        if f"'{outcome.value}'" in task.candidate:
            return Verdict(outcome, problem=task.problem.id, epoch=task.epoch)
    return Verdict(Outcome.INCORRECT)


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> type[ScriptedJudge]:
    class Fresh(ScriptedJudge):
        asked: list[Task] = []  # noqa: RUF012
        batches: list[int] = []  # noqa: RUF012
        answer = staticmethod(by_word)

    monkeypatch.setattr(function_module, "JudgeClient", Fresh)
    return Fresh


def make(**changes: Any) -> KernelReward:
    unwatched = replace(RewardConfig(), device="cpu", run_key="test", bank=None, audit=0.0)
    return KernelReward(replace(unwatched, **changes))


def call(reward: KernelReward, *words: str, step: int = 0, **more: Any) -> list[float | None]:
    completions = [candidate(w) for w in words]
    columns = {"reference": [SOURCE] * len(words)} | more
    return reward(completions=completions, prompts=["p"] * len(words), trainer_state=state(step), **columns)


def state(step: int) -> SimpleNamespace:
    return SimpleNamespace(global_step=step)


def test_each_completion_gets_its_reward_in_order(judge: type[ScriptedJudge]) -> None:
    rewards = call(make(), "correct", "incorrect", "compile_error", "infra_error", "unrefereeable", log_metric=print)
    assert rewards == [1.1, 0.1, 0.0, None, None]


def test_no_completions_are_no_rewards(judge: type[ScriptedJudge]) -> None:
    assert call(make(), log_metric=print) == []


def test_trls_keywords_are_accepted_and_further_columns_ignored(judge: type[ScriptedJudge]) -> None:
    logged: dict[str, float] = {}
    extra: dict[str, list[Any]] = {}
    rewards = make()(
        prompts=["p"],
        completions=[[{"role": "assistant", "content": candidate("correct")}]],
        completion_ids=[[1, 2]],
        reference=[SOURCE],
        difficulty=[3],
        trainer_state=state(0),
        log_metric=logged.__setitem__,
        log_extra=extra.__setitem__,
        environments=[None],
    )
    assert rewards == [1.1]
    assert logged["kernelward/share_correct"] == 1.0
    assert extra == {"kernelward/verdict": ["correct"], "kernelward/reason": [""], "kernelward/suite": [""]}


def test_the_logged_name_is_the_configurations(judge: type[ScriptedJudge]) -> None:
    logged: dict[str, float] = {}
    reward = make(name="fast")
    assert reward.__name__ == "fast"
    call(reward, "correct", log_metric=logged.__setitem__)
    assert all(name.startswith("fast/") for name in logged)


def test_identical_candidates_of_a_batch_are_judged_once(judge: type[ScriptedJudge]) -> None:
    reward = make()
    crlf = candidate("correct").replace("\n", "\r\n")
    quoted = "<think>hm</think>Here:\n" + candidate("correct") + "Done."
    rewards = reward(completions=[candidate("correct"), crlf, quoted], reference=[SOURCE] * 3, log_metric=print)
    assert rewards == [1.1] * 3
    assert len(judge.asked) == 1


def test_the_same_candidate_for_two_problems_is_judged_twice(judge: type[ScriptedJudge]) -> None:
    make()(completions=[candidate("correct")] * 2, reference=[SOURCE, SOURCE.replace("relu", "exp")], log_metric=print)
    assert len({t.problem.hash for t in judge.asked}) == 2


def test_a_known_verdict_is_not_judged_again_until_the_inputs_rotate(judge: type[ScriptedJudge]) -> None:
    reward = make(rotate_every=10)
    for step in (0, 5, 9):
        call(reward, "correct", step=step, log_metric=print)
    assert [t.epoch for t in judge.asked] == [0]
    call(reward, "correct", step=10, log_metric=print)
    assert [t.epoch for t in judge.asked] == [0, 1]


def test_a_protocol_with_fixed_inputs_never_rotates(judge: type[ScriptedJudge]) -> None:
    reward = make(protocol="kernelbench", rotate_every=1)
    for step in range(3):
        call(reward, "correct", step=step, log_metric=print)
    assert [t.epoch for t in judge.asked] == [0]


def test_without_a_trainer_state_calls_stand_in_for_steps(judge: type[ScriptedJudge]) -> None:
    reward = make(rotate_every=2)
    for _ in range(5):
        reward(completions=[candidate("correct")], reference=[SOURCE])
    assert [t.epoch for t in judge.asked] == [0, 1, 2]


def test_a_missing_verdict_is_asked_for_again(judge: type[ScriptedJudge]) -> None:
    reward = make()
    assert call(reward, "infra_error", log_metric=print) == [None]
    judge.answer = staticmethod(lambda task: Verdict(Outcome.CORRECT))
    assert call(reward, "infra_error", log_metric=print) == [1.1]


def test_the_first_missing_verdict_is_explained_once(
    judge: type[ScriptedJudge], caplog: pytest.LogCaptureFixture
) -> None:
    reward = make()
    with caplog.at_level(logging.WARNING):
        call(reward, "correct", log_metric=print)
        assert not caplog.records
        call(reward, "infra_error", "correct", log_metric=print)
        call(reward, "unrefereeable", log_metric=print)
    assert len(caplog.records) == 1
    assert "1 of 2 completions" in caplog.text
    assert "with several it adds None as 0" in caplog.text


@pytest.mark.parametrize(
    ("completion", "paid"),
    [
        ("", -0.1),
        ("I would rather not.", -0.1),
        (None, -0.1),
        ([], -0.1),
        ([{"role": "assistant", "content": None}], -0.1),
        (float("nan"), -0.1),
        ("x" * 10_000_000, -0.2),
    ],
)
def test_a_completion_without_a_candidate_never_reaches_the_judge(
    judge: type[ScriptedJudge], completion: Any, paid: float
) -> None:
    reward = KernelReward(replace(RewardConfig.load("default"), device="cpu"))
    assert reward(completions=[completion], reference=[SOURCE], log_metric=print) == [paid]
    assert not judge.asked


def test_text_that_is_not_utf8_is_judged_like_any_other(judge: type[ScriptedJudge]) -> None:
    completion = "```python\nclass ModelNew: 'correct'  # \ud800\n```"
    assert make()(completions=[completion], reference=[SOURCE], log_metric=print) == [1.1]
    judge.asked[0].candidate.encode("utf-8")


def test_a_fault_of_the_client_costs_nobody_a_reward(
    judge: type[ScriptedJudge], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(task: Task) -> Verdict:
        raise RuntimeError("a bug")

    judge.answer = staticmethod(fail)
    assert call(make(), "correct", "incorrect", log_metric=print) == [None, None]
    assert "a bug" in caplog.text


def test_a_judge_that_its_machine_cannot_run_is_an_error_first_and_no_reward_later(judge: type[ScriptedJudge]) -> None:
    def no_gpu(task: Task) -> Verdict:
        raise InputError("no GPU here")

    judge.answer = staticmethod(no_gpu)
    with pytest.raises(InputError, match="no GPU here"):
        call(make(), "correct", log_metric=print)
    judge.answer = staticmethod(by_word)
    reward = make()
    assert call(reward, "correct", log_metric=print) == [1.1]
    judge.answer = staticmethod(no_gpu)
    assert call(reward, "correct", "incorrect", log_metric=print) == [1.1, None]


# --- the user's errors -----------------------------------------------------------------


def test_a_dataset_without_the_columns_is_named_at_the_first_call(judge: type[ScriptedJudge]) -> None:
    with pytest.raises(InputError) as error:
        make()(completions=["x"], prompts=["p"], completion_ids=[[1]], problem_id=["level1/1"], level=[1])
    assert "neither a column `problem`" in str(error.value)
    assert "Its other columns: level, problem_id." in str(error.value)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"problem": ["no/such/problem"]}, "no/such/problem"),
        ({"problem": [None]}, "names no problem"),
        ({"problem": [""], "reference": [None]}, "names no problem"),
        ({"problem": [3]}, "names no problem"),
        ({"reference": ["x = 1"]}, "Model"),
        ({"reference": ["def ("]}, "syntax error"),
        ({"problem": "relu"}, "must be a list"),
        ({"problem": ["relu", "relu"]}, "one entry per completion (1)"),
    ],
)
def test_a_wrong_column_is_an_error_at_the_first_call(
    judge: type[ScriptedJudge], columns: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError) as error:
        make()(completions=[candidate("correct")], log_metric=print, **columns)
    assert said in str(error.value)


def test_a_wrong_row_later_on_gives_no_reward_instead_of_ending_the_training(
    judge: type[ScriptedJudge], caplog: pytest.LogCaptureFixture
) -> None:
    reward = make()
    assert call(reward, "correct", log_metric=print) == [1.1]
    for _ in range(2):
        rewards = call(reward, "correct", "correct", reference=[SOURCE, "x = 1"], log_metric=print)
        assert rewards == [1.1, None]
    assert caplog.text.count("its completions get no reward") == 1


def test_a_problem_that_the_judge_cannot_use_is_an_error_first_and_no_reward_later(judge: type[ScriptedJudge]) -> None:
    def broken(task: Task) -> Verdict | InputError:
        return InputError("get_inputs raises") if "broken" in task.problem.source else Verdict(Outcome.CORRECT)

    judge.answer = staticmethod(broken)
    rows = [SOURCE, SOURCE + "# broken\n"]
    with pytest.raises(InputError, match="get_inputs raises"):
        call(make(), "correct", "correct", reference=rows, log_metric=print)
    reward = make()
    call(reward, "correct", log_metric=print)
    assert call(reward, "correct", "correct", reference=rows, log_metric=print) == [1.1, None]


def test_problems_are_found_by_id_and_by_path(judge: type[ScriptedJudge], tmp_path: Path) -> None:
    (tmp_path / "level1").mkdir()
    path = tmp_path / "level1" / "19_ReLU.py"
    path.write_text(SOURCE)
    reward = make(problems=str(tmp_path))
    rewards = reward(
        completions=[candidate("correct")] * 3,
        problem=["level1/19_ReLU", str(path), None],
        reference=[None, "", SOURCE],
        log_metric=print,
    )
    assert rewards == [1.1] * 3
    assert len(judge.asked) == 1  # the same text however it was named


def write_suite(path: Path, source: str = SOURCE) -> Suite:
    suite = Suite("mine", sha256_text(source), (SuiteEntry(Entry("own")),))
    path.write_text(suite.to_yaml())
    return suite


def test_a_problem_with_a_suite_of_its_own_is_judged_by_it(judge: type[ScriptedJudge], tmp_path: Path) -> None:
    suite = write_suite(tmp_path / "mine.yaml")
    rows = [SOURCE, SOURCE.replace("relu", "exp")]
    call(make(suites=str(tmp_path)), "correct", "correct", reference=rows, log_metric=print)
    assert [t.suite for t in judge.asked] == [suite, None]


def test_a_changed_suite_is_asked_again(judge: type[ScriptedJudge], tmp_path: Path) -> None:
    write_suite(tmp_path / "mine.yaml")
    changes = {"suites": str(tmp_path), "store": str(tmp_path / "run.sqlite"), "measure": ("kernelbench",)}
    call(make(**changes), "correct", log_metric=print)
    changed = Suite("mine", sha256_text(SOURCE), (SuiteEntry(Entry("own", draw=1)),))
    (tmp_path / "mine.yaml").write_text(changed.to_yaml())
    call(make(**changes), "correct", log_metric=print)
    assert [t.protocol for t in judge.asked] == ["kernelward", "kernelbench", "kernelward"]


def test_faults_in_the_suites_folder_are_errors_at_the_first_call(judge: type[ScriptedJudge], tmp_path: Path) -> None:
    write_suite(tmp_path / "a.yaml")
    write_suite(tmp_path / "b.yaml")
    with pytest.raises(InputError, match="a second suite for problem mine"):
        call(make(suites=str(tmp_path)), "correct", log_metric=print)
    (tmp_path / "b.yaml").write_text("format: [")
    with pytest.raises(InputError, match=r"b.yaml:1: not valid YAML"):
        call(make(suites=str(tmp_path)), "correct", log_metric=print)


def test_a_promoted_suite_is_used_when_the_inputs_change_and_not_before(
    judge: type[ScriptedJudge], tmp_path: Path
) -> None:
    old = write_suite(tmp_path / "mine.yaml")
    reward = make(suites=str(tmp_path), rotate_every=10)
    call(reward, "correct", step=3, log_metric=print)
    new = Suite(old.problem_id, old.problem_hash, (SuiteEntry(Entry("own", draw=1)),))
    install(tmp_path, new)
    call(reward, "incorrect", step=9, log_metric=print)
    call(reward, "correct", step=10, log_metric=print)
    (tmp_path / "mine.yaml").write_text("format: [")
    call(reward, "correct", step=20, log_metric=print)
    assert [t.suite for t in judge.asked] == [old, old, new, new]


def test_all_ranks_judge_an_epoch_by_the_same_suite(
    judge: type[ScriptedJudge], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: dict[str, str] = {}
    monkeypatch.setattr(function_module, "agreed", said.setdefault)  # what the first rank says
    old = write_suite(tmp_path / "mine.yaml")
    first = make(suites=str(tmp_path))
    call(first, "correct", log_metric=print)
    new = Suite(old.problem_id, old.problem_hash, (SuiteEntry(Entry("own", draw=1)),))
    install(tmp_path, new)
    second = make(suites=str(tmp_path))  # reads the folder later
    second._number = first._number  # on another rank it is the same reward
    call(second, "correct", log_metric=print)
    assert [t.suite for t in judge.asked] == [old, old]
    said[f"suites/{first._number}/1"] = json.dumps({old.problem_hash: "f" * 64})  # one that is nowhere
    call(second, "correct", step=20, log_metric=print)
    assert judge.asked[-1].suite == new


# --- what watches ------------------------------------------------------------------------


def test_accepted_kernels_are_banked_unless_one_opts_out(judge: type[ScriptedJudge], tmp_path: Path) -> None:
    bank = BankConfig(str(tmp_path / "bank.sqlite"))
    call(make(bank=None), "correct", log_metric=print)
    assert not list(tmp_path.iterdir())
    reward = make(bank=bank)
    for step in (0, 1, 20):
        call(reward, "correct", "incorrect", step=step, log_metric=print)
    assert reward.finish_audits(20)
    (kernel,) = bank.open().kernels()
    assert kernel.source == "class ModelNew: 'correct'"
    assert (kernel.problem_source, kernel.epoch, kernel.state) == (SOURCE, 0, "new")
    call(make(bank=BankConfig(str(tmp_path / "other.sqlite")), protocol="kernelbench"), "correct", log_metric=print)
    assert not (tmp_path / "other.sqlite").exists()  # what an official protocol accepts says nothing


def test_metrics_of_what_watches_have_the_same_keys_from_the_first_call(judge: type[ScriptedJudge]) -> None:
    reward = make(audit=0.5, shadow=ShadowConfig("kernelbench"))
    seen: list[dict[str, float]] = []
    for words in ([], ["correct"], ["incorrect"]):
        logged: dict[str, float] = {}
        call(reward, *words, log_metric=logged.__setitem__)
        seen.append(logged)
    assert all(sorted(logged) == sorted(seen[0]) for logged in seen)
    assert math.isnan(seen[0]["kernelward/audit/false_accept_rate"])
    assert reward.audits.false_accept_rate is None
    assert "kernelward/shadow/kernelbench/disagreement_high" in seen[0]


# --- several protocols -----------------------------------------------------------------


def test_measured_protocols_judge_but_never_pay(judge: type[ScriptedJudge]) -> None:
    def disagree(task: Task) -> Verdict:
        return Verdict(Outcome.CORRECT if task.protocol == "kernelbench" else Outcome.INCORRECT, "value")

    judge.answer = staticmethod(disagree)
    logged: dict[str, float] = {}
    reward = make(protocol="kernelbench", measure=("kernelward",))
    assert call(reward, "cheat", log_metric=logged.__setitem__) == [1.1]
    assert logged["kernelward/kernelward/rejects_accepted"] == 1.0
    assert judge.batches == [2]  # in one request, so that they are judged at the same time


def test_verdicts_can_be_looked_at(judge: type[ScriptedJudge], tmp_path: Path) -> None:
    path = tmp_path / "relu.py"
    path.write_text(SOURCE)
    judgement = make().judge([candidate("correct"), "none"], [str(path)] * 2)
    assert [v.verdict for v in judgement.verdicts["kernelward"]] == [Outcome.CORRECT, Outcome.COMPILE_ERROR]
    assert judgement.codes == ["class ModelNew: 'correct'", ""]


# --- metrics -----------------------------------------------------------------


def test_every_call_logs_the_same_keys(judge: type[ScriptedJudge]) -> None:
    reward = make(measure=("kernelbench",))
    seen = []
    for words in (["correct"], ["infra_error"], ["compile_error", "timeout"], []):
        logged: dict[str, float] = {}
        call(reward, *words, log_metric=logged.__setitem__)
        seen.append(sorted(logged))
    assert all(keys == seen[0] for keys in seen)


def test_without_a_logger_metrics_go_to_the_store_that_ends_with_the_reward(
    judge: type[ScriptedJudge], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    reward = make()
    call(reward, "correct")
    path = reward.store.path
    assert path.is_relative_to(tmp_path)
    assert reward.store.metrics_after(0)[1][0]["kernelward/share_correct"] == 1.0
    del reward
    assert list(path.parent.iterdir()) == []


def test_a_named_store_stays_and_serves_the_next_process(judge: type[ScriptedJudge], tmp_path: Path) -> None:
    path = str(tmp_path / "run.sqlite")
    call(make(store=path), "correct", log_metric=print)
    logged: dict[str, float] = {}
    call(make(store=path), "correct", log_metric=logged.__setitem__)
    assert len(judge.asked) == 1
    assert logged["kernelward/share_cached"] == 1.0


# --- processes and threads -----------------------------------------------------------------


def test_a_pickled_reward_keeps_its_secret_and_its_device(
    judge: type[ScriptedJudge], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KERNELWARD_RUN_KEY", raising=False)
    reward = KernelReward(replace(RewardConfig(), device="cpu"))
    copy = pickle.loads(pickle.dumps(reward))
    assert copy.run_key == reward.run_key
    assert (copy.__name__, copy.device, copy.store.path) == ("kernelward", "cpu", reward.store.path)
    assert KernelReward(replace(RewardConfig(), device="cpu")).run_key != reward.run_key
    call(reward, "correct", log_metric=print)
    call(pickle.loads(pickle.dumps(reward)), "correct", log_metric=print)
    assert len({t.run_key for t in judge.asked}) == 1


def test_the_run_key_comes_from_the_environment_or_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELWARD_RUN_KEY", "from outside")
    assert KernelReward(RewardConfig()).run_key == b"from outside"
    assert KernelReward(RewardConfig(run_key="configured")).run_key == b"configured"


def test_several_ranks_without_a_common_key_are_warned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("KERNELWARD_RUN_KEY", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert KernelReward(RewardConfig()).run_key
    assert "KERNELWARD_RUN_KEY" in caplog.text


def test_concurrent_calls_get_their_own_rewards(judge: type[ScriptedJudge]) -> None:
    reward = make()
    words = ["correct", "incorrect", "timeout", "compile_error", "infra_error"]
    paid = {"correct": 1.1, "incorrect": 0.1, "timeout": 0.0, "compile_error": 0.0, "infra_error": None}
    wrong = []

    def work(shift: int) -> None:
        for i in range(20):
            mine = [words[(shift + i + k) % len(words)] for k in range(4)]
            if call(reward, *mine, log_metric=lambda *_: None) != [paid[w] for w in mine]:
                wrong.append(mine)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform cannot fork")
def test_a_forked_process_makes_its_own_connections(judge: type[ScriptedJudge]) -> None:
    reward = make()
    call(reward, "correct", log_metric=print)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        before = len(judge.batches)
        rewards = call(reward, "correct", log_metric=lambda *_: None)
        os.write(write, repr((rewards, len(judge.batches) - before)).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        assert stream.read() == "([1.1], 1)"
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(
    ("device", "trainer", "here", "named"),
    [
        ("cuda:1", "4,6", "", "cuda:6"),
        ("cuda:1", "4,6", "4,6", "cuda:1"),
        ("cuda:1", None, "", "cuda:1"),
        ("cpu", "4,6", "", "cpu"),
        ("cuda:0", "", "", "cuda:0"),
    ],
)
def test_a_process_that_sees_no_gpu_names_the_trainers_by_number(
    monkeypatch: pytest.MonkeyPatch, device: str, trainer: str | None, here: str, named: str
) -> None:
    from kernelward.reward.ranks import device_here

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", here)
    assert device_here(device, trainer) == named


def test_gpus_that_are_listed_by_name_cannot_be_found_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelward.reward.ranks import device_here

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(InputError, match="by number"):
        device_here("cuda:0", "GPU-8f1c")


def test_importing_the_reward_does_not_import_torch() -> None:
    code = "import sys; from kernelward.reward import KernelReward, reward_fn; print('torch' in sys.modules, reward_fn)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown == "False KernelReward(name='kernelward', protocol='kernelward')\n"


def test_the_packaged_function_is_one_object() -> None:
    from kernelward import reward

    assert reward.reward_fn is reward.reward_fn
    assert isinstance(reward.reward_fn, KernelReward)
    with pytest.raises(AttributeError):
        _ = reward.rewrd_fn  # type: ignore[attr-defined]
