"""Triton operators on real kernels: all fire, all mutants parse, and what they must leave alone they leave alone."""

import ast
from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from kernelward.mutants.mutant import FAMILIES, Mutant, apply_edits, generate
from kernelward.mutants.operators import OPERATORS, operators_for
from kernelward.mutants.operators.triton import interaction
from kernelward.mutants.operators.triton.rules import body
from kernelward.mutants.substrates import FOLDER, list_substrates, load_substrate
from kernelward.mutants.triton import TritonTree
from kernelward.reward.sandbox.buffers import OutputSpec
from kernelward.reward.sandbox.failure import ChildFailure
from kernelward.reward.sandbox.session import Zygote

OURS = [s for s in list_substrates() if s.name.startswith("triton/")]
TREES = {s.name: TritonTree(s.source) for s in OURS}
TRITON = operators_for("triton")


def test_every_family_has_operators() -> None:
    assert {operator.family for operator in TRITON} == set(FAMILIES)


@pytest.mark.parametrize("operator", TRITON, ids=lambda operator: operator.name)
def test_every_operator_fires_on_a_substrate_and_leaves_python(operator) -> None:
    fired = 0
    for tree in TREES.values():
        for site in operator.sites(tree):
            fired += 1
            text = operator.apply(tree, site)
            ast.parse(text)
            assert text != tree.source
            assert tree.line_at(site.edits[0].start) <= site.line + 20 or operator.family == "interaction"
            assert len(site.detail) < 400
    assert fired


def test_only_lines_of_the_site_change() -> None:
    for tree in TREES.values():
        before = tree.source.splitlines()
        for operator in TRITON:
            for site in operator.sites(tree):
                touched = {
                    line
                    for edit in site.edits
                    for line in range(tree.line_at(edit.start) - 1, tree.line_at(max(edit.start, edit.end - 1)))
                }
                after = apply_edits(tree.source, site.edits).splitlines()
                kept = [line for i, line in enumerate(before) if i not in touched]
                assert not Counter(kept) - Counter(after)


def test_mutants_are_the_same_in_every_run_and_all_different() -> None:
    for substrate in OURS[::8]:
        first, second = generate(substrate), generate(substrate)
        assert [m.id for m in first] == [m.id for m in second]
        assert len({m.id for m in first}) == len({m.source for m in first}) == len(first) > 40


def test_pairs_have_two_places_and_each_place_is_a_mutant_of_its_own() -> None:
    tree = TREES["triton/layernorm__row"]
    single = {
        e for operator in TRITON if operator.family != "interaction" for s in operator.sites(tree) for e in s.edits
    }
    pairs = [site for operator in interaction.OPERATORS for site in operator.sites(tree)]
    assert len(pairs) == 4 * interaction.PER_KERNEL
    for site in pairs:
        assert len(site.edits) >= 2
        assert set(site.edits) <= single
        assert "; line " in site.detail


@pytest.mark.parametrize(
    ("operator", "lines"),
    [
        ("triton-store-fp16", "i = tl.arange(0, BLOCK)\ntl.store(out_ptr + i, i)"),
        ("triton-acc-fp16", "for k in range(K):\n    x_ptr += BLOCK\n    x = tl.load(x_ptr)"),
        ("triton-load-fp16", "t = tl.load(x_ptr + N)\ntl.store(y_ptr + t, 1.0)"),
        ("triton-plus2minus", "x = tl.load(x_ptr + N)"),
        (
            "triton-constant-perturb",
            'x = tl.load(x_ptr, mask=m, other=0.5)\ny = tl.full((4,), float("-inf"), tl.float32)',
        ),
        ("triton-const0to1", "p = tl.program_id(0)\ni = tl.arange(0, BLOCK)\ns = tl.sum(x, 0)\nz = tl.max(x, axis=0)"),
        ("triton-relu-threshold-shift", "n = tl.where(N > 0, 1, 2)\nx = tl.load(x_ptr + N)"),
        ("triton-clamp-upper-remove", "last = tl.minimum(N, BLOCK)\nx = tl.load(x_ptr + N)"),
        ("triton-bound-minus1", "better = x < best"),
        ("triton-atomic-rmw-split", "old = tl.atomic_add(out_ptr, 1)"),
        ("triton-epsilon-remove", "y = x + 1.0"),
        ("triton-factor-drop", "q = d * d"),
        ("triton-mean-to-sum", "y = x / total"),
        ("triton-variance-unbiased", "mean = tl.sum(x, axis=0) / N\ny = tl.load(x_ptr + N)"),
        ("triton-sentinel-zero", "y = tl.load(x_ptr, other=0.0)"),
        ("triton-acc-overwrite", "acc += x"),
        ("triton-softmax-max-subtraction-remove", "y = tl.exp(x - mean)"),
        ("triton-kahan-compensation-drop", "c = (t - s) - y\nz = x - c"),
    ],
)
def test_what_only_looks_alike_is_left_alone(operator: str, lines: str) -> None:
    assert OPERATORS[operator].sites(TritonTree(body(lines, "").before)) == ()


def test_host_functions_that_look_like_kernels_are_left_alone() -> None:
    tree = TritonTree("import triton\n\n\ndef kernel(x, n):\n    return x + 1.5 if x < n else x * 2.5\n")
    assert [operator.name for operator in TRITON if operator.sites(tree)] == []


def relu_mutants() -> list[Mutant]:
    return generate(load_substrate(FOLDER / "triton" / "relu__grid_stride.py"))


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    pytest.importorskip("triton", reason="Triton is an extra")
    with Zygote("triton-interpreter") as made:
        made.report  # noqa: B018 - wait until it is warm
        yield made


def run(zygote: Zygote, source: str, x: torch.Tensor) -> torch.Tensor | str:
    """Output of a candidate, or the reason why there is none."""
    with zygote.spawn() as child:
        try:
            child.load(source)
            child.build([])
            return child.run([x], [OutputSpec(tuple(x.shape), x.dtype)]).outputs[0]
        except ChildFailure as failure:
            return failure.reason


def test_faults_are_what_their_operators_say(zygote: Zygote) -> None:
    """A missing ReLU shows on negative numbers only, a missing mask is out of bounds, warps change nothing."""
    found = {m.operator: m.source for m in relu_mutants()}
    positive = torch.linspace(0.01, 1.0, 40000)
    right = run(zygote, TREES["triton/relu__grid_stride"].source, -positive)
    assert isinstance(right, torch.Tensor)
    assert not right.any()
    removed = found["triton-relu-where-remove"]
    assert torch.equal(run(zygote, removed, positive), positive)  # type: ignore[arg-type]
    assert torch.equal(run(zygote, removed, -positive), -positive)  # type: ignore[arg-type]
    assert torch.equal(run(zygote, found["triton-num-warps"], positive), positive)  # type: ignore[arg-type]
    assert run(zygote, found["triton-mask-drop"], positive) == "out-of-bounds"
    tail = run(zygote, found["triton-tail-round-down"], positive)
    assert isinstance(tail, torch.Tensor)
    assert torch.equal(tail[:32768], positive[:32768])
    assert not torch.equal(tail[32768:], positive[32768:])


def test_arguments_that_stand_for_several_are_left_alone() -> None:
    launched = "kernel[(1,)](x_ptr, *shapes, 5)"
    tree = TritonTree(body("x = tl.load(x_ptr + M, mask=M < N)", "").before + launched)
    for name in ("triton-size-minus1", "triton-launch-argument-swap"):
        assert OPERATORS[name].sites(tree) == ()
