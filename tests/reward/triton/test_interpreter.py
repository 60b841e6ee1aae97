"""Triton candidates on a CPU, through the sandbox: guards, autotuning, libdevice, and what stays unjudged."""

from collections.abc import Iterator

import pytest
import torch
from kernelward.reward.sandbox.buffers import OutputSpec
from kernelward.reward.sandbox.engine import variants
from kernelward.reward.sandbox.failure import ChildFailure
from kernelward.reward.sandbox.session import RunReply, Zygote
from kernelward.reward.triton.gaps import LIBDEVICE

pytest.importorskip("triton", reason="Triton is an extra")

HEAD = """
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

"""
TAIL = """

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        n = x.numel()
        kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n{block})
        return y
"""
X = torch.linspace(0.05, 0.95, 50)
PLAIN = {"guards": False}


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote("triton-interpreter") as made:
        made.report  # noqa: B018 - wait until it is warm
        yield made


def kernel(body: str, decorators: str = "", block: str = ", BLOCK=32") -> str:
    """A candidate with one elementwise kernel; `i` are the offsets, `m` those inside."""
    lines = "\n    ".join(["i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)", "m = i < n", *body.splitlines()])
    return f"{HEAD}{decorators}\n@triton.jit\ndef kernel(x, y, n, BLOCK: tl.constexpr):\n    {lines}\n" + TAIL.replace(
        "{block}", block
    )


def run(
    zygote: Zygote, source: str, x: torch.Tensor = X, variant: dict | None = None, *outputs: OutputSpec
) -> RunReply:
    with zygote.spawn() as child:
        assert child.load(source).engine == "triton-interpreter"
        child.build([])
        return child.run([x], outputs or [OutputSpec(tuple(x.shape), x.dtype)], variant=variant)


def failure(zygote: Zygote, source: str, x: torch.Tensor = X) -> ChildFailure:
    with pytest.raises(ChildFailure) as caught:
        run(zygote, source, x)
    return caught.value


def test_a_masked_kernel_is_right(zygote: Zygote) -> None:
    reply = run(zygote, kernel("tl.store(y + i, tl.load(x + i, mask=m) * 2, mask=m)"))
    assert torch.equal(reply.outputs[0], X * 2)
    assert reply.findings == ()


@pytest.mark.parametrize(
    "body",
    [
        "tl.store(y + i, tl.load(x + i) * 2, mask=m)",
        "tl.store(y + i, tl.load(x + i, mask=m) * 2)",
        "tl.store(y + i, tl.load(x + i - 1, mask=m) * 2, mask=m)",
        "tl.atomic_add(y + i, tl.load(x + i, mask=m))",
        "tl.store(y + i * 1000000, tl.load(x + i, mask=m), mask=m)",
    ],
    ids=["load", "store", "before", "atomic", "far"],
)
def test_an_access_outside_of_every_tensor_is_told(zygote: Zygote, body: str) -> None:
    told = failure(zygote, kernel(body))
    assert (told.kind, told.reason, told.phase) == ("runtime_error", "out-of-bounds", "run")
    assert "outside of every tensor" in told.message


def test_a_caught_out_of_bounds_is_still_a_finding(zygote: Zygote) -> None:
    source = (
        kernel("tl.store(y + i, tl.load(x + i, mask=m) * 2)")
        .replace("        kernel[", "        try:\n          kernel[")
        .replace("        return y", "        except Exception:\n          y = x * 2\n        return y")
    )
    reply = run(zygote, source)
    assert torch.equal(reply.outputs[0], X * 2)
    assert [finding["code"] for finding in reply.findings] == ["out-of-bounds"]


def test_a_plain_run_lets_stray_lanes_pass_as_a_gpu_would(zygote: Zygote) -> None:
    reply = run(zygote, kernel("tl.store(y + i, tl.load(x + i) * 2)"), X, PLAIN)
    assert torch.equal(reply.outputs[0], X * 2)
    assert reply.findings == ()
    assert variants("triton-interpreter", strict=False) == [PLAIN]
    assert variants("triton-interpreter", strict=True) == [{}]


@pytest.mark.parametrize(
    "forward",
    [
        "table = torch.tensor([x.data_ptr(), y.data_ptr()])\n        kernel[(1,)](table, n, 64)",
        "part = torch.cat([x, x])[25:75]\n        part.copy_(x)\n        direct[(1,)](part[:50], y, n, 64)",
        "direct[(1,)](x.new_zeros(200)[75:125].copy_(x), y, n, 64)",
    ],
    ids=["pointers-in-a-tensor", "view", "offset"],
)
def test_honest_memory_is_never_outside(zygote: Zygote, forward: str) -> None:
    source = f"""{HEAD}
@triton.jit
def kernel(table, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(table).to(tl.pointer_type(tl.float32))
    y = tl.load(table + 1).to(tl.pointer_type(tl.float32))
    tl.store(y + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)


@triton.jit
def direct(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)


class ModelNew:
    def __call__(self, x):
        y, n = torch.empty_like(x), x.numel()
        {forward}
        return y
"""
    reply = run(zygote, source)
    assert torch.equal(reply.outputs[0], X * 2)
    assert reply.findings == ()


def test_autotuning_takes_its_first_configuration(zygote: Zygote) -> None:
    configs = ", ".join(f"triton.Config({{'BLOCK': {n}}}, num_warps=2)" for n in (16, 64))
    tuned = f"@triton.autotune(configs=[{configs}], key=['n'])"
    reply = run(zygote, kernel("tl.store(y + i, tl.load(x + i, mask=m) + BLOCK, mask=m)", tuned, block=""))
    assert torch.equal(reply.outputs[0], X + 16)


REFERENCES = {
    "abs": lambda x: x.abs(),
    "rcp_rn": torch.reciprocal,
    "rsqrt": torch.rsqrt,
    "sqrt_rn": torch.sqrt,
    "lgamma": torch.lgamma,
    "exp10": lambda x: 10**x,
    "cbrt": lambda x: x ** (1 / 3),
    "rint": torch.round,
    "nearbyint": torch.round,
    "finitef": torch.isfinite,
    "acosh": lambda x: torch.acosh(x),
}


def test_supplied_libdevice_functions_are_right(zygote: Zygote) -> None:
    """Every function of one argument against torch's, in one kernel launch each."""
    from kernelward.reward.triton import gaps

    names = [name for name in gaps._UNARY.split() if name not in ("isnan", "isinf", "finitef", "signbit")]
    lines = "\n".join(
        f"@triton.jit\ndef k_{name}(x, y, n, BLOCK: tl.constexpr):\n"
        f"    i = tl.arange(0, BLOCK)\n    m = i < n\n"
        f"    tl.store(y + i, libdevice.{name}(tl.load(x + i, mask=m, other=0.5)), mask=m)\n"
        for name in names
    )
    source = f"""{HEAD}{lines}
class ModelNew:
    def __call__(self, x):
        outs = []
        for kernel in ({", ".join(f"k_{name}" for name in names)},):
            y = torch.empty_like(x)
            kernel[(1,)](x, y, x.numel(), 64)
            outs.append(y)
        return outs
"""
    reply = run(zygote, source, X, None, *[OutputSpec((50,), torch.float32)] * len(names))
    for name, got in zip(names, reply.outputs, strict=True):
        plain = name.removeprefix("fast_").removesuffix("f") if name.startswith("fast_") else name
        reference = REFERENCES.get(plain) or getattr(torch, plain)
        torch.testing.assert_close(got, reference(X), rtol=2e-6, atol=2e-6, equal_nan=True, msg=name)


def test_supplied_functions_of_several_arguments_and_predicates_are_right(zygote: Zygote) -> None:
    body = (
        "v = tl.load(x + i, mask=m)\n"
        "a = libdevice.pow(v, 2.0) + libdevice.fma(v, v, 1.0) + libdevice.fmod(v, 0.3)\n"
        "a += libdevice.copysign(v, -1.0) + libdevice.max(v, 0.5) + libdevice.hypot(v, 2.0)\n"
        "tl.store(y + i, tl.where(libdevice.isnan(v) != 0, 7.0, a), mask=m)"
    )
    x = X.clone()
    x[3] = float("nan")
    want = x**2 + (x * x + 1) + torch.fmod(x, 0.3) - x + torch.clamp(x, min=0.5) + torch.hypot(x, torch.tensor(2.0))
    want[3] = 7.0
    torch.testing.assert_close(run(zygote, kernel(body), x).outputs[0], want, rtol=1e-6, atol=1e-6)


def test_the_table_and_the_syntax_agree() -> None:
    import os
    import subprocess
    import sys

    code = (
        "from kernelward.reward.triton import libdevice as l;"
        "print(*sorted({*l.UNARY, *l.PREDICATES, *l.BINARY, 'fma'}))"
    )
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert set(done.stdout.split()) == LIBDEVICE


def test_bf16_is_unrefereeable_whatever_it_comes_from(zygote: Zygote) -> None:
    good = kernel("tl.store(y + i, tl.load(x + i, mask=m) * 2, mask=m)")
    assert (
        failure(zygote, good.replace("* 2", "* 2.0").replace("tl.store", "z = tl.bfloat16\n    tl.store")).phase
        == "load"
    )
    told = failure(zygote, good, X.bfloat16())
    assert (told.kind, told.reason, told.phase, told.alive) == ("unrefereeable", "interpreter", "run", True)


def test_a_kernel_error_is_the_candidates(zygote: Zygote) -> None:
    told = failure(zygote, kernel("tl.static_assert(BLOCK == 7)\ntl.store(y + i, 0.0, mask=m)"))
    assert (told.kind, told.reason, told.exception) == ("runtime_error", "exception", "InterpreterError")


def test_block_pointers_are_checked_like_other_pointers(zygote: Zygote) -> None:
    block = "tl.make_block_ptr({p}, (n,), (1,), (tl.program_id(0) * BLOCK,), (BLOCK,), (0,))"
    x, y = block.format(p="x"), block.format(p="y")
    right = f"tl.store({y}, tl.load({x}, boundary_check=(0,)) * 2, boundary_check=(0,))"
    assert torch.equal(run(zygote, kernel(right)).outputs[0], X * 2)
    assert failure(zygote, kernel(right.replace(", boundary_check=(0,)) * 2", ") * 2"))).reason == "out-of-bounds"
