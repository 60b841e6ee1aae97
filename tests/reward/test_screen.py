"""The static screen: each rule on the thing it is for, and on the honest code that looks like it."""

import time

import pytest
from kernelward.reward import screen_rules
from kernelward.reward.screen import ScreenPolicy, detect_backend, screen
from kernelward.reward.verdict import Outcome
from kernelward.suites.errors import InputError

TRITON = '''
import torch
import triton
import triton.language as tl

{module}

@triton.jit
def kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """A comment that mentions cudaStream, os._exit and torch.matmul."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(y_ptr + offsets, tl.maximum(x, 0) + 0 * tl.sum(x), mask=mask)


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, x):
        y = torch.empty_like(x)
        {forward}
        return y
'''
LAUNCH = "kernel[(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), BLOCK=128)"

CUDA = '''
import torch
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>
// at::matmul(a, b) would be wrong here; "torch::relu(x)" too
__global__ void relu(const float* x, float* y, int n) {{ int i = blockIdx.x; if (i < n) y[i] = fmaxf(x[i], 0.f); }}
torch::Tensor run(torch::Tensor x) {{ {body} }}
"""
module = load_inline("relu", cpp_sources="torch::Tensor run(torch::Tensor x);", cuda_sources=source, functions=["run"])


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.op = module

    def forward(self, x):
        return {forward}
'''
HOST = "auto y = torch::empty_like(x); relu<<<x.numel(), 1>>>(x.data_ptr<float>(), y.data_ptr<float>(), 1); return y;"


def triton(module: str = "", init: str = "pass", forward: str = LAUNCH) -> str:
    return TRITON.format(module=module, init=init, forward=forward)


def cuda(body: str = HOST, forward: str = "self.op.run(x)") -> str:
    return CUDA.format(body=body, forward=forward)


def codes(source: str, policy: ScreenPolicy | None = None) -> set[str]:
    return {f.code for f in screen(source, policy)}


def hard(source: str, policy: ScreenPolicy | None = None) -> set[str]:
    return {f.code for f in screen(source, policy) if f.hard}


# ---------------------------------------------------------------- backends


def test_backend_is_read_from_the_code() -> None:
    assert detect_backend(triton()) == "triton"
    assert detect_backend(cuda()) == "cuda"
    assert detect_backend("import torch\nclass ModelNew(torch.nn.Module): pass") == "torch"
    assert detect_backend("import torch.utils.cpp_extension as e\nm = e.load(name='m', sources=['a.cu'])") == "cuda"


def test_backend_is_not_read_from_comments_and_docstrings() -> None:
    source = '"""Instead of a __global__ kernel."""\n# import triton; load_inline\nimport torch\nclass ModelNew: pass'
    assert detect_backend(source) == "torch"


def test_backend_of_what_cannot_be_parsed_is_torch() -> None:
    assert detect_backend("import triton\ndef (") == "torch"


# ---------------------------------------------------------------- structure


@pytest.mark.parametrize(
    ("source", "code", "outcome"),
    [
        ("", "empty", Outcome.COMPILE_ERROR),
        (" \n\t\n", "empty", Outcome.COMPILE_ERROR),
        ("class ModelNew(:", "syntax", Outcome.COMPILE_ERROR),
        ("class ModelNew: pass\n\0", "syntax", Outcome.COMPILE_ERROR),
        ("x = " + "-" * 100_000 + "1", "syntax", Outcome.COMPILE_ERROR),
        ("(" * 10_000, "syntax", Outcome.COMPILE_ERROR),
        ("class ModelNew: pass\n# \ud800", "not-utf8", Outcome.COMPILE_ERROR),
        ("import torch\nclass Model(torch.nn.Module): pass", "no-model-new", Outcome.COMPILE_ERROR),
        ("# ModelNew\nx = 1", "no-model-new", Outcome.COMPILE_ERROR),
        ("class ModelNew: pass\n" + "#" * 300_000, "too-large", Outcome.REJECTED),
    ],
)
def test_what_is_no_candidate_is_named(source: str, code: str, outcome: Outcome) -> None:
    found = screen(source)[0]
    assert (found.code, found.hard, found.outcome) == (code, True, outcome)
    assert len(found.message) < 200


def test_a_syntax_error_names_its_line() -> None:
    assert screen("import torch\n\nclass ModelNew(:\n    pass")[0].line == 3


def test_ten_megabytes_are_refused_at_once() -> None:
    started = time.process_time()
    assert hard("class ModelNew: pass\n" + "x = 1\n" * 1_700_000) == {"too-large"}
    assert time.process_time() - started < 1.0


@pytest.mark.parametrize(
    "source",
    [
        "class ModelNew: pass",
        "ModelNew = make()",
        "from other import Net as ModelNew",
        "if True:\n    class ModelNew: pass",
        "globals()['ModelNew'] = type('M', (), {})",
        "def ModelNew(): return None",
    ],
)
def test_every_way_to_define_modelnew_is_left_to_the_child(source: str) -> None:
    assert "no-model-new" not in codes(source)


# ---------------------------------------------------------------- rules and near misses


def test_honest_kernels_raise_nothing() -> None:
    assert codes(triton()) == set()
    assert codes(cuda()) == set()


FINDS = [
    ("inherits-reference", "from reference import Model\nclass ModelNew(Model): pass"),
    ("torch-compute", triton(forward="y = torch.relu(x)")),
    ("torch-compute", triton(forward="y = x @ x.T; " + LAUNCH)),
    ("torch-compute", triton(forward="y = x.softmax(-1); " + LAUNCH)),
    ("torch-compute", triton(module="import torch as t", forward="y = t.addmm(x, x, x); " + LAUNCH)),
    ("torch-compute", triton(module="import torch.nn.functional as F", forward="y = F.relu(x); " + LAUNCH)),
    ("torch-compute", triton(module="from torch import matmul as mm", forward="y = mm(x, x); " + LAUNCH)),
    ("torch-compute", triton(init="self.fc = torch.nn.Linear(4, 4)", forward="y = self.fc(x); " + LAUNCH)),
    ("torch-compute", triton(module="def helper(a):\n    return torch.relu(a)\n", forward="y = helper(x); " + LAUNCH)),
    ("torch-compute", cuda(body="return at::matmul(x, x); // no kernel")),
    ("torch-compute", cuda(body="return torch::softmax(x, -1);")),
    ("vendor-library", cuda(body="cublasSgemm(handle); return x;")),
    ("torch-fallback", triton(forward=f"try: {LAUNCH}\n        except Exception: y = torch.relu(x)")),
    ("no-kernel", "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x): return torch.relu(x)"),
    ("decoy-kernel", triton(forward="y = torch.relu(x)")),
    ("decoy-kernel", triton(module=f"def never(x, y):\n    {LAUNCH}\n", forward="y = torch.relu(x)")),
    ("decoy-kernel", cuda(forward="torch.relu(x)").replace("self.op = module", "pass")),
    ("suspect-import", triton(module="import ctypes")),
    ("suspect-import", triton(module="from subprocess import run")),
    ("introspection", triton(module="import gc")),
    ("introspection", triton(module="import sys", forward="f = sys._getframe(1); " + LAUNCH)),
    ("process-control", triton(module="import os", forward="os._exit(0)")),
    ("process-control", triton(module="from os import _exit as leave", forward="leave(0)")),
    ("dynamic-code", triton(module="exec('x = 1')")),
    ("side-stream", triton(forward="s = torch.cuda.Stream(); " + LAUNCH)),
    ("cuda-graph", triton(init="self.g = torch.cuda.CUDAGraph()")),
    ("patches-library", triton(module="torch.allclose = lambda *a, **k: True")),
    ("patches-library", triton(module="import time\ntime.perf_counter = lambda: 0.0")),
    ("patches-library", triton(module="setattr(torch.cuda, 'synchronize', print)")),
    ("patches-reference", triton(module="Model.forward = lambda self, x: x")),
    ("pointer-cache", triton(init="self.seen = {}", forward="y = self.seen[x.data_ptr()]")),
    ("pointer-cache", triton(init="self.seen = {}", forward="key = id(x)\n        y = self.seen.get(key)")),
]


@pytest.mark.parametrize(("code", "source"), FINDS, ids=[f"{i}-{c}" for i, (c, _) in enumerate(FINDS)])
def test_a_rule_sees_what_it_is_for(code: str, source: str) -> None:
    assert code in codes(source)


def test_every_rule_has_an_example() -> None:
    assert {code for code, _ in FINDS} == set(screen_rules.RULES)


WRAPPED = f"class Op(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x, y):\n        {LAUNCH}\n"
HELPED = "@triton.jit\ndef helper(a):\n    return a\n"

NEAR_MISSES = {
    "a try around an import": triton(module="try:\n    import numpy\nexcept ImportError:\n    numpy = None"),
    "a try that re-raises": triton(forward=f"try: {LAUNCH}\n        except RuntimeError: raise"),
    "a try that launches a smaller block": triton(forward=f"try: {LAUNCH}\n        except ValueError: {LAUNCH}"),
    "pass": triton(init="pass"),
    "a comment with a stream": triton(module="# torch.cuda.Stream() and cudaStreamCreate are not used"),
    "floor division": triton(forward="n = x.numel() // 2; " + LAUNCH),
    "a layer for its weights": triton(init="self.fc = torch.nn.Linear(4, 4)", forward="w = self.fc.weight; " + LAUNCH),
    "an own base class": triton(module="class Base: pass\n").replace("ModelNew(torch.nn.Module)", "ModelNew(Base)"),
    "a backend flag": triton(module="torch.backends.cuda.matmul.allow_tf32 = False"),
    "an attribute of its own": triton(init="self.time = 3; self.Model = 1"),
    "an address for a kernel": cuda(body="kernel<<<1, 1>>>(x.data_ptr()); return x;"),
    "an extension method named like a torch op": cuda(forward="self.op.softmax(x)"),
    "a kernel behind autograd": triton(module=WRAPPED, forward="Op.apply(x, y)"),
    "a kernel behind a wrapper": triton(module=f"def launch(x, y):\n    {LAUNCH}\n", forward="launch(x, y)"),
    "a kernel helper": triton(module=HELPED).replace("tl.maximum(x, 0)", "helper(x)"),
    "max and sum of plain numbers": triton(forward="n = max(1, sum(x.shape)); " + LAUNCH),
    "reshaping": triton(forward="y = y.view(-1).reshape(x.shape).contiguous(); " + LAUNCH),
}


@pytest.mark.parametrize("source", NEAR_MISSES.values(), ids=NEAR_MISSES)
def test_honest_near_misses_raise_nothing_even_when_everything_is_hard(source: str) -> None:
    policy = ScreenPolicy(torch_ops="deny", hard=tuple(screen_rules.RULES))
    assert hard(source, policy) == set()


def test_rules_only_log_by_default() -> None:
    for code, source in FINDS:
        assert hard(source) == set(), code


def test_denying_torch_ops_refuses_what_does_not_compute_itself() -> None:
    deny = ScreenPolicy(torch_ops="deny")
    assert hard(triton(forward="y = torch.relu(x)"), deny) == {"torch-compute", "decoy-kernel"}
    assert hard(cuda(body="return at::matmul(x, x);"), deny) == {"torch-compute"}
    assert hard("import torch\nclass ModelNew(torch.nn.Module): pass", deny) == {"no-kernel"}
    assert hard(triton(module="import ctypes"), deny) == set()


def test_a_code_can_be_made_hard() -> None:
    policy = ScreenPolicy.from_dict({"hard": ["side-stream"]})
    found = screen(triton(forward="s = torch.cuda.Stream(); " + LAUNCH), policy)
    assert [(f.code, f.hard, f.outcome) for f in found] == [("side-stream", True, Outcome.REJECTED)]


@pytest.mark.parametrize(
    "settings", [{"hard": ["no-such-code"]}, {"torch_ops": "maybe"}, {"unknown": 1}], ids=["code", "value", "key"]
)
def test_a_wrong_policy_is_the_users_error(settings: dict[str, object]) -> None:
    with pytest.raises(InputError):
        ScreenPolicy.from_dict(settings)


def test_the_longest_accepted_candidate_is_screened_quickly() -> None:
    source = "class ModelNew: pass\n" + "x = f(a.b, c[1])\n" * 15_000
    assert len(source) < ScreenPolicy().max_bytes
    started = time.process_time()
    screen(source)
    assert time.process_time() - started < 20.0
