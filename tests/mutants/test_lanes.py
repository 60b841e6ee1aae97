"""Kernels judged in processes of their own: what is right, what fails, and that nobody stays behind."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
from kernelward.mutants import lanes as lanes_module
from kernelward.mutants.cell import Question
from kernelward.mutants.evaluate import Evaluator
from kernelward.mutants.lanes import Lanes
from kernelward.reward.sandbox.failure import ChildFailure
from kernelward.suites.entry import Entry
from kernelward.suites.oracle import OracleError
from kernelward.suites.problem import find_problem
from kernelward.suites.validity import admit
from lane_jobs import ending, failing, judged, process_of

EXAMPLES = Path(__file__).parents[2] / "examples" / "problems"
KERNEL = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return BODY\n"


def test_lanes_answer_like_this_process_and_end_with_their_owner() -> None:
    problem = find_problem("relu", EXAMPLES)
    entry = Entry.make("normal", constants={"batch_size": 3, "dim": 37})
    question = Question(entry, admit(problem, entry, seeds=2).measured)
    with Evaluator() as evaluator:
        here = [
            judged(evaluator, KERNEL.replace("BODY", body), problem, question)[1] for body in ("torch.relu(x)", "x")
        ]
        with Lanes(evaluator, 2, apart=True) as lanes:
            (first, right), (second, wrong) = (
                lanes.run(lane, judged, KERNEL.replace("BODY", body), problem, question)
                for lane, body in enumerate(("torch.relu(x)", "x"))
            )
            with pytest.raises(ChildFailure) as failure:
                lanes.run(0, failing, "child")
            with pytest.raises(OracleError) as oracle:
                lanes.run(0, failing, "oracle")
    assert len({first, second, os.getpid()}) == 3
    for there, known in zip((right, wrong), here, strict=True):
        assert there is not None
        assert known is not None
        assert (there.cls, there.errs, there.margin) == (known.cls, known.errs, known.margin)
    told = failure.value
    assert (told.kind, told.reason, told.phase, told.exception, told.alive) == (
        "infra_error",
        "zygote",
        "spawn",
        "OSError",
        True,
    )
    assert oracle.value.reason == "float64-raises"
    deadline = time.monotonic() + 10
    while any(os.path.exists(f"/proc/{pid}") for pid in (first, second)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in (first, second))


def test_a_lane_outlives_the_thread_that_used_it_first() -> None:
    with Evaluator() as evaluator, Lanes(evaluator, 1, apart=True) as lanes:
        with ThreadPoolExecutor(1) as phase:
            first = phase.submit(lanes.run, 0, process_of).result()
        time.sleep(0.2)  # a signal that its end sends would be there by now
        assert lanes.run(0, process_of) == first != os.getpid()


def test_a_lane_whose_process_ended_says_so_and_goes_on_with_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes_module, "AGAIN_S", 0.0)
    with Evaluator() as evaluator, Lanes(evaluator, 2, apart=True) as lanes:
        first, beside = lanes.run(0, process_of), lanes.run(1, process_of)
        with pytest.raises(ChildFailure) as failure:
            lanes.run(0, ending)
        assert (failure.value.kind, failure.value.reason) == ("infra_error", "lane")
        assert lanes.run(0, process_of) not in (first, beside, os.getpid())
        assert lanes.run(1, process_of) == beside


def test_one_end_is_one_end_however_many_waited_for_that_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes_module, "AGAIN_S", 0.0)
    monkeypatch.setattr(lanes_module, "ENDS", 2)
    with Evaluator() as evaluator, Lanes(evaluator, 1, apart=True) as lanes, ThreadPoolExecutor(4) as threads:
        lanes.run(0, process_of)
        jobs = [threads.submit(lanes.run, 0, ending) for _ in range(4)]
        assert {type(job.exception()) for job in jobs} == {ChildFailure}
        for _ in range(3):  # what a function raises is no end
            with pytest.raises(OracleError):
                lanes.run(0, failing, "oracle")
        with pytest.raises(ChildFailure):
            lanes.run(0, ending)


def test_a_lane_that_never_works_is_no_fault_of_each_mutant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes_module, "AGAIN_S", 0.0)
    monkeypatch.setattr(lanes_module, "ENDS", 2)
    with Evaluator() as evaluator, Lanes(evaluator, 1, apart=True) as lanes:
        for raised in (ChildFailure, BrokenProcessPool):
            with pytest.raises(raised):
                lanes.run(0, ending)
