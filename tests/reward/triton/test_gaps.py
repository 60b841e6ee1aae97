"""What Triton's interpreter cannot judge is found in the syntax, and nothing else is."""

import pytest
from kernelward.reward.triton.gaps import LIBDEVICE, interpreter_gap


@pytest.mark.parametrize(
    ("source", "gap"),
    [
        ("y = x.to(tl.bfloat16)", "bfloat16"),
        ("y = torch.empty(3, dtype=torch.bfloat16)", "bfloat16"),
        ("y = x.bfloat16()", "bfloat16"),
        ("y = getattr(tl, 'bfloat16')", "bfloat16"),
        ("y = x.to(tl.float8e4nv)", "float8e4nv"),
        ("y = tl.inline_asm_elementwise('mov', '=r', [x], tl.int32, True, 1)", "inline assembly"),
        ("y = tl.extra.cuda.libdevice.brev(x)", "libdevice.brev"),
        ("from triton.language.extra import libdevice as ld\ny = ld.j0(x)", "libdevice.j0"),
        ("from triton.language.extra.libdevice import tanh, normcdf", "libdevice.normcdf"),
    ],
)
def test_gaps_are_named(source: str, gap: str) -> None:
    assert interpreter_gap(source) == gap


@pytest.mark.parametrize(
    "source",
    [
        "# tl.bfloat16 would be faster\ny = x",
        '"""Works for bfloat16 and float8 as well; no inline_asm_elementwise."""\ny = x',
        "y = tl.extra.cuda.libdevice.tanh(x) + libdevice.pow(x, 2.0)",
        "from triton.language.extra.libdevice import erf",
        "def f(:",
        "y = x.to(tl.float16)",
        "message = 'use bfloat16 instead'",
    ],
)
def test_near_misses_are_no_gaps(source: str) -> None:
    assert interpreter_gap(source) is None


def test_common_functions_are_supplied() -> None:
    assert {"tanh", "erf", "exp", "log1p", "rsqrt", "pow", "fast_expf", "isnan", "fma", "round"} <= LIBDEVICE
