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
