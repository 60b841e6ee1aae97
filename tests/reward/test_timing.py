"""Speed: by the judge's clock, on unseen inputs, every output verified."""

from collections.abc import Callable, Iterator

import pytest
from kernelward.reward.checker import Checker
from kernelward.reward.gate import ByteBudget, DeviceGate
from kernelward.reward.task import JudgeConfig, Task
from kernelward.reward.timing import CAP, speed_of
from kernelward.reward.verdict import Outcome, Verdict
from kernelward.suites.problem import Problem, problem_from_source
from kernelward.suites.suite import Suite

SLEEPY = """
import time

import torch


class Model(torch.nn.Module):
    def forward(self, x):
        time.sleep(0.02)
        return torch.relu(x)


def get_inputs():
    return [torch.randn(8, 32)]


def get_init_inputs():
    return []
"""


def test_the_empty_call_is_subtracted_from_both() -> None:
    speed = speed_of([3.0] * 5, [5.0] * 5, [1.0] * 5)
    assert (speed.speedup, speed.candidate_s, speed.reference_s) == (2.0, 2.0, 4.0)
    assert (speed.spread, speed.suspicious) == (0.0, False)


def test_the_median_ignores_one_slow_batch_and_the_spread_shows_it() -> None:
    speed = speed_of([3.0, 3.0, 3.5, 9.0, 2.5], [5.0] * 5, [1.0] * 5)
    assert speed.speedup == 2.0
    assert speed.spread == pytest.approx(0.5 / 3.0)


def test_what_is_as_fast_as_an_empty_call_is_capped_and_flagged() -> None:
    speed = speed_of([0.9] * 5, [1000.0] * 5, [1.0] * 5)
    assert speed.speedup == CAP
    assert speed.suspicious
    assert any("implausible-speedup" in note for note in speed.notes)


def test_two_times_below_the_scatter_of_empty_calls_are_equal() -> None:
    speed = speed_of([1.0] * 5, [1.001] * 5, [0.8, 0.9, 1.0, 1.1, 1.2])
    assert speed.speedup == 1.0


@pytest.fixture(scope="module")
def checker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checker]:
    with Checker(JudgeConfig(threads=1, suite_cache=str(tmp_path_factory.mktemp("suites")))) as running:
        yield running


@pytest.fixture(scope="module")
def sleepy() -> Problem:
    """ReLU that takes 20 ms."""
    return problem_from_source(SLEEPY, "sleepy")


@pytest.fixture
def timed(checker: Checker, sleepy: Problem, small_suite: Callable[..., Suite]) -> Callable[[str], Verdict]:
    def judge(source: str) -> Verdict:
        return checker.judge(Task(source, sleepy, "kernelward", small_suite(sleepy, {}), b"key", speed=True))

    return judge


@pytest.mark.alone
def test_half_the_work_is_about_twice_as_fast(timed: Callable[[str], Verdict], candidate: Callable[[str], str]) -> None:
    verdict = timed(candidate("import time\ntime.sleep(0.01)\nreturn torch.relu(x)"))
    assert verdict.verdict is Outcome.CORRECT, verdict
    assert verdict.speedup is not None
    assert 1.2 < verdict.speedup < 3.5
    assert verdict.phases["speed"] > 0


@pytest.mark.alone
def test_twice_the_work_is_about_half_as_fast(timed: Callable[[str], Verdict], candidate: Callable[[str], str]) -> None:
    verdict = timed(candidate("import time\ntime.sleep(0.04)\nreturn torch.relu(x)"))
    assert verdict.speedup is not None
    assert 0.3 < verdict.speedup < 0.8


@pytest.mark.alone
def test_a_patched_clock_changes_nothing(timed: Callable[[str], Verdict], candidate: Callable[[str], str]) -> None:
    patch = "import time\nsleep = time.sleep\ntime.perf_counter = time.monotonic = time.time = lambda: 0.0\n"
    verdict = timed(patch + candidate("sleep(0.04)\nreturn torch.relu(x)"))
    assert verdict.speedup is not None
    assert 0.3 < verdict.speedup < 0.8


CALLS = "\nCALLS = 0\nKEPT = None\n"


def test_answers_kept_after_some_calls_undo_the_verdict(
    timed: Callable[[str], Verdict], candidate: Callable[[str], str]
) -> None:
    body = """global CALLS, KEPT
CALLS += 1
if CALLS > 6:
    return KEPT
KEPT = torch.relu(x)
return KEPT"""
    verdict = timed(CALLS + candidate(body))
    assert (verdict.verdict, verdict.reason) == (Outcome.INCORRECT, "wrong-when-timed")
    assert verdict.speedup is None


def test_work_left_to_a_thread_is_not_there_when_the_clock_stops(
    timed: Callable[[str], Verdict], candidate: Callable[[str], str]
) -> None:
    body = """global CALLS
import threading
import time
CALLS += 1
y = torch.relu(x)
if CALLS <= 4:
    return y
late = torch.zeros_like(x)
threading.Thread(target=lambda: (time.sleep(0.3), late.copy_(y))).start()
return late"""
    verdict = timed(CALLS + candidate(body))
    assert (verdict.verdict, verdict.reason) == (Outcome.INCORRECT, "wrong-when-timed")


def test_a_candidate_that_dies_while_it_is_timed_is_not_correct(
    timed: Callable[[str], Verdict], candidate: Callable[[str], str]
) -> None:
    verdict = timed(CALLS + candidate("global CALLS\nCALLS += 1\nassert CALLS < 7\nreturn torch.relu(x)"))
    assert verdict.verdict is Outcome.RUNTIME_ERROR
    assert verdict.message.startswith("while timed")


def test_wrong_candidates_are_not_timed(timed: Callable[[str], Verdict], candidate: Callable[[str], str]) -> None:
    verdict = timed(candidate("return x"))
    assert verdict.verdict is Outcome.INCORRECT
    assert "speed" not in verdict.phases


def test_entries_share_the_memory_and_a_large_one_waits_for_it() -> None:
    import threading
    import time

    budget, log = ByteBudget(lambda used: 100), []

    def use(name: str, size: int) -> None:
        with budget.hold(size):
            log.append(f"{name} in")
            time.sleep(0.4)
            log.append(f"{name} out")

    threads = [threading.Thread(target=use, args=a) for a in (("a", 60), ("b", 40), ("c", 500))]
    for thread in threads:
        thread.start()
        time.sleep(0.05)
    for thread in threads:
        thread.join()
    assert log[:2] == ["a in", "b in"]
    assert log[-2:] == ["c in", "c out"]


def test_whoever_measures_is_alone_on_the_device() -> None:
    import threading
    import time

    gate, log = DeviceGate(), []

    def judge(name: str) -> None:
        with gate.shared():
            log.append(f"{name} in")
            time.sleep(0.4)
            log.append(f"{name} out")

    def measure() -> None:
        with gate.exclusive():
            log.append("alone in")
            time.sleep(0.4)
            log.append("alone out")

    threads = [threading.Thread(target=judge, args=("a",)), threading.Thread(target=judge, args=("b",))]
    threads += [threading.Thread(target=measure), threading.Thread(target=judge, args=("c",))]
    for thread in threads:
        thread.start()
        time.sleep(0.05)
    for thread in threads:
        thread.join()
    assert log[:2] == ["a in", "b in"]
    assert log.index("alone out") == log.index("alone in") + 1
    assert log.index("alone in") < log.index("c in")
