"""Who is wrong where a substrate fails an entry."""

from dataclasses import replace

from kernelward.mutants.clean_run import settle, too_loose
from kernelward.mutants.pool import Pool
from kernelward.suites.entry import Entry
from kernelward.suites.problem import problem_from_source
from kernelward.suites.validity import admit


def test_one_kernel_that_disagrees_with_the_others_is_quarantined_and_the_entry_stays() -> None:
    clean = settle({"a": {"e1": "error 3"}, "b": {}, "c": {}}, {}, {})
    assert clean.dropped == {}
    assert list(clean.quarantined) == ["a"]
    assert "e1" in clean.quarantined["a"]
    assert "error 3" in clean.quarantined["a"]


def test_an_entry_that_most_kernels_disagree_with_judges_nothing() -> None:
    clean = settle({"a": {"e1": "x"}, "b": {"e1": "y"}, "c": {}}, {}, {})
    assert "2 of 3" in clean.dropped["e1"]
    assert clean.quarantined == {}


def test_half_of_the_kernels_are_not_most() -> None:
    clean = settle({"a": {"e1": "x"}, "b": {}}, {}, {})
    assert clean.dropped == {}
    assert list(clean.quarantined) == ["a"]


def test_an_entry_that_lets_zeros_pass_is_dropped_and_blames_nobody() -> None:
    clean = settle({"a": {"e1": "x"}}, {"e1": "error 0.1 is within tolerance"}, {})
    assert "zero passes" in clean.dropped["e1"]
    assert clean.quarantined == {}


def test_a_kernel_that_also_fails_where_others_pass_is_quarantined_for_that_alone() -> None:
    clean = settle({"a": {"e1": "x", "e2": "z"}, "b": {"e1": "y"}, "c": {}}, {}, {})
    assert list(clean.dropped) == ["e1"]
    assert "1 entries, e2" in clean.quarantined["a"]


PROBLEM = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.exp(x)
def get_inputs():
    return [torch.rand(8, 33)]
def get_init_inputs():
    return []
"""


def test_a_tolerance_that_no_gate_would_allow_drops_its_entry() -> None:
    """Loose enough for every precision fault, and not loose enough for zeros."""
    problem = problem_from_source(PROBLEM, "exp")
    right, planted = admit(problem, Entry.make(), seeds=2), admit(problem, Entry.make("normal"), seeds=2)
    assert planted.measured is not None
    planted = replace(planted, measured=replace(planted.measured, tolerance=(0.02,)))
    loose = too_loose(Pool(problem, "cpu", (right, planted)))
    assert list(loose) == [planted.entry.id]
    clean = settle({"a": {}}, {}, loose)
    assert clean.dropped == {planted.entry.id: "its tolerance of 0.02 is above the cap of 0.005"}
