"""The gate's answers are kept while the gate is the same, and no longer."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kernelward.mutants.calibrate_pools import Pools
from kernelward.suites import suite_cache
from kernelward.suites.problem import problem_from_source
from kernelward.suites.suite import Suite

PROBLEM = (Path(__file__).parents[2] / "examples" / "problems" / "mean_std.py").read_text()


@pytest.mark.parametrize("in_library", [False, True])
def test_the_gate_is_asked_again_once_its_code_is_another(
    in_library: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = problem_from_source(PROBLEM)
    suite = Suite(problem.id, problem.hash, ()) if in_library else None
    monkeypatch.setattr(suite_cache, "find_suite", lambda _problem: suite)
    pools = Pools(cast(Any, SimpleNamespace(options=SimpleNamespace(out=tmp_path, device_class="cpu"))))
    before = pools._gate_identity(problem)
    assert pools._gate_identity(problem) == before
    monkeypatch.setattr(suite_cache, "code_version", lambda _root: "another")
    assert pools._gate_identity(problem) != before
