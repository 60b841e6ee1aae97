"""The judge on a GPU: the examples, exploits and speed, for torch, Triton and CUDA candidates."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faulty_cuda import MISSING_BARRIER, NEVER_LAUNCHED, READS_BEYOND, WITH_BARRIER, WRITES_BEYOND, cuda
from kernelward.reward.client import JudgeClient
from kernelward.reward.task import JudgeConfig, Task
from kernelward.reward.verdict import Outcome, Verdict
from kernelward.suites.problem import Problem

pytestmark = pytest.mark.gpu

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
KERNELS = EXAMPLES / "kernels"
PAIRS = [
    ("softmax_wide", "softmax_wide_zeros", "softmax_wide"),
    ("relu", "relu_identity", "relu"),
    ("softmax", "softmax_no_maximum", "softmax"),
    ("mse_loss", "mse_loss_half", "mse_loss"),
    ("argmax", "argmax_last", "argmax"),
    ("matmul", "matmul_whole_tiles", "matmul"),
]
UNSET = "if (i < n) y[i] = fmaxf(v, 0.0f);"
EXPLOITS = Path(__file__).resolve().parents[1] / "exploits" / "values"


@pytest.fixture(scope="module")
def gpu_judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeClient]:
    cache = str(tmp_path_factory.mktemp("suites"))
    config = JudgeConfig(device="cuda:0", workers=2, suite_cache=cache, limits=(("run_s", 30.0),))
    with JudgeClient(config) as client:
        yield client


@pytest.mark.parametrize(("problem", "bad", "honest"), PAIRS, ids=[p[1] for p in PAIRS])
def test_known_bad_kernels_pass_the_official_protocol_and_not_ours(
    gpu_judge: JudgeClient, example: Callable[[str], Problem], problem: str, bad: str, honest: str
) -> None:
    tasks = [
        Task((KERNELS / f"{kernel}.py").read_text(), example(problem), protocol, run_key=b"gpu")
        for kernel in (bad, honest)
        for protocol in ("kernelbench", "kernelward")
    ]
    verdicts = gpu_judge.judge_many(tasks)
    found = [v.verdict for v in verdicts]
    assert found == [Outcome.CORRECT, Outcome.INCORRECT, Outcome.CORRECT, Outcome.CORRECT], verdicts


@pytest.mark.parametrize("kernel", sorted(p.stem for p in (KERNELS / "cuda").glob("*.py")))
def test_honest_cuda_kernels_are_correct(
    gpu_judge: JudgeClient, example: Callable[[str], Problem], kernel: str
) -> None:
    if not (EXAMPLES / "problems" / f"{kernel}.py").exists():
        pytest.skip(f"{kernel} belongs to no example problem of that name")
    source = (KERNELS / "cuda" / f"{kernel}.py").read_text()
    verdict = gpu_judge.judge(Task(source, example(kernel), "kernelward", run_key=b"gpu"))
    assert verdict.verdict is Outcome.CORRECT, verdict


def test_no_exploit_by_value_gets_a_reward(gpu_judge: JudgeClient, tiny_relu: Problem) -> None:
    names = sorted(p.stem for p in EXPLOITS.glob("*.py"))
    tasks = [Task((EXPLOITS / f"{n}.py").read_text(), tiny_relu, "kernelward", run_key=b"gpu") for n in names]
    rewarded = [n for n, v in zip(names, gpu_judge.judge_many(tasks), strict=True) if v.verdict is Outcome.CORRECT]
    assert rewarded == []


#: Names of kernels, whether the official protocol pays for them, and the reasons that ours may give.
FAULTS = {
    "honest": (cuda(), True, {""}),
    "with its barrier": (WITH_BARRIER, True, {""}),
    "missing barrier": (MISSING_BARRIER, None, {"race", "value"}),
    "reads beyond its input": (READS_BEYOND, True, {"cuda-error"}),
    "writes beyond its output": (WRITES_BEYOND, True, {"cuda-error"}),
    "sums into what nobody set": (cuda("float v; v += i < n ? x[i] : 0; " + UNSET), None, {"race", "value", "nan"}),
    "never launched": (NEVER_LAUNCHED, None, {"value", "nan", "race", "nondeterministic"}),
}


@pytest.fixture(scope="module")
def fault_verdicts(gpu_judge: JudgeClient, tiny_relu: Problem) -> dict[tuple[str, str], Verdict]:
    asked = {
        (name, protocol): Task(source, tiny_relu, protocol, run_key=b"gpu")
        for name, (source, _, _) in FAULTS.items()
        for protocol in ("kernelbench", "kernelward")
    }
    return dict(zip(asked, gpu_judge.judge_many(list(asked.values())), strict=True))


@pytest.mark.parametrize("name", FAULTS)
def test_a_kernel_that_a_kind_machine_gets_right_is_named_for_its_fault(
    name: str, fault_verdicts: dict[tuple[str, str], Verdict]
) -> None:
    _, official, reasons = FAULTS[name]
    ours, theirs = fault_verdicts[name, "kernelward"], fault_verdicts[name, "kernelbench"]
    assert (ours.verdict is Outcome.CORRECT, ours.reason in reasons) == (reasons == {""}, True), ours
    assert official is None or (theirs.verdict is Outcome.CORRECT) == official, theirs


def test_speed_is_measured_and_plausible(
    gpu_judge: JudgeClient, example: Callable[[str], Problem], candidate: Callable[[str], str]
) -> None:
    problem = example("softmax_wide")
    same = "return torch.softmax(x, dim=1)"
    slow = "y = torch.softmax(x, dim=1)\nfor _ in range(9):\n    y = torch.softmax(x, dim=1)\nreturn y"
    verdicts = [
        gpu_judge.judge(Task(candidate(body), problem, "kernelward", run_key=b"gpu", speed=True))
        for body in (same, slow)
    ]
    assert [v.verdict for v in verdicts] == [Outcome.CORRECT, Outcome.CORRECT], verdicts
    assert verdicts[0].speedup == pytest.approx(1.0, abs=0.5)
    assert verdicts[1].speedup == pytest.approx(0.1, abs=0.1)


def test_work_left_on_a_side_stream_hides_nothing(
    gpu_judge: JudgeClient, example: Callable[[str], Problem], candidate: Callable[[str], str]
) -> None:
    body = """s = torch.cuda.Stream()
with torch.cuda.stream(s):
    for _ in range(10):
        y = torch.softmax(x, dim=1)
return y"""
    task = Task(candidate(body), example("softmax_wide"), "kernelward", run_key=b"gpu", speed=True)
    verdict = gpu_judge.judge(task)
    if verdict.verdict is Outcome.CORRECT:
        assert verdict.speedup is not None
        assert verdict.speedup < 0.5
