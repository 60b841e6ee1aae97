"""The real checker in a child: what it answers, how it fails, and that nothing outlives it.

Without a GPU a stand-in checkout plays KernelBench's part: same layout, same imports, same quirks, and the candidate
says what happens. KERNELBENCH_CHECKOUT names a real checkout, whose import is then tested as well.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from kernelward.reward.checker import Checker
from kernelward.reward.client import JudgeClient
from kernelward.reward.kernelbench import PROTOCOL, Answer, OfficialChecker, find_checkout, read_answer, second_opinion
from kernelward.reward.kernelbench_child import SUPPORTING
from kernelward.reward.kernelbench_parity import compare, run_parity
from kernelward.reward.sandbox import isolation
from kernelward.reward.sandbox.limits import Limits
from kernelward.reward.score_rows import Row
from kernelward.reward.score_store import ScoreStore
from kernelward.reward.task import JudgeConfig, Task
from kernelward.reward.verdict import Outcome, Verdict
from kernelward.suites.errors import InputError
from kernelward.suites.problem import problem_from_source

PROBLEM = problem_from_source(
    "class Model: pass\ndef get_inputs(): return []\ndef get_init_inputs(): return []\n", "level1/1_Nothing"
)
EVAL = """
import requests
from pydantic import BaseModel
import torch
from . import utils

class KernelExecResult(BaseModel):
    compiled: bool = False
    correctness: bool = False
    metadata: dict = {}
    runtime: float = -1.0

def eval_kernel_against_ref(original_model_src, custom_model_src, seed_num=42, num_correct_trials=1,
                            measure_performance=False, build_dir=None, device=None, backend="cuda",
                            precision=torch.float32):
    print("chatter on stdout")
    assert (seed_num, num_correct_trials, str(device), precision) == (42, 5, "cuda:0", torch.float32)
    context = {"Result": KernelExecResult, "backend": backend}
    exec(custom_model_src, context)
    return context["answer"]()
"""
UTILS = """
from dotenv import load_dotenv
load_dotenv()
from tqdm import tqdm
from openai import OpenAI
from litellm import completion
import datasets, modal
client = OpenAI(api_key="x").chat
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("KernelBench checkout")
    package = root / "src" / "kernelbench"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from . import utils\n")
    (package / "utils.py").write_text(UTILS)
    (package / "eval.py").write_text(EVAL)
    return root


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def judge(checkout: Path, body: str, time_limit: float = 60.0, **options: Any) -> Verdict:
    code = "import os, subprocess, sys, time\ndef answer():\n" + "".join(f"    {line}\n" for line in body.splitlines())
    return OfficialChecker(checkout, "cpu", time_limit=time_limit, **options).judge(PROBLEM, code)


def test_the_import_serves_stand_ins_for_the_unrelated_modules_only(checkout: Path) -> None:
    probe = OfficialChecker(checkout, "cpu").probe()
    unrelated = {"dotenv", "openai", "litellm", "datasets", "modal"}
    absent = {name for name in SUPPORTING if importlib.util.find_spec(name) is None}  # stood in for where missing
    assert unrelated <= set(probe["stand_ins"]) <= unrelated | absent
    assert "custom_model_src" in probe["parameters"]


@pytest.mark.skipif(
    "KERNELBENCH_CHECKOUT" not in os.environ, reason="KERNELBENCH_CHECKOUT names no KernelBench checkout"
)
def test_a_real_checkout_imports_without_its_providers() -> None:
    probe = OfficialChecker(Path(os.environ["KERNELBENCH_CHECKOUT"]), "cpu").probe()
    assert {"original_model_src", "custom_model_src", "num_correct_trials"} <= set(probe["parameters"])


@pytest.mark.parametrize(
    ("body", "outcome", "reason"),
    [
        ("return Result(compiled=True, correctness=True, metadata={'correctness_trials': '(5 / 5)'})", "correct", ""),
        ("return Result(metadata={'compilation_error': Exception('ninja')})", "compile_error", ""),
        ("return None", "infra_error", "no-result"),
        ("raise TypeError('ModelNew.__init__ takes 1 argument')", "runtime_error", "escaped"),
        ("os.kill(os.getpid(), 11)", "runtime_error", "crashed"),
        ("os._exit(0)", "runtime_error", "crashed"),
    ],
)
def test_each_ending_of_the_checker_has_its_verdict(checkout: Path, body: str, outcome: str, reason: str) -> None:
    verdict = judge(checkout, body)
    assert (verdict.verdict, verdict.reason) == (outcome, reason), verdict.message
    assert (verdict.protocol, verdict.problem) == (PROTOCOL, PROBLEM.id)
    json.dumps(verdict.to_json())


@pytest.mark.parametrize(
    ("reply", "outcome", "reason"),
    [
        (
            {"compiled": True, "metadata": {"correctness_issue": "Output mismatch", "max_difference": "1"}},
            "incorrect",
            "value",
        ),
        ({"compiled": True, "metadata": {"runtime_error": "bad"}}, "runtime_error", ""),
        (
            {"compiled": True, "metadata": {"runtime_error": "CUDA out of memory. Tried"}},
            "infra_error",
            "out-of-memory",
        ),
        ({"compiled": False, "metadata": {"compilation_error": "out of memory"}}, "infra_error", "out-of-memory"),
        ({"status": "raised", "stage": "import", "error": "ModuleNotFoundError"}, "infra_error", "checker-unusable"),
        (
            {"status": "raised", "stage": "evaluation", "error": "AssertionError: CUDA is not available"},
            "infra_error",
            "checker-unusable",
        ),
        (
            {"status": "raised", "stage": "evaluation", "error": "torch.OutOfMemoryError: CUDA out of memory"},
            "infra_error",
            "out-of-memory",
        ),
    ],
)
def test_a_reply_that_says_nothing_about_the_candidate_is_no_verdict(reply: dict, outcome: str, reason: str) -> None:
    answer = Answer({"status": "result", "correctness": False} | reply, {"status": 0}, timed_out=False)
    assert read_answer(answer, 1.0)[:2] == (outcome, reason)


def test_a_hang_ends_at_the_limit_with_all_it_started(checkout: Path, tmp_path: Path) -> None:
    marker = tmp_path / "pids"
    body = f"""
mine = os.getpid()
for detached in (False, True):
    p = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=detached)
    open({str(marker)!r}, "a").write(f"{{p.pid}} ")
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open({str(marker)!r}, "a").write(f"{{os.getpid()}} ")
        time.sleep(600)
    os._exit(0)
time.sleep(600)
"""
    start = time.monotonic()
    verdict = judge(checkout, body, time_limit=14.0, confine=False)
    assert (verdict.verdict, verdict.reason) == (Outcome.TIMEOUT, "wall-clock")
    assert time.monotonic() - start < 28
    pids = [int(pid) for pid in marker.read_text().split()]
    assert len(pids) == 3
    assert [pid for pid in pids if alive(pid)] == []


def test_a_process_left_behind_by_a_finished_candidate_is_ended(checkout: Path, tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    body = f"""
p = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
open({str(marker)!r}, "w").write(str(p.pid))
return Result(compiled=True, correctness=True)
"""
    assert judge(checkout, body, confine=False).verdict is Outcome.CORRECT
    assert not alive(int(marker.read_text()))


def test_a_candidate_writes_to_its_own_folder_only_and_has_no_network(checkout: Path, tmp_path: Path) -> None:
    body = f"""
import socket, tempfile
open(os.path.join(tempfile.gettempdir(), "own"), "w").write("x")
try:
    open({str(tmp_path / "outside")!r}, "w")
except OSError:
    pass
else:
    return Result(compiled=True)
try:
    socket.create_connection(("127.0.0.1", 1), timeout=5)
except OSError as error:
    return Result(compiled=True, correctness=error.errno != 111)
"""
    report = isolation.probe()
    if "landlock" not in report or "network-namespace" not in report:
        pytest.skip(f"this machine does not offer the layers: {report.missing}")
    assert judge(checkout, body).verdict is Outcome.CORRECT
    assert not (tmp_path / "outside").exists()


def test_memory_without_end_is_stopped(checkout: Path) -> None:
    verdict = judge(
        checkout,
        "x = bytearray(2 << 30)\nx[::4096] = b'1' * len(x[::4096])\ntime.sleep(60)",
        limits=Limits(memory_bytes=1 << 30, processes=512),
        confine=False,
    )
    assert (verdict.verdict, verdict.reason) == (Outcome.RUNTIME_ERROR, "memory-limit")


def test_the_child_ends_when_the_judge_is_killed(checkout: Path, tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    code = (
        f"import os, time\ndef answer():\n    open({str(marker)!r}, 'w').write(str(os.getpid()))\n    time.sleep(600)\n"
    )
    script = (
        "import sys; from pathlib import Path\n"
        "from kernelward.reward.kernelbench import OfficialChecker\n"
        "from kernelward.suites.problem import problem_from_source\n"
        f"p = problem_from_source({PROBLEM.source!r})\n"
        f"OfficialChecker(Path({str(checkout)!r}), 'cpu', confine=False).judge(p, {code!r})\n"
    )
    judge_process = subprocess.Popen([sys.executable, "-c", script])
    deadline = time.monotonic() + 200
    while not (marker.exists() and marker.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    judge_process.kill()
    judge_process.wait()
    pid = int(marker.read_text())
    while alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.1)


RELU = problem_from_source(
    """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)

def get_inputs():
    return [torch.randn(16, 128)]

def get_init_inputs():
    return []
""",
    "relu",
)
HONEST = "import torch\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x.clamp(min=0)\n"


@pytest.mark.gpu
@pytest.mark.skipif(
    "KERNELBENCH_CHECKOUT" not in os.environ, reason="KERNELBENCH_CHECKOUT names no KernelBench checkout"
)
@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (HONEST, Outcome.CORRECT),
        (HONEST.replace("x.clamp(min=0)", "x + 1"), Outcome.INCORRECT),
        (HONEST.replace("x.clamp(min=0)", "x.nothing()"), Outcome.RUNTIME_ERROR),
        (HONEST.replace("x.clamp(min=0)", "x["), Outcome.COMPILE_ERROR),
    ],
)
def test_the_real_checker_and_ours_agree_on_the_plain_cases(code: str, outcome: Outcome) -> None:
    official = OfficialChecker(Path(os.environ["KERNELBENCH_CHECKOUT"])).judge(RELU, code)
    assert official.verdict is outcome, official.message
    with JudgeClient(JudgeConfig(device="cuda:0", workers=1)) as client:
        ours = client.judge(Task(candidate=code, problem=RELU, protocol="kernelbench-head"))
    assert ours.verdict is outcome, ours.message


def test_a_folder_that_is_no_checkout_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no KernelBench checkout"):
        OfficialChecker(tmp_path, "cpu").probe()


def verdict(outcome: Outcome, reason: str = "", seconds: float = 1.0) -> Verdict:
    return Verdict(outcome, reason, "why", problem=PROBLEM.id, seconds=seconds)


def test_where_cuda_does_not_start_behind_the_confinement_it_starts_before_it(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = {"status": "no-device", "stage": "import", "error": "CUDA does not start: no device"}
    result = {"status": "result", "compiled": True, "correctness": True, "metadata": {}}
    asked: list[bool] = []
    checker = OfficialChecker(checkout, "cuda:0")

    def child(request: object) -> Answer:
        asked.append(checker.device_first)
        return Answer(result if checker.device_first else refusal, {"status": 0}, timed_out=False)

    monkeypatch.setattr(checker, "_child", child)
    assert [checker.judge(PROBLEM, "").verdict for _ in range(2)] == [Outcome.CORRECT] * 2
    assert asked == [False, True, True]
    broken = Answer(refusal, {"status": 0}, timed_out=False)
    monkeypatch.setattr(checker, "_child", lambda request: broken)
    verdict = checker.judge(PROBLEM, "")
    assert (verdict.verdict, verdict.reason) == (Outcome.INFRA_ERROR, "checker-unusable")


@pytest.mark.parametrize(
    ("body", "outcome", "reason"),
    [
        ("return Result(compiled=True, correctness=True)", Outcome.CORRECT, ""),
        ("return None", Outcome.CORRECT, ""),  # no verdict of theirs takes nothing from ours
        (
            "return Result(compiled=True, metadata={'correctness_issue': 'Output mismatch'})",
            Outcome.INCORRECT,
            "official-value",
        ),
    ],
)
def test_a_second_opinion_may_refuse_and_is_noted(checkout: Path, body: str, outcome: Outcome, reason: str) -> None:
    code = f"def answer():\n    {body}\n"
    ours = Verdict(Outcome.CORRECT, problem=PROBLEM.id, protocol="kernelward", entry="own-1")
    both = second_opinion(OfficialChecker(checkout, "cpu"), PROBLEM, code, ours)
    assert (both.verdict, both.reason, both.protocol, both.entry) == (outcome, reason, "kernelward", "own-1")
    assert both.notes[-1].startswith("KernelBench's own check: ")


def test_the_checkout_of_a_configuration_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELBENCH_DIR", str(tmp_path))
    assert find_checkout("package") == tmp_path
    assert find_checkout(str(tmp_path)) == tmp_path
    with pytest.raises(InputError, match="there is no folder"):
        find_checkout(str(tmp_path / "gone"))
    monkeypatch.delenv("KERNELBENCH_DIR")
    with pytest.raises(InputError, match="KERNELBENCH_DIR"):
        find_checkout("package")


def test_a_judge_without_a_gpu_refuses_the_setting(checkout: Path) -> None:
    with pytest.raises(InputError, match="needs a GPU"):
        Checker(JudgeConfig(device="cpu", official=str(checkout)))


def test_parity_is_resumed_and_counts_only_what_both_decided(tmp_path: Path) -> None:
    pairs = {
        "a": (verdict(Outcome.CORRECT, seconds=60.0), verdict(Outcome.CORRECT)),
        "b": (verdict(Outcome.COMPILE_ERROR, seconds=50.0), verdict(Outcome.RUNTIME_ERROR)),
        "c": (verdict(Outcome.INCORRECT, seconds=40.0), verdict(Outcome.CORRECT)),
        "d": (verdict(Outcome.INFRA_ERROR, "no-result"), verdict(Outcome.COMPILE_ERROR)),
    }
    rows = [Row(i, f"f:{i}", f"hash{i}", PROBLEM.id, None, code) for i, code in enumerate(pairs, 1)]
    problems = {row.number: PROBLEM for row in rows}
    asked: list[str] = []

    def official(_: object, code: str) -> Verdict:
        asked.append(code)
        if code == "c" and asked.count("c") == 1:
            raise KeyboardInterrupt
        return pairs[code][0]

    def once() -> list:
        with ScoreStore(tmp_path / "out.jsonl") as store:
            return run_parity(rows, problems, store, official, lambda _, code: pairs[code][1], "s", lambda: None)

    with pytest.raises(KeyboardInterrupt):
        once()
    records = once()
    assert asked == ["a", "b", "c", "c", "d"]
    parity = compare(records)
    assert (parity.both, parity.agree) == (3, 2)
    assert [d.where for d in parity.differences] == ["f:3"]
    assert parity.table["infra_error", "compile_error"] == 1
    assert (parity.official_s, parity.ours_s) == (50.0, 1.0)
    json.dumps(parity.to_json())
    once()
    assert asked == ["a", "b", "c", "c", "d", "d"]  # a candidate without a verdict is tried again


def test_the_parity_command_refuses_a_machine_without_a_gpu_before_anything_runs(
    checkout: Path, tmp_path: Path
) -> None:
    (tmp_path / "p.py").write_text(PROBLEM.source)
    (tmp_path / "c.jsonl").write_text(json.dumps({"problem": str(tmp_path / "p.py"), "code": "x"}) + "\n")
    command = [sys.executable, "-m", "kernelward.reward.kernelbench", "parity", "--checkout", str(checkout)]
    command += ["--candidates", str(tmp_path / "c.jsonl"), "--out", str(tmp_path / "o.jsonl")]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        check=False,
        timeout=120,
    )
    assert done.returncode == 2
    assert "sees no GPU" in done.stderr
    assert not (tmp_path / "o.jsonl").exists()
