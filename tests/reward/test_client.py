"""The client: order, threads, a judge that dies, a parent that dies, daemon processes and forks."""

import multiprocessing
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable

import pytest
from kernelward.reward.client import JudgeClient, judge_environment
from kernelward.reward.task import JudgeConfig, Task
from kernelward.reward.verdict import Outcome, Verdict
from kernelward.suites.errors import InputError
from kernelward.suites.problem import problem_from_source

WRONG = "return torch.zeros_like(x)"

#: A reference, so trusted code, that takes the judge down with it.
KILLS_THE_JUDGE = """
import os
import signal
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x


def get_inputs():
    os.kill(os.getpid(), signal.SIGKILL)


def get_init_inputs():
    return []
"""


def test_importing_the_client_imports_no_torch() -> None:
    code = "import sys, kernelward.reward.client; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_verdicts_come_in_the_order_of_the_tasks(judge: JudgeClient, quick: Callable[..., Task]) -> None:
    tasks = [quick(), quick(WRONG), quick("return 1 / 0"), quick(), quick("return x[:1]")]
    arrived: dict[int, Verdict] = {}
    verdicts = judge.judge_many(tasks, lambda i, v: arrived.update({i: v}))
    assert [v.verdict.value for v in verdicts] == ["correct", "incorrect", "runtime_error", "correct", "incorrect"]
    assert arrived == dict(enumerate(verdicts))


def test_an_empty_batch_has_no_verdicts(judge: JudgeClient) -> None:
    assert judge.judge_many([]) == []


def test_two_threads_may_judge_at_once(judge: JudgeClient, quick: Callable[..., Task]) -> None:
    results: dict[str, list[Outcome]] = {}

    def work(body: str) -> None:
        results[body] = [v.verdict for v in judge.judge_many([quick(body)] * 4)]

    threads = [threading.Thread(target=work, args=(body,)) for body in ("return torch.relu(x)", WRONG)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {"return torch.relu(x)": [Outcome.CORRECT] * 4, WRONG: [Outcome.INCORRECT] * 4}


def test_a_hanging_candidate_delays_nobody_beyond_its_own_limit(judge: JudgeClient, quick: Callable[..., Task]) -> None:
    judge.judge(quick())
    arrived: dict[int, float] = {}
    started = time.monotonic()
    tasks = [quick("while True: pass"), *[quick() for _ in range(6)]]
    verdicts = judge.judge_many(tasks, lambda i, v: arrived.update({i: time.monotonic() - started}))
    assert [v.verdict for v in verdicts] == [Outcome.TIMEOUT, *[Outcome.CORRECT] * 6]
    assert max(t for i, t in arrived.items() if i) < arrived[0]
    assert arrived[0] < 25.0  # its limit is 10 s


def test_the_users_errors_are_raised_after_the_other_tasks_ended(
    judge: JudgeClient, quick: Callable[..., Task]
) -> None:
    tasks = [quick(protocol="no-such-protocol"), quick()]
    wrong, right = judge.judge_each(tasks)
    assert isinstance(wrong, InputError)
    assert isinstance(right, Verdict)
    assert right.verdict is Outcome.CORRECT
    with pytest.raises(InputError, match="no-such-protocol"):
        judge.judge_many(tasks)


def test_a_ten_megabyte_candidate_is_refused_by_name(judge: JudgeClient, quick: Callable[..., Task]) -> None:
    started = time.monotonic()
    verdict = judge.judge(quick("return x" + "\n# padding" * 1_000_000))
    assert (verdict.verdict, verdict.reason) == (Outcome.REJECTED, "too-large")
    assert time.monotonic() - started < 10.0


def test_lone_surrogates_are_not_utf8(judge: JudgeClient, quick: Callable[..., Task]) -> None:
    verdict = judge.judge(quick("return x  # \ud800"))
    assert (verdict.verdict, verdict.reason) == (Outcome.COMPILE_ERROR, "not-utf8")


def test_a_judge_that_dies_is_started_again_and_only_what_killed_it_stays_unjudged(
    quick: Callable[..., Task],
) -> None:
    poison = Task("class ModelNew: pass", problem_from_source(KILLS_THE_JUDGE, "killer"), "kernelbench")
    with JudgeClient(JudgeConfig(workers=2)) as client:
        verdicts = client.judge_many([quick(), poison, quick(WRONG)])
        assert client.judge(quick()).verdict is Outcome.CORRECT
    assert [v.verdict for v in verdicts] == [Outcome.CORRECT, Outcome.INFRA_ERROR, Outcome.INCORRECT]
    assert (verdicts[1].reason, verdicts[1].problem) == ("judge-lost", "killer")
    assert "SIGKILL" in verdicts[1].message


def test_closing_ends_the_judge(quick: Callable[..., Task]) -> None:
    client = JudgeClient(JudgeConfig(workers=1))
    client.describe()
    pid = client._current().process.pid
    client.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_judge_dies_with_its_parent() -> None:
    code = """
        import os, signal
        from kernelward.reward.client import JudgeClient
        client = JudgeClient()
        client.describe()
        print(client._current().process.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    pid = int(done.stdout)
    deadline = time.monotonic() + 60.0
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{pid}")


def _judge_one(client: JudgeClient, task: Task, answers: "multiprocessing.Queue[str]") -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    answers.put(client.judge(task).verdict.value)
    client.close()


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_pickled_or_forked_client_works_in_a_daemon_process(
    judge: JudgeClient, quick: Callable[..., Task], method: str
) -> None:
    judge.judge(quick())
    context = multiprocessing.get_context(method)
    answers = context.Queue()
    process = context.Process(target=_judge_one, args=(judge, quick(), answers), daemon=True)
    process.start()
    assert answers.get(timeout=120) == "correct"
    process.join(timeout=30)
    assert judge.judge(quick()).verdict is Outcome.CORRECT


def test_a_client_is_pickled_by_its_configuration() -> None:
    config = JudgeConfig(workers=3, limits=(("run_s", 5.0),))
    assert pickle.loads(pickle.dumps(JudgeClient(config))).config == config


def test_a_configuration_goes_over_the_wire() -> None:
    config = JudgeConfig(device="cuda:1", workers=3, limits=(("load_s", 9.0), ("run_s", 5.0)), precision="tf32")
    assert JudgeConfig.from_wire(config.to_wire()) == config


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"workers": 0}, "workers"),
        ({"device": "tpu"}, "device"),
        ({"ties": "last"}, "ties"),
        ({"frobnicate": 1}, "frobnicate"),
    ],
)
def test_a_wrong_setting_is_the_users_error(settings: dict[str, object], named: str) -> None:
    with pytest.raises(InputError, match=named):
        JudgeConfig.from_wire(settings)


@pytest.mark.parametrize(
    ("device", "inherited", "visible"),
    [
        ("cpu", "0,1", ""),
        ("cuda:0", None, "0"),
        ("cuda:1", None, "1"),
        ("cuda:1", "", "1"),  # TRL's asynchronous trainer: the reward sees no GPU, so N is the machine's numbering
        ("cuda:1", "2,3", "3"),
        ("cuda:0", "GPU-abc", "GPU-abc"),
    ],
)
def test_the_judges_gpu_is_the_configured_one(device: str, inherited: str | None, visible: str) -> None:
    environment = {} if inherited is None else {"CUDA_VISIBLE_DEVICES": inherited}
    assert judge_environment(device, environment)["CUDA_VISIBLE_DEVICES"] == visible


def test_a_gpu_that_is_not_visible_is_the_users_error() -> None:
    with pytest.raises(InputError, match="cuda:2"):
        judge_environment("cuda:2", {"CUDA_VISIBLE_DEVICES": "0,1"})
