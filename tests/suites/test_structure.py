import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernelward.suites.structure import Structure, find_structure, keep, looks_uniform
from torch import Tensor


def draws(make: object) -> list[Tensor]:
    result = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        result.append(make())  # type: ignore[operator]
    return result


@pytest.mark.parametrize(
    ("make", "structure"),
    [
        (lambda: torch.rand(8, 9), ""),
        (lambda: torch.rand(8, 8), ""),
        (lambda: torch.tril(torch.rand(8, 8)), "lower"),
        (lambda: torch.triu(torch.rand(3, 8, 8)), "upper"),
        (lambda: torch.diag(torch.rand(8)), "diagonal"),
        (lambda: (lambda a: (a + a.T) / 2)(torch.rand(8, 8)), "symmetric"),
        (lambda: (lambda a: a @ a.T + torch.eye(8))(torch.rand(8, 8)), "positive_definite"),
        (lambda: torch.rand(8, 9).softmax(-1), "probability_rows"),
        (lambda: torch.randint(0, 2, (8, 9)).float(), "mask"),
        (lambda: torch.zeros(8, 8).masked_fill(torch.ones(8, 8).triu(1).bool(), float("-inf")), "mask"),
        (lambda: torch.randint(0, 2, (33,)).float() * 2 - 1, "labels"),
        (lambda: torch.randint(0, 10, (64,)).float(), "labels"),
        (lambda: torch.rand(64, 9) * (torch.rand(64, 9) < 0.3), "sparse"),
        (lambda: torch.rand(()), ""),
        (lambda: torch.rand(2), ""),
    ],
)
def test_structure_is_found(make: object, structure: Structure) -> None:
    assert find_structure(draws(make)) == structure


def test_structure_must_hold_in_every_draw() -> None:
    assert find_structure([torch.tril(torch.rand(8, 8)), torch.rand(8, 8)]) == ""


@pytest.mark.parametrize(
    ("make", "uniform"),
    [
        (lambda: torch.rand(1000), True),
        (lambda: torch.rand(1000) * 7 - 3, True),
        (lambda: torch.randn(1000), False),
        (lambda: torch.rand(1000) ** 3, False),
        (lambda: torch.ones(1000), False),
        (lambda: torch.rand(10), False),
    ],
)
def test_uniform_draws_are_recognised(make: object, uniform: bool) -> None:
    assert looks_uniform(draws(make)) is uniform


own_of = {
    "lower": lambda: torch.tril(torch.rand(6, 6)),
    "upper": lambda: torch.triu(torch.rand(2, 6, 6)),
    "diagonal": lambda: torch.diag(torch.rand(6)),
    "sparse": lambda: torch.rand(6, 7) * (torch.rand(6, 7) < 0.5),
    "symmetric": lambda: (lambda a: (a + a.T) / 2)(torch.rand(6, 6)),
    "positive_definite": lambda: (lambda a: a @ a.T + torch.eye(6))(torch.rand(6, 6)),
    "probability_rows": lambda: torch.rand(6, 7).softmax(-1),
}


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(own_of)), st.integers(0, 10**6), st.sampled_from([1e-3, 1.0, 1e3]))
def test_new_values_keep_the_structure(structure: Structure, seed: int, size: float) -> None:
    torch.manual_seed(seed)
    own = own_of[structure]()
    new = keep(torch.randn(own.shape) * size, own, structure, "real")
    assert new.shape == own.shape
    assert torch.isfinite(new).all()
    if structure in ("lower", "upper", "diagonal", "sparse"):
        assert torch.equal(new == 0, own == 0)
    elif structure == "symmetric":
        assert torch.equal(new, new.mT)
    elif structure == "positive_definite":
        assert torch.linalg.cholesky_ex(new.double())[1].eq(0).all()
    else:
        assert (new > 0).all()
        assert torch.allclose(new.sum(-1), torch.ones(new.shape[:-1]))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1e-3, 1.0, 1e4]))
def test_new_values_stay_in_their_domain(seed: int, size: float) -> None:
    torch.manual_seed(seed)
    new, own = torch.randn(40) * size, torch.rand(40)
    assert (keep(new, own, "", "positive") > 0).all()
    unit = keep(new, own, "", "unit")
    assert ((unit > 0) & (unit < 1)).all()
    assert torch.equal(keep(new, own, "", "real"), new)


def test_a_triangle_in_a_positive_domain_stays_a_triangle() -> None:
    own = torch.tril(torch.rand(6, 6))
    new = keep(torch.randn(6, 6), own, "lower", "positive")
    assert torch.equal(new == 0, own == 0)
    assert (new[own != 0] > 0).all()
