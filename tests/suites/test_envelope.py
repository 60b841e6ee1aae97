"""The errors of implementations known to be right on one draw."""

import pytest
import torch
from kernelward.suites.draw import draw_entry
from kernelward.suites.entry import Entry
from kernelward.suites.envelope import WITNESS_BYTES, draw_errors, strain
from kernelward.suites.oracle import compute_truth
from kernelward.suites.problem import Problem, problem_from_source

CANCELS = """
import torch
size = 64
class Model(torch.nn.Module):
    def forward(self, x):
        return x.sum(-1), x.argmax(-1)
def get_inputs():
    x = torch.randn(65, size)
    return [torch.cat([x, 1e4 - x.flip(-1), torch.full((65, size), -1e4)], -1)]
def get_init_inputs():
    return []
"""


@pytest.fixture(scope="module")
def cancels() -> Problem:
    return problem_from_source(CANCELS, "cancels")


def test_a_second_implementation_says_how_well_a_draw_can_be_computed(cancels: Problem) -> None:
    """Over several draws it is the one or the other that errs more; the reference alone would miss half of them."""
    above = 0
    for seed in range(6):
        drawn = draw_entry(cancels, Entry.make(), seed)
        truth = compute_truth(drawn)
        errors = draw_errors(drawn, truth)
        assert errors[0] >= truth.reference_errors[0]
        assert errors[1] == 0.0
        above += errors[0] > truth.reference_errors[0]
    assert above > 0


def test_a_large_draw_is_left_to_the_references_own_error(cancels: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = draw_entry(cancels, Entry.make(), 1)
    truth = compute_truth(drawn)
    monkeypatch.setattr("kernelward.suites.envelope.WITNESS_BYTES", 1000)
    assert WITNESS_BYTES > 1000
    assert draw_errors(drawn, truth) == truth.reference_errors


def test_a_problem_that_cannot_be_emulated_keeps_the_references_own_error() -> None:
    source = CANCELS.replace("return x.sum(-1), x.argmax(-1)", "return raises_if_watched(x)") + (
        "\nfrom torch.utils._python_dispatch import _get_current_dispatch_mode_stack\n"
        "def raises_if_watched(x):\n"
        "    if any(type(m).__name__ == 'Emulation' for m in _get_current_dispatch_mode_stack()):\n"
        "        raise RuntimeError('not here')\n"
        "    return x.sum(-1)\n"
    )
    drawn = draw_entry(problem_from_source(source, "watchful"), Entry.make(), 1)
    truth = compute_truth(drawn)
    assert torch.isfinite(torch.tensor(truth.reference_errors)).all()
    assert draw_errors(drawn, truth) == truth.reference_errors


def test_strain_is_measured_against_what_the_tolerance_comes_from() -> None:
    assert strain((1e-6,), (4e-6,)) == pytest.approx(1.0)
    assert strain((1e-6, 3e-6), (4e-6, 4e-6)) == pytest.approx(3.0)
    assert strain((0.0,), (0.0,)) == 0.0
    assert strain((1e-9,), (0.0,)) == float("inf")
    assert strain((), (1e-6,)) == 0.0
