"""The cache of truths, and the reference of one draw."""

import threading
import time
from collections.abc import Callable

import pytest
import torch
from kernelward.reward.truth_cache import SingleFlight, compute_reference, side_effects
from kernelward.suites.entry import Entry
from kernelward.suites.problem import Problem, problem_from_source
from kernelward.suites.protocol import load_protocol


def test_a_value_is_computed_once_for_all_who_ask_at_the_same_time() -> None:
    cache: SingleFlight[str] = SingleFlight(100, len)
    calls: list[int] = []
    results: list[str] = []

    def compute() -> str:
        calls.append(1)
        time.sleep(0.1)
        return "value"

    threads = [threading.Thread(target=lambda: results.append(cache.get("key", compute))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == ["value"] * 8
    assert len(calls) == 1


def test_different_keys_do_not_wait_for_each_other() -> None:
    cache: SingleFlight[str] = SingleFlight(100, len)
    release = threading.Event()
    slow = threading.Thread(target=cache.get, args=("slow", lambda: release.wait(10) and "slow"))
    slow.start()
    assert cache.get("fast", lambda: "fast") == "fast"
    release.set()
    slow.join()


def test_the_least_recently_used_goes_first_and_the_budget_holds() -> None:
    cache: SingleFlight[str] = SingleFlight(10, len)
    cache.get("a", lambda: "aaaa")
    cache.get("b", lambda: "bbbb")
    cache.get("a", lambda: pytest.fail("it was there"))
    cache.get("c", lambda: "cccc")
    assert cache.nbytes == 8
    cache.get("a", lambda: pytest.fail("it was used last"))
    assert cache.get("b", lambda: "again") == "again"


def test_what_is_asked_for_in_rounds_is_kept_as_far_as_it_fits() -> None:
    cache: SingleFlight[str] = SingleFlight(10, len, lambda key: str(key)[0])
    computed: list[str] = []

    def ask(key: str) -> None:
        cache.get(key, lambda: computed.append(key) or "four")

    for _ in range(3):
        for key in ("p1", "p2", "p3"):
            ask(key)
    assert computed == ["p1", "p2", "p3", "p3", "p3"]
    for key in ("q1", "q2", "q1", "q2"):
        ask(key)
    assert computed[5:] == ["q1", "q2"], "another group takes the room"
    assert cache.nbytes == 8


def test_what_is_larger_than_the_budget_is_handed_out_and_not_kept() -> None:
    cache: SingleFlight[str] = SingleFlight(10, len)
    cache.get("small", lambda: "x")
    assert cache.get("large", lambda: "y" * 11) == "y" * 11
    assert cache.nbytes == 1


def test_a_failure_reaches_everybody_and_is_not_kept() -> None:
    cache: SingleFlight[str] = SingleFlight(10, len)
    started, errors = threading.Event(), []

    def fail() -> str:
        started.set()
        time.sleep(0.1)
        raise ValueError("broken")

    def ask() -> None:
        try:
            cache.get("key", fail)
        except ValueError as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 3
    assert cache.get("key", lambda: "works") == "works"


LINEAR = """
import torch


class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc = torch.nn.Linear(width, 3)

    def forward(self, x):
        return self.fc(x)


WIDTH = 8


def get_inputs():
    return [torch.rand(4, WIDTH)]


def get_init_inputs():
    return [WIDTH]
"""


@pytest.fixture(scope="module")
def linear() -> Problem:
    return problem_from_source(LINEAR, "linear")


def test_a_reference_holds_what_a_candidate_needs_and_what_is_right(linear: Problem) -> None:
    reference = compute_reference(linear, Entry(), 7, "cpu", load_protocol("kernelward"))
    assert reference.init_inputs == [8]
    assert set(reference.state) == {"fc.weight", "fc.bias"}
    x = reference.inputs[0].double()
    expected = x @ reference.state["fc.weight"].double().T + reference.state["fc.bias"].double()
    assert torch.allclose(reference.outputs[0], expected, rtol=0, atol=1e-14)
    assert reference.dtypes == (torch.float32,)
    assert reference.nbytes >= sum(t.numel() * 4 for t in (*reference.inputs, *reference.state.values()))


def test_second_inputs_are_new_and_belong_to_the_same_model(linear: Problem) -> None:
    spec = load_protocol("kernelward")
    first = compute_reference(linear, Entry(), 7, "cpu", spec)
    second = compute_reference(linear, Entry(), 7, "cpu", spec, second=True)
    assert not torch.equal(first.inputs[0], second.inputs[0])
    assert all(torch.equal(first.state[name], second.state[name]) for name in first.state)
    expected = second.inputs[0].double() @ first.state["fc.weight"].double().T + first.state["fc.bias"].double()
    assert torch.allclose(second.outputs[0], expected, rtol=0, atol=1e-14)


def test_allclose_protocols_get_the_references_own_outputs(linear: Problem) -> None:
    reference = compute_reference(linear, Entry(), 7, "cpu", load_protocol("kernelbench"))
    assert reference.truth is None
    assert reference.outputs[0].dtype == torch.float32


def test_half_precision_entries_round_inputs_and_parameters(linear: Problem) -> None:
    reference = compute_reference(linear, Entry.make(dtype="float16"), 7, "cpu", load_protocol("kernelward"))
    assert {t.dtype for t in (*reference.inputs, *reference.state.values())} == {torch.float16}
    assert reference.dtypes == (torch.float16,)


@pytest.mark.parametrize(
    ("result", "aliasing", "mutates"),
    [("torch.relu(x)", False, False), ("x.view(-1)", True, False), ("torch.relu_(x)", True, True)],
)
def test_side_effects_of_the_reference_are_seen(tiny_relu: Problem, result: str, aliasing: bool, mutates: bool) -> None:
    problem = problem_from_source(tiny_relu.source.replace("torch.relu(x)", result), "effects")
    effects = side_effects(problem, Entry(), 7, "cpu")
    assert (effects.aliasing, effects.mutates) == (aliasing, mutates)


def test_the_random_state_of_other_threads_does_not_reach_a_draw(
    linear: Problem, example: Callable[[str], Problem]
) -> None:
    spec = load_protocol("kernelward")
    alone = compute_reference(linear, Entry(), 7, "cpu", spec)
    stop = threading.Event()

    def disturb() -> None:
        while not stop.is_set():
            compute_reference(linear, Entry(), 8, "cpu", spec)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for _ in range(20):
            again = compute_reference(linear, Entry(), 7, "cpu", spec)
            assert torch.equal(alone.inputs[0], again.inputs[0])
            assert torch.equal(alone.state["fc.weight"], again.state["fc.weight"])
    finally:
        stop.set()
        thread.join()
