"""Compilers that our engines start count against a limit of their own, in whatever phase they run."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.utils.cpp_extension as cpp_extension
from kernelward.reward.cuda.builder import Builder, Built
from kernelward.reward.cuda.cache import BuildCache
from kernelward.reward.cuda.engine_gpu import CudaEngine
from kernelward.reward.cuda.frontend import ExtensionSource
from kernelward.reward.cuda.workshop import Confinement, start_workshop
from kernelward.reward.sandbox.conversation import Clock
from kernelward.reward.sandbox.engine import CompileFailure, LoadContext
from kernelward.reward.sandbox.failure import ChildFailure
from kernelward.reward.sandbox.limits import EMULATOR_COMPILE_S, Limits
from kernelward.reward.sandbox.session import Zygote

# The compiler itself counts to two million: seconds, on any machine.
SLOW = '''
import torch
from torch.utils.cpp_extension import load_inline
{before}
extension = load_inline("slow", "int64_t f(torch::Tensor x);", """
#include <torch/extension.h>
constexpr int count(int seed) {{
    int sum = seed;
    for (int i = 0; i < 1000; i++) for (int j = 0; j < 1000; j++) sum += (i ^ j) & 1;
    return sum;
}}
constexpr int a = count(1), b = count(2);
int64_t f(torch::Tensor x) {{ return a + b; }}
""", functions=["f"])


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return x
'''


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote("cuda-emulator") as z:
        yield z


def loaded(zygote: Zygote, before: str = "", **limits: float) -> tuple[str, str, float]:
    """What came of loading: the failure's kind and message, and the seconds."""
    with zygote.spawn(Limits(**limits)) as session:  # type: ignore[arg-type]
        started = time.monotonic()
        kind, message = "ok", ""
        try:
            session.load(SLOW.format(before=before))
        except ChildFailure as failure:
            kind, message = failure.kind, failure.message
        return kind, message, time.monotonic() - started


def test_a_slow_compilation_does_not_use_up_the_time_for_loading(zygote: Zygote) -> None:
    kind, message, seconds = loaded(zygote, load_s=1.0)
    assert (kind, message) == ("ok", "")
    assert seconds > 1.0


def test_a_compilation_ends_with_its_own_limit(zygote: Zygote) -> None:
    kind, message, _ = loaded(zygote, load_s=60, compile_s=0.5)
    assert (kind, message) == ("timeout", "compilers took more than 0.5 s")


def test_what_the_candidate_does_itself_counts_as_before(zygote: Zygote) -> None:
    kind, message, seconds = loaded(zygote, "while True: pass", load_s=1.5)
    assert (kind, message) == ("timeout", "no answer within 1.5 s")
    assert seconds < 15


def test_only_modes_that_compile_for_candidates_have_the_limit() -> None:
    limits = Limits(compile_s=400)
    found = {mode: limits.compiling(mode) for mode in ("torch", "triton", "cuda", "cuda-emulator")}
    assert found == {"torch": 0, "triton": 0, "cuda": 400, "cuda-emulator": EMULATOR_COMPILE_S}


def test_two_clocks_run_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    clock = Clock(110.0, 600.0)
    now[0] = 104.0
    clock.switch(True)
    clock.switch(True)
    assert (clock.deadline, clock.left) == (704.0, 6.0)
    now[0] = 204.0
    assert clock.compilers_left() == 500.0
    clock.switch(False)
    assert (clock.deadline, clock.left, clock.compilers_left()) == (210.0, 500.0, 500.0)


class Refusing(Builder):
    def build(self, extension: ExtensionSource, directory: Path, strict: bool = False) -> Built:
        raise CompileFailure("host-compile", "these words")


def test_the_engine_for_gpus_says_when_it_waits_for_a_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("load_inline", "load", "CUDAExtension", "CppExtension"):
        monkeypatch.setattr(cpp_extension, name, getattr(cpp_extension, name))  # put back afterwards
    told: list[str] = []

    @contextlib.contextmanager
    def compiling() -> Iterator[None]:
        told.append("begins")
        try:
            yield
        finally:
            told.append("ends")

    engine = CudaEngine(tmp_path)
    with start_workshop(lambda arch: Refusing(None, arch), BuildCache(tmp_path), {}, Confinement()) as workshop:
        engine._workshop, engine._workshop_inode = workshop, _inode(workshop.fileno())
        with pytest.raises(CompileFailure, match="these words"):
            engine.load(
                'from torch.utils.cpp_extension import load_inline\nload_inline("e", "int f();", functions=["f"])\n',
                LoadContext(tmp_path, "cpu", {"arch": "sm_90"}, compiling),
            )
    assert told == ["begins", "ends"]


def _inode(descriptor: int) -> int:
    return Path(f"/proc/self/fd/{descriptor}").stat().st_ino
