"""Screens: what compiles, what compiles to nothing new, and that a mutant's module level stays in its sandbox."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernelward.mutants.mutant import Mutant, Substrate
from kernelward.mutants.screens import Screened, Screener, ScreenError, screen
from kernelward.reward.cuda.compiled_code import code_hash
from kernelward.reward.cuda.engine_compile import python_hash
from kernelward.reward.sandbox.limits import Limits
from kernelward.reward.sandbox.session import Zygote
from kernelward.suites.problem import find_problem

SOURCE = (Path(__file__).parents[2] / "examples" / "kernels" / "cuda" / "relu.py").read_text()
SUBSTRATE = Substrate("cuda/relu", "relu", "cuda", "naive", SOURCE)
TRITON = "import triton\n\n@triton.jit\ndef kernel(x):\n    '''Says nothing.'''\n    y = x + 1\n"


@pytest.fixture(scope="module")
def screener() -> Iterator[Screener]:
    with Screener("cuda") as made:
        yield made


def mutants(*sources: str, substrate: Substrate = SUBSTRATE) -> list[Mutant]:
    return [
        Mutant(f"m{i}", substrate.name, substrate.hash, "relu", substrate.backend, "op", "boundary", 1, "", source)
        for i, source in enumerate(sources)
    ]


def changed(old: str, new: str, source: str = SOURCE) -> str:
    assert old in source
    return source.replace(old, new, 1)


@pytest.fixture(scope="module")
def screened(screener: Screener) -> dict[str, Screened]:
    weaker = changed("0.0f", "1.0f")
    cases = {
        "same code": changed("0.0f", "(1.0f - 1.0f)"),
        "another constant": weaker,
        "the same constant, computed": changed("0.0f", "(2.0f - 1.0f)"),
        "a line more": changed("__global__", "// nothing\n\n__global__"),
        "device error": changed("0.0f", "0.0f +* undeclared"),
        "host error": changed("return y;", "return nothing;"),
        "host code": changed("256", "128"),
        "python": changed("extension.relu_cuda(", "2 * extension.relu_cuda("),
        "no python": changed("class ModelNew", "class class ModelNew"),
        "exits": changed("class ModelNew", "import os\nos._exit(7)\n\n\nclass ModelNew"),
        "after the exit": weaker + "\n\nUNUSED = 1\n",
    }
    found = screener.screen(mutants(*cases.values()), SUBSTRATE)
    return dict(zip(cases, found, strict=True))


@pytest.mark.parametrize(
    ("case", "state"),
    [
        ("same code", "equivalent"),
        ("another constant", "ready"),
        ("the same constant, computed", "duplicate"),
        ("a line more", "equivalent"),
        ("device error", "compile-error"),
        ("host error", "compile-error"),
        ("host code", "ready"),
        ("python", "ready"),
        ("no python", "compile-error"),
        ("exits", "compile-error"),
        ("after the exit", "ready"),
    ],
)
def test_each_state_by_compiled_code(screened: dict[str, Screened], case: str, state: str) -> None:
    assert screened[case].state == state, screened[case]


def test_a_duplicate_names_the_first_of_its_kind(screened: dict[str, Screened]) -> None:
    assert screened["the same constant, computed"].detail == "m1"
    assert screened["the same constant, computed"].code_hash == screened["another constant"].code_hash


def test_a_compile_error_says_where_and_what(screened: dict[str, Screened]) -> None:
    assert "undeclared" in screened["device error"].detail
    assert "nothing" in screened["host error"].detail
    assert screened["device error"].code_hash == ""


def test_hashes_of_ready_mutants_differ(screened: dict[str, Screened]) -> None:
    ready = [found.code_hash for found in screened.values() if found.state == "ready"]
    assert len(set(ready)) == len(ready)


def test_a_broken_substrate_is_no_substrate(screener: Screener) -> None:
    broken = Substrate("cuda/broken", "relu", "cuda", "naive", changed("0.0f", "0.0f +* undeclared"))
    with pytest.raises(ScreenError, match="undeclared"):
        screener.screen([], broken)


def test_a_template_that_is_not_compiled_counts_by_its_text(screener: Screener) -> None:
    source = changed("__global__ void relu_kernel(const float* __restrict__ x", "TEMPLATE")
    head = "template <typename T>\n__global__ void relu_kernel(const T* __restrict__ x"
    source = changed("TEMPLATE", head, source)  # the launch leaves T to be deduced
    substrate = Substrate("cuda/relu_template", "relu", "cuda", "naive", source)
    sources = (changed("> 0.0f", "> 1.0f", source), changed("y[i] =", "y[i]  =", source))
    weaker, spaced = screener.screen(mutants(*sources, substrate=substrate), substrate)
    assert (weaker.state, weaker.how) == ("ready", "source")
    assert spaced.state == "equivalent"


def test_host_code_that_was_compiled_for_the_substrate_is_not_compiled_again() -> None:
    device = changed("0.0f", "1.0f")
    with Zygote("cuda-compile") as zygote:
        with zygote.spawn(Limits()) as child:
            first = child.load(SOURCE).compiled[0]
        known = {first["host_text"]: "0" * 64}
        with zygote.spawn(Limits()) as child:
            same = child.load(device, {"host_code": known}).compiled[0]
            other = child.load(changed("256", "128"), {"host_code": known}).compiled[0]
    assert (same["host_text"], same["host_code"]) == (first["host_text"], "0" * 64)
    assert other["host_text"] != first["host_text"]
    assert other["host_code"] not in (first["host_code"], "0" * 64)


def test_triton_counts_by_its_syntax_tree() -> None:
    substrate = Substrate("triton/x", "relu", "triton", "naive", TRITON)
    sources = (TRITON.replace("x + 1", "(x  +  1)  # one"), TRITON.replace("+", "-"), TRITON.replace("x + 1", "x +"))
    found = screen(mutants(*sources, substrate=substrate), substrate)
    assert [item.state for item in found] == ["equivalent", "ready", "compile-error"]
    assert {item.how for item in found} == {"source"}


KERNEL = """
import torch
import triton
import triton.language as tl


@triton.jit
def positive(v):
    return tl.maximum(v, 0.0)


@triton.jit
def relu_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(y_ptr + i, positive(x), mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        n = x.numel()
        relu_kernel[(triton.cdiv(n, 256),)](x, y, n, BLOCK=256)
        return y
"""


@pytest.fixture(scope="module")
def triton_screener() -> Iterator[Screener]:
    pytest.importorskip("triton", reason="Triton's kernels are compiled where Triton is installed")
    with Screener("triton") as made:
        yield made


def by_ptx(screener: Screener, source: str, *sources: str) -> list[Screened]:
    substrate = Substrate("triton/relu", "relu", "triton", "naive", source)
    problem = find_problem("relu", Path(__file__).parents[2] / "examples" / "problems")
    return screener.screen(mutants(*sources, substrate=substrate), substrate, problem=problem)


def test_triton_counts_by_its_code_where_that_is_the_same_for_all_shapes(triton_screener: Screener) -> None:
    cases = {
        "same code": changed("return tl.maximum(v, 0.0)", "least = 0.0\n    return tl.maximum(v, least)", KERNEL),
        "a divisor of the declared size": changed("mask=i < n)", "mask=i < n // 16 * 16)", KERNEL),
        "host code": changed("(triton.cdiv(n, 256),)", "(n // 256,)", KERNEL),
        "another constant": changed("0.0)", "1.0)", KERNEL),
        "the same, computed": changed("0.0)", "2.0 - 1.0)", KERNEL),
        "no such value": changed("positive(x)", "positive(x + nothing)", KERNEL),
        "shapes do not fit": changed("positive(x)", "positive(x[:, None] + tl.arange(0, 2)[None, :])", KERNEL),
        "raises": changed("n = x.numel()", "n = x.number()", KERNEL),
    }
    found = dict(zip(cases, by_ptx(triton_screener, KERNEL, *cases.values()), strict=True))
    assert {case: (item.state, item.how) for case, item in found.items()} == {
        "same code": ("equivalent", "ptx"),
        "a divisor of the declared size": ("ready", "ptx"),
        "host code": ("ready", "ptx"),
        "another constant": ("ready", "ptx"),
        "the same, computed": ("duplicate", "ptx"),
        "no such value": ("compile-error", "source"),
        "shapes do not fit": ("compile-error", "source"),
        "raises": ("ready", "source"),
    }
    assert "nothing" in found["no such value"].detail
    assert "number" in found["raises"].detail


def test_triton_code_that_depends_on_shapes_counts_by_its_text_as_well(triton_screener: Screener) -> None:
    source = changed("BLOCK=256)", "BLOCK=triton.next_power_of_2(x.shape[1]) // 64)", KERNEL)
    (same,) = by_ptx(triton_screener, source, changed("i = tl", "i = 0 + tl", source))
    assert (same.state, same.how) == ("ready", "source")
    assert "relu_kernel" in same.detail


def test_a_triton_that_compiles_in_another_way_leaves_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="a hook of Triton is removed where Triton is installed")
    removed = "from triton.runtime.jit import JITFunction\ndel JITFunction._do_compile\n"
    (tmp_path / "sitecustomize.py").write_text(removed)  # imported by every Python that is started from here on
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with Screener("triton") as screener:
        found = by_ptx(screener, KERNEL, changed("i = tl", "i = 0 + tl", KERNEL), changed("def posi", "# posi", KERNEL))
    assert [item.state for item in found] == ["ready", "compile-error"]
    assert (found[0].how, found[0].detail) == (
        "source",
        "this version of Triton has no triton.runtime.jit.JITFunction._do_compile",
    )


def test_documentation_does_not_count_in_python() -> None:
    assert python_hash("def f():\n    '''a'''\n    return 1") == python_hash("def f():\n    return 1  # b")
    assert python_hash("def f():\n    return 1") != python_hash("def f():\n    return 2")


def test_what_is_no_image_has_no_hash() -> None:
    for data in (b"", b"\x7fELF\x02", b"\x7fELF\x02" + b"\xff" * 80):
        with pytest.raises(ValueError, match="ELF64"):
            code_hash(data)
