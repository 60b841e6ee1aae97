"""Which overload a C++ call of a torch operator means."""

from typing import Any

import pytest
import torch
from kernelward.reward.cuda.operators import run

X = torch.arange(1.0, 7.0).reshape(2, 3)


@pytest.mark.parametrize(
    "name",
    ["amax", "amin", "argmax", "argmin", "cumprod", "cumsum", "log_softmax", "logsumexp", "mean", "nansum", "prod",
     "softmax", "sum"],
)  # fmt: skip
@pytest.mark.parametrize("method", [False, True])
def test_an_integer_is_a_dimension_and_never_a_dtype(name: str, method: bool) -> None:
    found = run(f".{name}" if method else name, (X, 1))
    torch.testing.assert_close(found, getattr(torch, name)(X, 1), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["mean", "nansum", "sum"])
def test_one_integer_stands_for_a_list_of_dimensions_also_before_a_flag(name: str) -> None:
    torch.testing.assert_close(run(name, (X, -1, True)), getattr(torch, name)(X, -1, keepdim=True), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("sum", (torch.float64,), X.double().sum()),
        ("cumsum", (1, torch.float64), X.double().cumsum(1)),
        ("softmax", (1, torch.float64), X.double().softmax(1)),
        ("var", (1,), X.var()),  # in C++ 1 is the flag `unbiased` before it is a list of one dimension
    ],
)
def test_a_dtype_and_a_flag_are_what_c_plus_plus_takes_them_for(
    name: str, values: tuple[Any, ...], expected: Any
) -> None:
    found = run(name, (X, *values))
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
