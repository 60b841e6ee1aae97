"""Cells of the matrix: what a kernel's answers to one entry come to."""

import contextlib
import math
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from kernelward.mutants import evaluate, kernel_run
from kernelward.mutants.cell import CellResult, Question, merged
from kernelward.mutants.evaluate import Evaluator, environment
from kernelward.mutants.kernel_run import KernelBroken
from kernelward.mutants.matrix_schema import VARIANTS
from kernelward.reward.lease import DeviceShares
from kernelward.reward.sandbox.failure import ChildFailure
from kernelward.suites.draw import entry_bytes
from kernelward.suites.entry import Entry
from kernelward.suites.oracle import OracleError, Truth
from kernelward.suites.problem import Problem, problem_from_source
from kernelward.suites.validity import Measured, admit

UNEVEN = """
import torch
class Model(torch.nn.Module):
    def forward(self, x, s):
        return (x + s) - s
rows = 65
def get_inputs():
    return [torch.rand(rows, 33), torch.tensor(1e5 if torch.rand(()) < 0.3 else 1.0)]
def get_init_inputs():
    return []
"""
GIB_ROWS = (1 << 30) // (4 * 33)
ROWS = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)
rows = 8
def get_inputs():
    return [torch.rand(rows, 33)]
def get_init_inputs():
    return []
"""


def cell(cls: str, err: float, margin: float = 0.0) -> CellResult:
    return CellResult("e", "strict", 1, cls, (err,), margin, 0.5)  # type: ignore[arg-type]


def test_a_cell_over_several_draws_is_as_mild_as_the_mildest_of_them() -> None:
    both = merged([cell("value", 0.3, 0.2), cell("pass", 1e-7, 1e-8)])
    assert (both.cls, both.seeds, both.errs, both.margin, both.killed) == ("pass", 2, (1e-7,), 1e-8, False)
    assert both.seconds == 1.0
    assert merged([cell("crash", math.inf), cell("value", 0.3)]).cls == "value"
    assert merged([cell("race", 0.1)] * 3).killed


@pytest.fixture(scope="module")
def running() -> Iterator[Evaluator]:
    """One evaluator for all tests that run kernels."""
    with Evaluator() as made:
        yield made


@pytest.fixture(scope="module")
def uneven() -> tuple[Problem, Measured]:
    problem = problem_from_source(UNEVEN, "uneven")
    measured = admit(problem, Entry.make("normal"), seeds=2).measured  # both of these draws are well conditioned
    assert measured is not None
    return problem, replace(measured, tolerance=(6e-3,))


def test_draws_worse_conditioned_than_the_gate_has_seen_are_drawn_again(uneven: tuple[Problem, Measured]) -> None:
    problem, measured = uneven
    evaluator = Evaluator()
    draws = [evaluator.draw(problem, Question(Entry.make(), measured), i) for i in range(12)]
    assert {float(d.inputs[1]) for d in draws} == {1.0}  # type: ignore[arg-type]
    plain = [evaluator.draw(problem, Question(Entry.make()), i) for i in range(12)]
    assert 1e5 in {float(d.inputs[1]) for d in plain}  # type: ignore[arg-type]


def test_a_draw_that_was_dropped_is_the_same_when_it_is_made_again_and_is_not_examined_twice(
    uneven: tuple[Problem, Measured], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, measured = uneven
    evaluator = Evaluator()
    question = Question(Entry.make(), measured)
    first = [evaluator.draw(problem, question, i) for i in range(12)]
    asked = Question(Entry.make(), replace(measured, tolerance=(1e-2,)))
    forgetful = Evaluator()
    forgetful._draws.budget = 0
    again = [forgetful.draw(problem, asked, i) for i in range(12)]
    monkeypatch.setattr(evaluate, "draw_errors", lambda *_: pytest.fail("it was examined when it was chosen"))
    third = [forgetful.draw(problem, question, i) for i in range(12)]
    assert [d.seed for d in first] == [d.seed for d in again] == [d.seed for d in third]
    assert all(torch.equal(a.inputs[0], b.inputs[0]) for a, b in zip(first, third, strict=True))


def test_official_draws_are_what_they_are(uneven: tuple[Problem, Measured]) -> None:
    problem, measured = uneven
    entries = [Entry.make(seed_policy="kernelbench", draw=i, draw_device="cpu") for i in range(5)]
    evaluator = Evaluator()
    for entry in entries:
        held, free = (evaluator.draw(problem, Question(entry, m, "plain"), 0) for m in (measured, None))
        assert float(held.inputs[1]) == float(free.inputs[1])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("body", "cls"),
    [
        ("return torch.relu(x)", "pass"),
        ("return x", "value"),
        ("return torch.relu(x)[:1]", "value"),
        ("y = torch.relu(x)\n        x.zero_()\n        return y", "value"),  # right, at the price of its input
        ("raise RuntimeError('broken')", "crash"),
        ("import os\n        os._exit(3)", "crash"),
    ],
)
def test_what_a_kernel_does_decides_the_class_of_its_cell(running: Evaluator, body: str, cls: str) -> None:
    problem = problem_from_source(ROWS, "rows")
    entry = Entry.make("normal")
    measured = admit(problem, entry, seeds=2).measured
    source = f"import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        {body}\n"
    with running.open(source, "torch", problem) as run:
        found = run.cell(Question(entry, measured), 3)
    assert found is not None
    assert found.cls == cls
    assert found.seeds == (1 if cls == "pass" else 3)


def test_a_refusal_of_a_changed_shape_is_no_kill_and_one_of_the_declared_shape_is(running: Evaluator) -> None:
    problem = problem_from_source(ROWS, "rows")
    source = (
        "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n"
        "        raise ValueError('this shape is not supported')\n"
    )
    with running.open(source, "torch", problem) as run:
        changed = run.cell(Question(Entry.make("normal", constants={"rows": 5})))
        declared = run.cell(Question(Entry.make("normal")))
    assert changed is not None
    assert declared is not None
    assert (changed.cls, changed.killed) == ("refused", False)
    assert (declared.cls, declared.killed) == ("crash", True)


WILD = '''
import torch
from torch.utils.cpp_extension import load_inline
CUDA = r"""
#include <torch/extension.h>
__global__ void k(const float* x, float* y, long n) {
    long i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = fmaxf(n == 165 ? x[i + (1L << 40)] : x[i], 0.0f);
}
torch::Tensor run(torch::Tensor x) {
    auto y = torch::empty_like(x);
    k<<<(x.numel() + 31) / 32, 32>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
    return y;
}
"""
wild = load_inline(name="wild", cpp_sources="torch::Tensor run(torch::Tensor x);", cuda_sources=CUDA, functions=["run"])
class ModelNew(torch.nn.Module):
    def forward(self, x):
        return wild.run(x)
'''


def test_a_kernel_that_died_on_one_entry_is_judged_afresh_on_the_next(running: Evaluator) -> None:
    problem = problem_from_source(ROWS, "rows")
    small, declared = Entry.make("normal", constants={"rows": 5}), Entry.make("normal")
    measured = admit(problem, declared, seeds=2).measured
    with running.open(WILD, "cuda", problem) as run:
        found = [run.cell(Question(entry, measured, variant), 3) for variant in VARIANTS for entry in (small, declared)]
        assert run.deaths == 0
    assert [c and (c.cls, c.seeds) for c in found] == [("crash", 3), ("pass", 1)] * 2


@pytest.mark.gpu
def test_a_kernel_that_ends_cuda_contexts_costs_one_process_an_entry_once_that_is_known() -> None:
    problem = problem_from_source(ROWS, "rows")
    small, declared = Entry.make("normal", constants={"rows": 5}), Entry.make("normal")
    measured = admit(problem, declared, seeds=2, device="cuda:0").measured
    body = "return x[torch.full((8,), 10**6, device=x.device)]"  # an assertion of the device
    source = f"import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        {body}\n"
    with Evaluator("cuda") as evaluator, evaluator.open(source, "torch", problem) as run:
        found = [run.cell(Question(entry, measured), 3) for entry in (declared, small, declared)]
        assert run.given_up == 5
    assert [c and (c.cls, c.seeds) for c in found] == [("crash", 3), ("crash", 1), ("crash", 1)]


def test_a_kernel_that_ends_its_process_costs_one_an_entry_once_that_is_known(running: Evaluator) -> None:
    problem = problem_from_source(ROWS, "rows")
    small, declared = Entry.make("normal", constants={"rows": 5}), Entry.make("normal")
    measured = admit(problem, declared, seeds=2).measured
    source = (
        "import os\nimport torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        os._exit(7)\n"
    )
    with running.open(source, "torch", problem) as run:
        found = [run.cell(Question(entry, measured), 3) for entry in (declared, small, declared)]
        assert run.deaths == 5
    assert [c and (c.cls, c.seeds) for c in found] == [("crash", 3), ("crash", 1), ("crash", 1)]


HANGS = WILD.replace("if (i < n) y[i] = fmaxf(n == 165 ? x[i + (1L << 40)] : x[i], 0.0f);", "while (n) y[0] = ++i;")


@pytest.mark.gpu
def test_a_compiled_kernel_that_hangs_on_a_small_entry_is_waited_for_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_from_source(ROWS, "rows")
    monkeypatch.setattr(evaluate, "HANGS_S", 2.0)
    with Evaluator("cuda") as evaluator, evaluator.open(HANGS, "cuda", problem) as run:
        question = Question(
            Entry.make("normal"), admit(problem, Entry.make("normal"), seeds=2, device="cuda:0").measured
        )
        evaluator.draw(problem, question, 0)
        began = time.monotonic()
        found = run.cell(question)
        assert time.monotonic() - began < evaluate.LIMITS_GPU.run_s
    assert found is not None
    assert found.cls == "hang"


def test_truth_that_does_not_fit_now_says_nothing_about_the_kernel(
    running: Evaluator, uneven: tuple[Problem, Measured], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, measured = uneven
    question = Question(Entry.make("normal", params={"sigma": 0.5}), measured)
    source = (
        "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x, s):\n        return (x + s) - s\n"
    )

    def full(*_: object, **__: object) -> None:
        raise OracleError("out-of-memory", "12 GiB")

    monkeypatch.setattr(evaluate, "compute_truth", full)
    with running.open(source, "torch", problem) as run, pytest.raises(ChildFailure) as failure:
        run.cell(question)
    assert (failure.value.kind, failure.value.reason) == ("infra_error", "device-memory")


@pytest.mark.parametrize(("on_gpu", "full_for", "asked"), [(True, 2, 3), (True, 9, 3), (False, 1, 1)])
def test_what_does_not_fit_beside_others_is_tried_again_on_a_gpu(
    uneven: tuple[Problem, Measured], monkeypatch: pytest.MonkeyPatch, on_gpu: bool, full_for: int, asked: int
) -> None:
    problem, measured = uneven
    question = Question(Entry.make("normal", params={"sigma": 0.25}), measured)
    source = (
        "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x, s):\n        return (x + s) - s\n"
    )
    compute_truth, tries = evaluate.compute_truth, []

    def full(*args: Any, **more: Any) -> Truth:
        tries.append(1)
        if len(tries) <= full_for:
            raise OracleError("out-of-memory", "12 GiB")
        return compute_truth(*args, **more)

    monkeypatch.setattr(kernel_run, "MEMORY_WAITS_S", (0.0, 0.0))
    with Evaluator() as evaluator, evaluator.open(source, "torch", problem) as run:
        monkeypatch.setattr(evaluator, "on_gpu", on_gpu)
        monkeypatch.setattr(evaluate, "compute_truth", full)
        if full_for < asked:
            found = run.cell(question)
            assert found is not None
            assert found.cls == "pass"
        else:
            with pytest.raises(ChildFailure, match="12 GiB"):
                run.cell(question)
    assert len(tries) == asked


def test_what_ended_in_tries_that_lacked_memory_is_not_held_against_the_kernel(
    uneven: tuple[Problem, Measured], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, measured = uneven
    question = Question(Entry.make("normal", params={"sigma": 0.375}), measured)
    source = (
        "import os\nimport torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x, s):\n        os._exit(7)\n"
    )
    monkeypatch.setattr(kernel_run, "MEMORY_WAITS_S", (0.0,) * (kernel_run.RESTARTS + 1))
    with Evaluator() as evaluator, evaluator.open(source, "torch", problem) as run:
        draw = evaluator.draw

        def second_lacks_memory(problem: Problem, question: Question, index: int) -> Any:
            if index == 1:
                raise OracleError("out-of-memory", "12 GiB")
            return draw(problem, question, index)

        monkeypatch.setattr(evaluator, "on_gpu", True)
        monkeypatch.setattr(evaluator, "draw", second_lacks_memory)
        with pytest.raises(ChildFailure, match="12 GiB"):
            run.cell(question, 3)


@pytest.mark.gpu
def test_a_cell_waits_for_memory_that_others_hold_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_from_source(ROWS, "rows")
    monkeypatch.setattr(kernel_run, "MEMORY_WAITS_S", (1.0,) * 30)
    source = "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x.relu()\n"
    with Evaluator("cuda") as evaluator, evaluator.open(source, "torch", problem) as run:
        small, large = (Question(Entry.make("normal", constants={"rows": rows})) for rows in (5, GIB_ROWS))
        assert run.cell(small) is not None
        free, _ = torch.cuda.mem_get_info(0)
        held = [torch.empty(free - (1 << 30), dtype=torch.uint8, device="cuda:0")]  # a context fits, the entry does not

        def release() -> None:
            held.clear()
            torch.cuda.empty_cache()

        timer = threading.Timer(3.0, release)
        timer.start()
        found = run.cell(large)
        timer.join()
    assert found is not None
    assert found.cls == "pass"
    assert not held


def test_large_entries_in_a_row_have_the_device_and_one_child_until_a_small_one_is_asked(
    running: Evaluator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    problem = problem_from_source(ROWS, "rows")
    small, large = Question(Entry.make("normal", constants={"rows": 2})), Question(Entry.make("normal"))
    least = entry_bytes(problem, large.entry)
    assert entry_bytes(problem, small.entry) < least
    monkeypatch.setattr(running, "is_large", lambda size: size >= least)
    monkeypatch.setattr(evaluate, "shares", lambda _: DeviceShares("cuda:0", 1 << 30, tmp_path))
    taken: list[str] = []
    room = running.room

    @contextlib.contextmanager
    def watched(size: int) -> Iterator[None]:
        with room(size):
            taken.append("large" if size >= least else "small")
            yield
        taken.append("left")

    monkeypatch.setattr(running, "room", watched)
    source = "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x.relu()\n"
    children = []
    with running.open(source, "torch", problem) as run:
        for question in (large, replace(large, variant="plain"), small, large):
            assert run.cell(question) is not None
            children.append(run._session)
    assert taken == ["large", "left", "small", "left", "large", "left"]
    assert children[0] is children[1] is not children[2]


def test_a_kernel_that_cannot_be_loaded_has_no_cells(running: Evaluator) -> None:
    problem = problem_from_source(ROWS, "rows")
    with running.open("raise ValueError('no')", "torch", problem) as run, pytest.raises(KernelBroken, match="no"):
        run.cell(Question(Entry.make("normal")))


def test_an_environment_names_engine_and_versions() -> None:
    found = environment(Evaluator(), "cuda")
    assert (found["engine"], found["device_class"]) == ("cuda-emulator", "cpu")
    assert {"torch", "kernelward"} <= set(found)
