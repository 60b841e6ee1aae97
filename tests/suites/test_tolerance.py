"""Tolerance policies: the formula, its caps, and names that survive a file."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kernelward.suites.emulate import MEMBERS
from kernelward.suites.errors import InputError
from kernelward.suites.tolerance import BASE_MEMBERS, FAN_IN_LIMIT, TolerancePolicy, tolerance

U = 2.0**-24


@pytest.mark.parametrize(
    ("n", "envelope", "dtype", "expected"),
    [
        (1, 0.0, torch.float32, 16 * U),
        (0, 0.0, torch.float32, 16 * U),
        (4096, 0.0, torch.float32, 128 * U),
        (4096, 1e-3, torch.float32, 4e-3),
        (1, 0.0, torch.float16, 2.0**-7),
        (1, 0.0, torch.bfloat16, 2.0**-4),
        (1, 0.0, torch.float64, 16 * U),  # candidates compute in float32 even where the output is wider
        (2**31, 0.0, torch.float32, 2 * U * math.sqrt(FAN_IN_LIMIT)),
    ],
)
def test_tolerance_is_the_largest_of_its_three_terms(
    n: int, envelope: float, dtype: torch.dtype, expected: float
) -> None:
    assert tolerance(n, envelope, dtype) == pytest.approx(expected, rel=1e-12)


@given(n=st.integers(0, 2**34), envelope=st.floats(0, 1), more=st.floats(0, 1))
def test_tolerance_never_falls_when_more_is_allowed(n: int, envelope: float, more: float) -> None:
    base = tolerance(n, envelope, torch.float32)
    assert tolerance(n, envelope + more, torch.float32) >= base
    assert tolerance(2 * n, envelope, torch.float32) >= base
    assert tolerance(n, envelope, torch.float16) >= base
    assert base >= 4 * envelope


def test_fan_in_alone_never_makes_an_entry_inadmissible() -> None:
    assert tolerance(2**40, 0.0, torch.float32) < TolerancePolicy().cap()


@pytest.mark.parametrize(
    ("precision", "dtype", "cap"),
    [
        ("fp32", torch.float32, 5e-3),
        ("tf32", torch.float32, 3e-2),
        ("fp16", torch.float32, 3e-2),
        ("bf16", torch.float32, 1e-1),
        ("fp32", torch.float16, 3e-2),
        ("fp32", torch.bfloat16, 1e-1),
        ("bf16", torch.float16, 1e-1),
        ("tf32", torch.bfloat16, 1e-1),
    ],
)
def test_half_precision_entries_allow_at_least_their_own_precision(
    precision: str, dtype: torch.dtype, cap: float
) -> None:
    policy = TolerancePolicy.parse(precision)
    assert policy.cap(dtype) == cap
    assert tolerance(1, 0.0, dtype) < cap


def test_every_policy_names_members_that_exist() -> None:
    for text in ("fp32", "tf32", "fp16", "bf16", "fp32+fast_math+one_pass_variance"):
        policy = TolerancePolicy.parse(text)
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            names = policy.members(dtype)
            assert set(BASE_MEMBERS) <= set(names)
            assert set(names) - {"reference"} <= set(MEMBERS)
            assert len(set(names)) == len(names)


def test_float32_allows_no_shorter_type_and_no_fast_math() -> None:
    assert TolerancePolicy().members() == BASE_MEMBERS
    assert "fp16" in TolerancePolicy().members(torch.float16)
    assert "bf16" not in TolerancePolicy().members(torch.float16)


@given(
    precision=st.sampled_from(["fp32", "tf32", "fp16", "bf16"]),
    extra=st.lists(st.sampled_from(["fast_math", "one_pass_variance"])),
    ties=st.sampled_from(["first", "value"]),
)
def test_a_policy_is_read_back_from_its_name(precision: str, extra: list[str], ties: str) -> None:
    policy = TolerancePolicy.parse("+".join([precision, *extra, f"ties={ties}"]))
    assert TolerancePolicy.parse(policy.name) == policy
    assert (policy.precision, policy.ties, set(policy.extra)) == (precision, ties, set(extra))


@pytest.mark.parametrize("text", ["", "fp64", "fp32+fast", "fp32+ties=last", "fast_math"])
def test_an_unknown_policy_is_the_users_error(text: str) -> None:
    with pytest.raises(InputError, match="tolerance policy"):
        TolerancePolicy.parse(text)
