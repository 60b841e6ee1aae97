"""Input families that do not give what they promise are noticed before an entry of theirs judges anything."""

from dataclasses import replace

import pytest
from kernelward.suites import generators
from kernelward.suites.draw import draw_entry
from kernelward.suites.entry import Entry
from kernelward.suites.generators import GENERATORS
from kernelward.suites.problem import problem_from_source
from kernelward.suites.promises import PROMISES, broken_promise
from kernelward.suites.traits import inspect_problem
from kernelward.suites.validity import admit

SOURCE = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) + x.sum(dim=1, keepdim=True)
def get_inputs():
    return [INPUT]
def get_init_inputs():
    return []
"""
DENSE = problem_from_source(SOURCE.replace("INPUT", "torch.rand(70, 33)"), "dense")


def said(entry: Entry, problem=DENSE, seed: int = 1) -> str:
    def own() -> list:
        return draw_entry(problem, Entry.make(), seed).inputs

    return broken_promise(entry, draw_entry(problem, entry, seed).inputs, own, inspect_problem(problem))


@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_every_family_keeps_what_it_promises(name: str) -> None:
    assert [said(Entry.make(name, scale=scale), seed=seed) for seed in range(5) for scale in (1.0, 3.0)] == [""] * 10


@pytest.mark.parametrize("name", sorted(PROMISES))
def test_a_family_that_hands_the_draw_on_as_it_is_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = replace(GENERATORS[name], transform=lambda x, context, params: x.clone())
    monkeypatch.setitem(generators._REGISTRY, name, planted)
    assert said(Entry.make(name)).startswith(f"input 0 of family {name}: ")


def test_a_family_that_never_produces_negatives_has_no_entry_that_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    right = GENERATORS["normal"]
    assert right.transform is not None
    assert admit(DENSE, Entry.make("normal"), seeds=2).admitted
    planted = replace(right, transform=lambda x, context, params: right.transform(x, context, params).abs_())
    monkeypatch.setitem(generators._REGISTRY, "normal", planted)
    found = admit(DENSE, Entry.make("normal"), seeds=2)
    assert (found.admitted, found.reason) == (False, "broken-promise")
    assert "0% of the values are negative" in found.detail


@pytest.mark.parametrize("drawn", ["torch.ones(70, 33)", "torch.rand(3, 4)"])
def test_what_is_constant_or_small_promises_nothing(drawn: str) -> None:
    problem = problem_from_source(SOURCE.replace("INPUT", drawn), "other")
    assert [said(Entry.make(name), problem) for name in ("normal", "ties", "integers", "large")] == [""] * 4


def test_where_a_domain_is_kept_the_values_are_the_problems() -> None:
    problem = problem_from_source(
        SOURCE.replace("INPUT", "torch.rand(70, 33)").replace("relu(x)", "log(x)"), "positive"
    )
    assert inspect_problem(problem).inputs[0].domain == "positive"
    inputs = draw_entry(problem, Entry.make("normal"), 1).inputs
    assert bool((inputs[0] > 0).all())
    assert said(Entry.make("normal"), problem) == ""
