"""The emulator as the sandbox's engine: a CUDA candidate judged with no GPU, hostile ones contained."""

from collections.abc import Iterator

import pytest
import torch
from emulated import source
from kernelward.reward.sandbox.engine import variants
from kernelward.reward.sandbox.failure import ChildFailure
from kernelward.reward.sandbox.limits import Limits
from kernelward.reward.sandbox.session import ChildSession, OutputSpec, Zygote

LIMITS = Limits(load_s=60, build_s=60, run_s=20)
HOST = '''
import torch
from torch.utils.cpp_extension import load_inline
extension = load_inline("hostile", "void f(torch::Tensor x);", """
#include <torch/extension.h>
#include <unistd.h>
#include <stdio.h>
__global__ void k(float* x) {{ x[threadIdx.x] = 1; }}
void f(torch::Tensor x) {{
    {body}
}}
""", functions=["f"])


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = x.cuda().clone()
        extension.f(x)
        return x
'''


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote("cuda-emulator") as z:
        yield z


@pytest.fixture
def session(zygote: Zygote) -> Iterator[ChildSession]:
    with zygote.spawn(LIMITS) as child:
        yield child


def run(
    session: ChildSession, x: torch.Tensor, variant: dict[str, object] | None = None
) -> tuple[torch.Tensor, set[str]]:
    reply = session.run([x], [OutputSpec(tuple(x.shape), x.dtype)], variant=variant)
    return reply.outputs[0], {str(f["code"]) for f in reply.findings}


def test_a_correct_kernel_is_clean_under_every_strict_variant(session: ChildSession) -> None:
    reply = session.load(source("softmax"))
    assert reply.engine == "cpu-emulator"
    session.build([])
    x = torch.randn(3, 301)
    for variant in (*variants("cuda-emulator", strict=True), *variants("cuda-emulator", strict=False), {}):
        y, codes = run(session, x, variant)
        assert torch.allclose(y, x.softmax(-1), atol=1e-6)
        assert not codes


def test_a_missing_barrier_is_caught_without_a_gpu(session: ChildSession) -> None:
    session.load(source("softmax").replace("scratch[t] = largest;\n    __syncthreads();", "scratch[t] = largest;"))
    session.build([])
    x = torch.randn(3, 301)
    outcomes = [run(session, x, v) for v in variants("cuda-emulator", strict=True)]
    assert any(not torch.allclose(y, x.softmax(-1), atol=1e-6) for y, _ in outcomes)
    assert "race" in outcomes[-1][1]


def test_a_dead_kernel_is_a_runtime_error_that_names_cuda(session: ChildSession) -> None:
    session.load(HOST.format(body="k<<<1, 2000>>>(x.data_ptr<float>());"))
    session.build([])
    with pytest.raises(ChildFailure) as caught:
        run(session, torch.zeros(8))
    assert (caught.value.kind, caught.value.reason) == ("runtime_error", "launch-error")
    assert "invalid configuration argument" in caught.value.message


def test_a_candidate_that_launches_nothing_is_noted(session: ChildSession) -> None:
    session.load(HOST.format(body="x.add_(1);"))
    session.build([])
    assert run(session, torch.zeros(8))[1] == {"never-launched"}


def test_compile_errors_and_refusals_are_the_candidates(zygote: Zygote) -> None:
    for body, text in (("undeclared();", "undeclared"), ('}\n#include "/etc/passwd"\nvoid g() {', "forbidden-include")):
        with zygote.spawn(LIMITS) as session, pytest.raises(ChildFailure) as caught:
            session.load(HOST.format(body=body))
        assert (caught.value.kind, caught.value.reason) == ("compile_error", "compile")
        assert text in caught.value.message


def test_what_needs_a_gpu_is_unrefereeable(session: ChildSession) -> None:
    with pytest.raises(ChildFailure) as caught:
        session.load(HOST.format(body="}\n#include <curand_kernel.h>\nvoid g() {"))
    assert caught.value.kind == "unrefereeable"


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        ('fopen("/tmp/../../etc/kernelward", "w") ? (void)x.add_(1) : (void)0;', {"ok"}),
        ("for (;;) fork();", {"runtime_error", "timeout"}),
        ("*(volatile int*)8 = 1;", {"runtime_error"}),
        ("_exit(0);", {"runtime_error"}),
        (
            "for (;;) { char* p = (char*)malloc(1 << 24); for (int i = 0; i < 1 << 24; i += 4096) p[i] = 1; }",
            {"runtime_error", "timeout"},
        ),
    ],
)
def test_hostile_host_code_ends_with_its_process(zygote: Zygote, body: str, kinds: set[str]) -> None:
    with zygote.spawn(Limits(load_s=60, run_s=5, memory_bytes=1 << 30, processes=16)) as session:
        session.load(HOST.format(body=body))
        session.build([])
        try:
            y, _ = run(session, torch.zeros(8))
            outcome = "ok" if not y.any() else "wrote"
        except ChildFailure as failure:
            outcome = failure.kind
    assert outcome in kinds
