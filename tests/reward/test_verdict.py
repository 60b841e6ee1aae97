"""Verdicts: JSON there and back, and exit codes."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelward.reward.verdict import EntryResult, Outcome, Verdict

floats = st.none() | st.floats(allow_nan=False)
results = st.builds(
    EntryResult,
    entry=st.text(max_size=8),
    outcome=st.none() | st.sampled_from(Outcome),
    reason=st.text(max_size=8),
    err=floats,
    tolerance=floats,
    seed=st.none() | st.integers(0, 2**63 - 1),
    message=st.text(max_size=8),
)
verdicts = st.builds(
    Verdict,
    verdict=st.sampled_from(Outcome),
    reason=st.text(max_size=8),
    err=floats,
    tolerance=floats,
    speedup=floats,
    seed=st.none() | st.integers(0, 2**63 - 1),
    phases=st.dictionaries(st.text(max_size=4), st.floats(0, 10), max_size=3),
    entries=st.lists(results, max_size=3).map(tuple),
    notes=st.lists(st.text(max_size=8), max_size=3).map(tuple),
)


@given(verdicts)
def test_json_there_and_back(verdict: Verdict) -> None:
    text = json.dumps(verdict.to_json(), allow_nan=False)
    assert Verdict.from_json(json.loads(text)) == verdict


def test_an_infinite_error_is_the_string_inf() -> None:
    plain = Verdict(Outcome.INCORRECT, err=math.inf, entries=(EntryResult("own", None, err=math.inf),)).to_json()
    assert plain["err"] == "inf"
    assert plain["entries"][0]["err"] == "inf"
    assert plain["entries"][0]["outcome"] is None


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Outcome.CORRECT, 0),
        (Outcome.INCORRECT, 1),
        (Outcome.COMPILE_ERROR, 1),
        (Outcome.RUNTIME_ERROR, 1),
        (Outcome.TIMEOUT, 1),
        (Outcome.REJECTED, 1),
        (Outcome.INFRA_ERROR, 3),
        (Outcome.UNREFEREEABLE, 3),
    ],
)
def test_exit_code(outcome: Outcome, code: int) -> None:
    assert Verdict(outcome).exit_code == code


def test_only_faults_of_ours_and_of_the_problem_are_undecided() -> None:
    assert {o for o in Outcome if not o.decided} == {Outcome.INFRA_ERROR, Outcome.UNREFEREEABLE}
