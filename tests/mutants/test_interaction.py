"""Pairs of faults: a small, reproducible sample whose members are mutants of their own."""

from itertools import pairwise
from pathlib import Path

import pytest
from kernelward.mutants.cuda import CudaTree
from kernelward.mutants.mutant import apply_edits
from kernelward.mutants.operators import OPERATORS
from kernelward.mutants.operators.cuda.interaction import PAIRS, PER_OPERATOR, Pair, pairs

KERNELS = Path(__file__).parents[2] / "examples" / "kernels" / "cuda"


@pytest.fixture(scope="module", params=["layernorm", "matmul_double_buffer"])
def sampled(request: pytest.FixtureRequest) -> tuple[CudaTree, tuple[Pair, ...]]:
    tree = CudaTree((KERNELS / f"{request.param}.py").read_text())
    return tree, pairs(tree)


def test_the_sample_is_small_and_mixed(sampled: tuple[CudaTree, tuple[Pair, ...]]) -> None:
    _, found = sampled
    assert 3 <= len(found) <= PAIRS
    names = [name for pair in found for name in pair.names]
    assert max(names.count(name) for name in names) <= PER_OPERATOR
    assert len({pair.names for pair in found}) == len(found)


def test_the_sample_is_the_same_every_time(sampled: tuple[CudaTree, tuple[Pair, ...]]) -> None:
    tree, found = sampled
    assert pairs(CudaTree(tree.source)) == found


def test_members_are_sites_of_their_operators(sampled: tuple[CudaTree, tuple[Pair, ...]]) -> None:
    tree, found = sampled
    for pair in found:
        assert pair.names[0] != pair.names[1]
        for name, site in zip(pair.names, pair.sites, strict=True):
            assert site in OPERATORS[name].sites(tree)


def test_a_pair_holds_both_faults_and_nothing_else(sampled: tuple[CudaTree, tuple[Pair, ...]]) -> None:
    tree, found = sampled
    for pair in found:
        edits = pair.site.edits
        assert sorted(edits) == sorted(edit for site in pair.sites for edit in site.edits)
        assert all(first.end < second.start for first, second in pairwise(edits))
        alone = {apply_edits(tree.source, site.edits) for site in pair.sites}
        assert apply_edits(tree.source, edits) not in alone


def test_faults_of_different_kernels_are_not_paired() -> None:
    first = "__global__ void a(float* y, int n) { if (i < n) y[i] = 1.0f; }\n"
    second = "__global__ void b(float* y, int n) { y[0] = sqrtf(v + 1e-5f); }\n"
    for pair in pairs(CudaTree.of_snippet(first + second)):
        edits = [e for site in pair.sites for e in site.edits if not e.text.startswith("#include")]
        assert len({edit.start < len(first) for edit in edits}) == 1
