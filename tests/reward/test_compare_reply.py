"""From a child's reply to a result."""

import math
from dataclasses import replace

import pytest
import torch
from kernelward.reward.compare_reply import differs, judge_reply
from kernelward.reward.sandbox.session import RunReply
from kernelward.reward.truth_cache import Reference, compute_reference
from kernelward.reward.verdict import Outcome
from kernelward.suites.entry import Entry
from kernelward.suites.problem import Problem
from kernelward.suites.protocol import load_protocol
from kernelward.suites.validity import Measured, admit

KERNELWARD = load_protocol("kernelward")
KERNELBENCH = load_protocol("kernelbench")


@pytest.fixture(scope="module")
def measured(tiny_relu: Problem) -> Measured:
    admission = admit(tiny_relu, Entry(), "cpu", seeds=2)
    assert admission.measured is not None
    return admission.measured


@pytest.fixture(scope="module")
def truth(tiny_relu: Problem) -> Reference:
    return compute_reference(tiny_relu, Entry(), 7, "cpu", KERNELWARD)


@pytest.fixture(scope="module")
def official(tiny_relu: Problem) -> Reference:
    return compute_reference(tiny_relu, Entry(), 7, "cpu", KERNELBENCH)


def reply(output: torch.Tensor, *codes: str, changed: bool = False) -> RunReply:
    findings = tuple({"code": code, "message": f"about {code}"} for code in codes)
    return RunReply((output,), changed, findings, 0.25, 0.0)


def right(reference: Reference) -> torch.Tensor:
    return torch.relu(reference.inputs[0])


def test_the_right_answer_is_right(truth: Reference, measured: Measured) -> None:
    judged = judge_reply(reply(right(truth)), truth, measured, KERNELWARD)
    assert (judged.ok, judged.reason, judged.err, judged.seconds) == (True, "", 0.0, 0.25)


def test_a_wrong_value_says_where_and_by_how_much(truth: Reference, measured: Measured) -> None:
    output = right(truth)
    output[3, 7] += 1.0
    judged = judge_reply(reply(output), truth, measured, KERNELWARD)
    assert (judged.ok, judged.outcome, judged.reason) == (False, Outcome.INCORRECT, "value")
    assert "[3, 7]" in judged.message
    assert judged.err is not None
    assert judged.err > 0.1
    assert judged.tolerance == measured.tolerance[0]


def test_nan_is_a_reason_of_its_own_under_both_comparisons(
    truth: Reference, official: Reference, measured: Measured
) -> None:
    output = right(truth)
    output[0, 0] = math.nan
    assert judge_reply(reply(output), truth, measured, KERNELWARD).reason == "nan"
    judged = judge_reply(reply(output), official, None, KERNELBENCH)
    assert (judged.ok, judged.reason, judged.err) == (False, "nan", math.inf)


@pytest.mark.parametrize(("shift", "ok"), [(0.009, True), (0.011, False)])
def test_allclose_protocols_go_by_their_own_tolerance(official: Reference, shift: float, ok: bool) -> None:
    output = right(official)
    row, column = (output == 0).nonzero()[0]
    output[row, column] = shift
    judged = judge_reply(reply(output), official, None, KERNELBENCH)
    assert (judged.ok, judged.tolerance) == (ok, 0.01)
    assert judged.err == pytest.approx(shift / (1 + shift))


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("illegal-access", Outcome.RUNTIME_ERROR),
        ("out-of-bounds-write", Outcome.RUNTIME_ERROR),
        ("launch-error", Outcome.RUNTIME_ERROR),
        ("deadlock", Outcome.TIMEOUT),
        ("race", Outcome.INCORRECT),
        ("warp-synchronous", Outcome.INCORRECT),
    ],
)
def test_findings_decide_even_where_the_values_are_right(
    truth: Reference, official: Reference, measured: Measured, code: str, outcome: Outcome
) -> None:
    judged = judge_reply(reply(right(truth), code), truth, measured, KERNELWARD)
    assert (judged.ok, judged.outcome, judged.reason, judged.message) == (False, outcome, code, f"about {code}")
    assert judge_reply(reply(right(official), code), official, None, KERNELBENCH).ok


def test_an_unknown_finding_decides_nothing(truth: Reference, measured: Measured) -> None:
    assert judge_reply(reply(right(truth), "slow-path"), truth, measured, KERNELWARD).ok


def test_changed_inputs_count_unless_the_reference_changes_them_too(
    truth: Reference, official: Reference, measured: Measured
) -> None:
    changed = reply(right(truth), changed=True)
    assert judge_reply(changed, truth, measured, KERNELWARD).reason == "input-mutated"
    assert judge_reply(changed, truth, measured, KERNELWARD, side_effects=False).ok
    assert judge_reply(changed, official, None, KERNELBENCH).ok


def test_aliasing_is_only_blamed_where_the_values_are_right(truth: Reference, measured: Measured) -> None:
    aliased = reply(right(truth), "output-aliases-input")
    assert judge_reply(aliased, truth, measured, KERNELWARD).reason == "aliased"
    wrong = reply(truth.inputs[0].clone(), "output-aliases-input")
    assert judge_reply(wrong, truth, measured, KERNELWARD).reason == "value"


def test_two_runs_differ_only_beyond_twice_the_tolerance(truth: Reference, measured: Measured) -> None:
    assert truth.truth is not None
    first = right(truth) + 1.0
    step = measured.tolerance[0] * (1 + float(truth.truth.scales[0].min()))  # type: ignore[union-attr]
    assert not differs((first,), (first + step * 0.5,), truth, measured)
    assert differs((first,), (first + step * 100,), truth, measured)
    assert not differs((torch.full_like(first, math.nan),), (torch.full_like(first, math.nan),), truth, measured)


def test_a_protocol_without_guards_does_not_look_at_them(truth: Reference, measured: Measured) -> None:
    plain = replace(KERNELWARD, adversarial=False)
    assert judge_reply(reply(right(truth), "out-of-bounds-write"), truth, measured, plain).ok
