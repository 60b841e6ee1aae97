"""One honest and one wrong candidate per backend, to see whether judging works on this machine."""

from dataclasses import dataclass

from ..suites.problem import Problem, problem_from_source
from .client import JudgeClient, JudgeLost
from .task import Task
from .verdict import Outcome, Verdict

_PROBLEM = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return 2 * x + 1

def get_inputs():
    return [torch.rand(1000)]

def get_init_inputs():
    return []
"""
_TORCH = """
import torch

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return x + x + 1
"""
_TRITON = """
import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2 + 1, mask=at < n)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
"""
_CUDA = '''
import torch
from torch.utils.cpp_extension import load_inline

module = load_inline(
    name="twice_plus_one",
    cpp_sources="torch::Tensor twice_plus_one(torch::Tensor x);",
    cuda_sources=r"""
#include <torch/extension.h>

__global__ void kernel(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2.0f * x[i] + 1.0f;
}

torch::Tensor twice_plus_one(torch::Tensor x) {
    auto y = torch::empty_like(x);
    int n = x.numel();
    kernel<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
    return y;
}
""",
    functions=["twice_plus_one"],
)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return module.twice_plus_one(x)
'''
#: Backend -> (honest candidate, what to change to make it wrong).
CANDIDATES = {
    "torch": (_TORCH, ("x + x + 1", "x + x")),
    "triton": (_TRITON, ("* 2 + 1", "* 2")),
    "cuda": (_CUDA, ("2.0f * x[i] + 1.0f", "2.0f * x[i]")),
}


@dataclass(frozen=True, slots=True)
class BackendReport:
    """Whether candidates of one backend can be judged.

    Attributes:
        works: the honest candidate was correct and the wrong one was not.
        engine: what ran them.
        seconds: for the two verdicts, the start of the processes included.
        detail: what went wrong.
    """

    works: bool
    engine: str = ""
    seconds: float = 0.0
    detail: str = ""


def probe_backend(client: JudgeClient, backend: str) -> BackendReport:
    """Judge the backend's two candidates."""
    honest, (old, new) = CANDIDATES[backend]
    problem = problem_from_source(_PROBLEM, "doctor")
    try:
        verdicts = [_judge(client, problem, source) for source in (honest, honest.replace(old, new))]
    except JudgeLost as error:
        return BackendReport(False, detail=str(error))
    right, wrong = verdicts
    seconds = sum(v.seconds for v in verdicts)
    if right.verdict is not Outcome.CORRECT:
        return BackendReport(False, right.engine, seconds, f"an honest candidate is {_say(right)}")
    if wrong.verdict is not Outcome.INCORRECT:
        return BackendReport(False, wrong.engine, seconds, f"a wrong candidate is {_say(wrong)}")
    return BackendReport(True, right.engine, seconds)


def _judge(client: JudgeClient, problem: Problem, source: str) -> Verdict:
    return client.judge(Task(candidate=source, problem=problem, protocol="kernelbench"))


def _say(verdict: Verdict) -> str:
    return f"{verdict.verdict} ({verdict.reason}): {' '.join(verdict.message.split())[:400]}"
