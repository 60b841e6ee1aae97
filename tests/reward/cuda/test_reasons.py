"""Why a CUDA candidate is wrong, as the verdict says it: a race is called a race, trust in lockstep is told apart."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from emulated import replaced, source
from kernelward.reward.checker import Checker
from kernelward.reward.task import JudgeConfig, Task
from kernelward.reward.verdict import Outcome, Verdict
from kernelward.suites.problem import problem_from_source
from kernelward.suites.suite import Suite

PROBLEM = problem_from_source(
    """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)


def get_inputs():
    return [4 * torch.randn(3, 301)]


def get_init_inputs():
    return []
""",
    "small_softmax",
)
LOCKSTEP = """
    for (int s = blockDim.x / 2; s >= 32; s >>= 1) {
        if (t < s) scratch[t] += scratch[t + s];
        __syncthreads();
    }
    volatile float* v = scratch;
    if (t < 32) {
        v[t] += v[t + 16]; v[t] += v[t + 8]; v[t] += v[t + 4]; v[t] += v[t + 2]; v[t] += v[t + 1];
    }
    __syncthreads();
    sum = scratch[0]LESS;
"""
SUM = """    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (t < s) scratch[t] += scratch[t + s];
        __syncthreads();
    }
    sum = scratch[0];
"""


@pytest.fixture(scope="module")
def judged(
    tmp_path_factory: pytest.TempPathFactory, small_suite: Callable[..., Suite]
) -> Iterator[Callable[[str, str], Verdict]]:
    suite = small_suite(PROBLEM, {})
    config = JudgeConfig(threads=1, suite_cache=str(tmp_path_factory.mktemp("suites")))
    with Checker(config) as checker:
        yield lambda text, protocol: checker.judge(Task(text, PROBLEM, protocol, suite=suite, run_key=b"reasons"))


def test_a_missing_barrier_is_called_a_race_where_an_official_protocol_sees_wrong_values(
    judged: Callable[[str, str], Verdict],
) -> None:
    broken = replaced(source("softmax"), "scratch[t] = sum;\n    __syncthreads();", "scratch[t] = sum;")
    verdict = judged(broken, "kernelbench")
    assert (verdict.verdict, verdict.reason) == (Outcome.INCORRECT, "race")
    assert "without synchronisation" in verdict.message
    assert "allclose" in verdict.message


def test_wrong_values_without_a_race_are_wrong_values(judged: Callable[[str, str], Verdict]) -> None:
    verdict = judged(replaced(source("softmax"), "sum += expf", "sum += 2 * expf"), "kernelbench")
    assert (verdict.verdict, verdict.reason) == (Outcome.INCORRECT, "value")


def test_code_that_trusts_lockstep_is_told_apart_only_where_it_is_right_in_lockstep(
    judged: Callable[[str, str], Verdict],
) -> None:
    trusting = replaced(source("softmax"), SUM, LOCKSTEP.replace("LESS", ""))
    assert judged(trusting, "kernelbench").verdict is Outcome.CORRECT
    verdict = judged(trusting, "kernelward")
    assert (verdict.verdict, verdict.reason) == (Outcome.INCORRECT, "warp-synchronous")
    wrong = replaced(source("softmax"), SUM, LOCKSTEP.replace("LESS", " * 2"))
    verdict = judged(wrong, "kernelward")
    assert (verdict.verdict, verdict.reason) == (Outcome.INCORRECT, "value")


OVERRUN = """
import torch
from torch.utils.cpp_extension import load_inline
cuda = r'''
#include <torch/extension.h>
__global__ void softmax(const float* x, float* y, int n) {
    __shared__ float row[256];
    for (int i = threadIdx.x; i < n; i += blockDim.x) row[i] = x[blockIdx.x * n + i];
    __syncthreads();
    float most = row[0], sum = 0;
    for (int i = 1; i < n; i++) most = fmaxf(most, row[i]);
    for (int i = 0; i < n; i++) sum += expf(row[i] - most);
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = expf(row[i] - most) / sum;
}
torch::Tensor run(torch::Tensor x) {
    auto y = torch::empty_like(x);
    softmax<<<x.size(0), 64>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(1));
    return y;
}
'''
module = load_inline(name="overrun", cpp_sources="torch::Tensor run(torch::Tensor x);", cuda_sources=cuda,
                     functions=["run"])
ran = []
class ModelNew(torch.nn.Module):
    def forward(self, x):
        if ran:
            raise RuntimeError("this process has overrun its memory before")
        if x.shape[1] > 256:
            ran.append(1)
        return module.run(x)
"""


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("return module.run(x)", "shared-out-of-bounds"),
        ("module.run(x); raise RuntimeError('no such shape')", "shared-out-of-bounds"),
        ("return module.run(x)[:1, :1]", "shape"),
    ],
    ids=["answers", "raises", "answers in another shape"],
)
def test_a_process_that_overran_shared_memory_answers_no_further_question(
    tmp_path: Path, small_suite: Callable[..., Suite], end: str, reason: str
) -> None:
    wide = problem_from_source(
        PROBLEM.source.replace("4 * torch.randn(3, 301)", "4 * torch.randn(rows, 301)").replace(
            "class Model", "rows = 3\n\n\nclass Model"
        ),
        "wide_softmax",
    )
    suite = small_suite(wide, {"rows": 2})
    overrun = OVERRUN.replace("return module.run(x)", end)
    with Checker(JudgeConfig(threads=1, suite_cache=str(tmp_path))) as checker:
        verdict = checker.judge(Task(overrun, wide, suite=suite, run_key=b"reasons", all_entries=True))
        narrow = checker.judge(Task(OVERRUN.replace("[256]", "[512]").replace("> 256", "> 512"), wide, suite=suite))
    assert [e.reason for e in verdict.entries] == [reason] * 2
    assert narrow.verdict is Outcome.CORRECT
