"""Which entries a pool is made of."""

from pathlib import Path

import pytest
from kernelward.mutants import pool
from kernelward.mutants.pool import pool_entries
from kernelward.suites.problem import find_problem

EXAMPLES = Path(__file__).parents[2] / "examples" / "problems"


def test_a_large_declared_shape_is_asked_twice_a_small_one_by_every_dense_family(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = find_problem("relu", EXAMPLES)  # 8 MiB
    large = [e for e in pool_entries(problem, "cpu") if e.declared_shape]
    assert [e.generator for e in large] == ["normal", "own"]
    monkeypatch.setitem(pool.FEW_ABOVE, "cpu", 64 << 20)
    small = {e.generator for e in pool_entries(problem, "cpu") if e.declared_shape}
    assert small == {"normal", "own", "spiky", "negative", "offset", "ramp"}


def test_a_family_that_the_declared_sums_are_too_long_for_is_asked_at_small_shapes() -> None:
    problem = find_problem("groupnorm", EXAMPLES)  # 2,304 terms at the declared shape, about a hundred at a small one
    found = [e for e in pool_entries(problem, "cpu") if e.generator == "offset"]
    assert {dict(e.params).get("center") for e in found} == {None, 300.0}
    assert not any(e.declared_shape for e in found)
