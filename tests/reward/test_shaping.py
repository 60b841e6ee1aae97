"""What each verdict is paid."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelward.reward.shaping import Brevity, Shaping, Speed
from kernelward.reward.verdict import Outcome, Verdict
from kernelward.suites.errors import InputError
from kernelward.suites.yamlnode import Node


def read(text: str) -> Shaping:
    return Shaping.from_node(Node.parse(text, "reward.yaml"))


def verdict(outcome: Outcome, reason: str = "", speedup: float | None = None) -> Verdict:
    return Verdict(outcome, reason, speedup=speedup)


def test_a_correct_candidate_earns_compile_and_correct() -> None:
    assert read("{compile: 0.25, correct: 0.5}").reward(verdict(Outcome.CORRECT)) == 0.75


@pytest.mark.parametrize(
    ("outcome", "paid"),
    [
        (Outcome.INCORRECT, 0.25),
        (Outcome.RUNTIME_ERROR, 0.25),
        (Outcome.COMPILE_ERROR, 0.0),
        (Outcome.TIMEOUT, 0.0),
        (Outcome.REJECTED, 0.0),
    ],
)
def test_only_what_was_built_earns_the_compile_part(outcome: Outcome, paid: float) -> None:
    assert read("compile: 0.25").reward(verdict(outcome)) == paid


@pytest.mark.parametrize("outcome", [Outcome.INFRA_ERROR, Outcome.UNREFEREEABLE])
def test_no_verdict_is_no_reward(outcome: Outcome) -> None:
    assert read("{compile: 0.1, reasons: {value: -1}}").reward(verdict(outcome, "value")) is None


def test_a_reason_goes_before_its_outcome() -> None:
    shaping = read("{compile: 0, reasons: {incorrect: -0.5, race: -0.75, timeout: -0.25}}")
    assert shaping.reward(verdict(Outcome.INCORRECT, "race")) == -0.75
    assert shaping.reward(verdict(Outcome.INCORRECT, "value")) == -0.5
    assert shaping.reward(verdict(Outcome.TIMEOUT, "run")) == -0.25
    assert shaping.reward(verdict(Outcome.REJECTED, "x")) == 0.0


def test_a_reason_never_changes_what_a_correct_candidate_earns() -> None:
    assert read("{compile: 0, reasons: {race: -0.5}}").reward(verdict(Outcome.CORRECT, "race")) == 1.0


def test_speed_pays_every_doubling_the_same_up_to_the_cap() -> None:
    speed = Speed(weight=3.0, cap=8.0)
    assert [round(speed.bonus(s), 9) for s in (0.5, 1.0, 2.0, 4.0, 8.0, 1e30, math.inf)] == [0, 0, 1, 2, 3, 3, 3]
    assert speed.bonus(None) == speed.bonus(math.nan) == speed.bonus(-3.0) == 0.0


def test_speed_is_paid_to_correct_candidates_only() -> None:
    shaping = read("{compile: 0, speed: {weight: 0.5, cap: 4}}")
    assert shaping.reward(verdict(Outcome.CORRECT, speedup=2.0)) == 1.25
    assert shaping.reward(verdict(Outcome.INCORRECT, speedup=4.0)) == 0.0


def test_brevity_pays_shorter_correct_candidates_more() -> None:
    shaping = read("{compile: 0, brevity: {weight: 0.5, characters: 100}}")
    assert [shaping.reward(verdict(Outcome.CORRECT), n) for n in (0, 50, 100, 10_000)] == [1.5, 1.25, 1.0, 1.0]
    assert shaping.reward(verdict(Outcome.INCORRECT), 0) == 0.0


def test_the_sum_is_clamped() -> None:
    shaping = read("{correct: 5, reasons: {rejected: -9}, clamp: [-0.5, 3]}")
    assert shaping.reward(verdict(Outcome.CORRECT)) == 3.0
    assert shaping.reward(verdict(Outcome.REJECTED)) == -0.5


finite = st.floats(-1e300, 1e300)


@given(
    outcome=st.sampled_from([o for o in Outcome if o.decided]),
    speedup=st.none() | st.floats(),
    characters=st.integers(0, 10**12),
    compile=finite,
    correct=finite,
    amount=finite,
)
def test_every_reward_is_finite_and_within_the_clamp(
    outcome: Outcome, speedup: float | None, characters: int, compile: float, correct: float, amount: float
) -> None:
    shaping = Shaping(compile, correct, {"race": amount}, Speed(1.0), Brevity(1.0, 10), (-1.0, 2.0))
    paid = shaping.reward(verdict(outcome, "race", speedup), characters)
    assert paid is not None
    assert -1.0 <= paid <= 2.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("correct: yes", "reward.yaml:1: key `correct`: expected a finite number"),
        ("correct: .inf", "key `correct`: expected a finite number"),
        ("compile: 0.1\ncorect: 1", "reward.yaml:2: key `corect`: unknown key. Did you mean `correct`?"),
        ("compile: -1", "key `compile`: -1 is below the minimum"),
        ("speed:\n  cap: 4", "missing `weight`"),
        ("speed:\n  weight: 1\n  cap: 1.0", "reward.yaml:3: key `speed.cap`"),
        ("brevity: {weight: 1, characters: 0}", "below the minimum"),
        ("clamp: [1]", "give two numbers"),
        ("clamp: [1, 1]", "must be below"),
        ("reasons: {correct: 1}", "key `reasons.correct`"),
        ("reasons: {infra_error: -1}", "no verdict is no reward"),
        ("reasons: [race]", "expected a mapping"),
        ("reasons: {shape-specialized: -1}", "Did you mean `shape-specialised`?"),
        ("reasons: {run_time_error: -1}", "Did you mean `runtime_error`?"),
    ],
)
def test_errors_name_the_file_the_line_and_the_key(text: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        read(text)
    assert said in str(error.value)
    assert str(error.value).startswith("reward.yaml:")


@pytest.mark.parametrize(
    "text",
    [
        "correct: 0",
        "reasons: {shape-specialised: 1.0}",
        "{compile: 0.0, reasons: {rejected: 1.0}}",
        "{compile: 0.5, clamp: [-1, 0.5]}",
    ],
)
def test_a_shaping_that_pays_wrong_kernels_like_correct_ones_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="not correct"):
        read(text)


def test_any_other_reason_may_have_a_price() -> None:
    assert (
        read("{compile: 0, reasons: {launch-bounds: -0.5}}").reward(verdict(Outcome.INCORRECT, "launch-bounds")) == -0.5
    )


def test_a_part_of_the_reward_for_a_reason_is_allowed() -> None:
    shaping = read("{compile: 0, reasons: {shape-specialised: 0.5}}")
    assert shaping.reward(verdict(Outcome.INCORRECT, "shape-specialised")) == 0.5
