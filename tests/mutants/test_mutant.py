"""Generating mutants: deterministic, local, without repetition."""

import ast
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernelward.mutants.cuda import CudaTree
from kernelward.mutants.mutant import (
    FAMILIES,
    Edit,
    Mutant,
    Operator,
    Site,
    Substrate,
    apply_edits,
    generate,
    mutant_id,
)
from kernelward.mutants.operators import OPERATORS, REPLACES, operators_for

KERNELS = sorted((Path(__file__).parents[2] / "examples" / "kernels" / "cuda").glob("*.py"))

LITERATURE = """
ceil2floor ceil2floor-lit lt2le le2lt ge2gt gt2ge lt2gt guard-drop-if guard-drop-ternary return-guard-drop
loop-bound-minus1 loop-start-1 reduce-shift2 reduce-seed-first-element reduce-seed-first-element-min
argmax-seed-from-second elementwise-guard-minus1 elementwise-guard-plus1 grid-stride-step-double
output-elements-one-extra-lane line-count-one-extra-lane flat-n-one-extra-lane matmul-a-last-k-drop
matmul-a-transposed-last-k-drop matmul-b-last-k-drop arg-reduction-last-row-drop min-reduction-last-row-drop
cumsum-last-output-drop pool2d-last-tap-drop groupnorm-sum-tail-scalar-drop groupnorm-sqdev-tail-scalar-drop
last-row-reduction-skip last-row-reduction-skip-start1 strided-tail-drop tile-last-iteration-skip
literal-loop-last-skip tail-guard-tighten matrix-row-bound-use-n matrix-row-bound-use-m matrix-col-bound-use-n
matrix-col-bound-use-m height-bound-use-width width-bound-use-height sync-remove sync2syncwarp
matmul-after-load-warp-barrier matmul-after-compute-warp-barrier groupnorm-sum-store-warp-barrier
groupnorm-sqdev-store-warp-barrier groupnorm-final-output-warp-barrier batchnorm-local-stats-warp-barrier
batchnorm-merge-warp-barrier batchnorm-output-warp-barrier shared-denom-use-local shared-sqrt-use-local
reduction-barrier-move-before-store welford-count-merge-early acc-fp16 store-fp16 expf-fast fdividef-fast
gelu-tanh-const-perturb gelu-sqrt2pi-perturb invsqrt2-perturb selu-alpha-perturb selu-scale-perturb
hardsigmoid-slope-perturb clamp-bound-perturb gelu-tanh-const-small-perturb gelu-sqrt2pi-small-perturb
invsqrt2-small-perturb selu-alpha-small-perturb selu-scale-small-perturb hardsigmoid-slope-small-perturb
clamp-bound-small-perturb erf-to-tanh-approx softplus-cutoff-shift softplus-cutoff-tiny-shift avgpool-denom-perturb
groupnorm-epsilon-halved batchnorm-epsilon-small-bias matmul-acc-store-fma-nudge rsqrt-epsilon-remove
sqrt-epsilon-remove literal-epsilon-remove softmax-max-subtraction-remove softmax-max-subtraction-remove-fast
welford-second-delta-reuse variance-unbiased-count kahan-compensation-drop tidx2tidy bidx2bidy bdim2gdim
smem-index-off1 warpsize-16 argmax-final-row-alias argmax-final-row-value-alias reduction-partner-half-offset
row-store-stride-k a-row-stride-n b-row-stride-k flatten-height-use-width output-position-height-first
grid-x-use-block-y plus2minus minus2plus mul2div mul2plus negate-store acc-overwrite acc-minus fmax2fmin fmin2fmax
sentinel-zero const0to1 argmax-tie-last argmin-tie-last argmax-tie-nan-form argmax-nan-policy-drop
reduce-fmax-tie-order reduce-fmin-tie-order relu-threshold-shift relu-fmax-zero-remove relu-fmax-zero-remove-first
upper-unit-clamp-remove upper-unit-clamp-remove-first lower-negunit-clamp-remove nested-unit-clamp-drop-upper
fabs-simple-remove selu-positive-cutoff-nudge elu-positive-cutoff-nudge softsign-positive-fabs-elide share_removal
gpu_index_replacement gpu_index_increment gpu_index_decrement sync_removal atom_removal
conditional_boundary_replacement negate_conditional_replacement math_replacement logical_replacement
"""


def substrate(path: Path) -> Substrate:
    return Substrate(path.stem, path.stem, "cuda", "", path.read_text(), path)


@cache
def mutants(path: Path) -> list[Mutant]:
    return generate(substrate(path))


def example_operator(*sites: Site | None) -> Operator:
    return Operator("example", "semantic", "cuda", "Changes.", "Unseen.", (), lambda tree: iter(sites))


def test_every_rule_of_the_literature_has_an_operator() -> None:
    cuda = {operator.name for operator in operators_for("cuda")}
    covered = cuda | {rule for name in cuda for rule in REPLACES.get(name, ())}
    assert [rule for rule in LITERATURE.split() if rule not in covered] == []


def test_what_replaces_a_rule_is_an_operator_itself() -> None:
    assert set(REPLACES) <= set(OPERATORS)


def test_generation_is_repeatable_and_ids_are_distinct() -> None:
    first, second = mutants(KERNELS[0]), generate(substrate(KERNELS[0]))
    assert first == second
    assert len({mutant.id for mutant in first}) == len(first) > 20


def test_no_two_mutants_have_the_same_text_and_none_is_the_substrate() -> None:
    for path in KERNELS[:4]:
        texts = [mutant.source for mutant in mutants(path)]
        assert len(set(texts)) == len(texts)
        assert path.read_text() not in texts


def test_mutants_are_python_whose_cuda_still_parses() -> None:
    before = CudaTree(KERNELS[1].read_text()).errors
    for mutant in mutants(KERNELS[1])[::3]:
        ast.parse(mutant.source)
        assert CudaTree(mutant.source).errors <= before, mutant.detail


def test_comments_strings_and_preprocessor_text_are_never_touched() -> None:
    source = '''
CUDA = r"""
#define SIZE(n) ((n) + 255) / 256
__global__ void k(int n) {
    // if (i < n) y[i] = x[i] + 1.0f;
    /* for (int k = 0; k < n; ++k) sum += x[k]; */
#if SIZE(3) < 4 && 2 * 3 > 1
    printf("a < b + c * 0.5f");
#endif
    asm volatile("add.f32 %0, %1, %2;" : : "f"(1.0f + 2.0f), "n"(3 < 4));
}
"""
load_inline(name="e", cpp_sources="", cuda_sources=CUDA)
'''
    assert generate(Substrate("s", "p", "cuda", "", source)) == []


def test_a_diff_names_the_operator_and_shows_both_lines() -> None:
    path = KERNELS[0]
    mutant = next(m for m in mutants(path) if m.operator == "lt2le")
    diff = mutant.diff(path.read_text())
    assert mutant.operator in diff
    removed = [line for line in diff.splitlines() if line.startswith("-") and not line.startswith("---")]
    added = [line for line in diff.splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert len(removed) == len(added) == 1
    assert path.read_text().splitlines()[mutant.line - 1] == removed[0][1:]


def test_overlapping_or_outside_edits_are_refused() -> None:
    for edits in ((Edit(0, 3, ""), Edit(2, 4, "")), (Edit(3, 9, ""),), (Edit(-1, 1, ""),)):
        with pytest.raises(ValueError, match="edit"):
            apply_edits("abcd", edits)


def test_sites_are_sorted_distinct_and_without_places_that_cannot_be_edited() -> None:
    late, early = Site((Edit(5, 6, "x"),), 1, "late"), Site((Edit(1, 2, "x"),), 1, "early")
    operator = example_operator(late, None, early, late)
    assert operator.sites(CudaTree("")) == (early, late)


def test_an_unknown_family_is_refused() -> None:
    with pytest.raises(ValueError, match="not one of"):
        Operator("o", "nonsense", "cuda", "s", "e", (), lambda tree: iter(()))
    with pytest.raises(ValueError, match="no family"):
        operators_for("cuda", ["nonsense"])


def test_operators_come_family_by_family() -> None:
    order = [FAMILIES.index(operator.family) for operator in OPERATORS.values()]
    assert order == sorted(order)
    assert {operator.family for operator in operators_for("cuda", ["precision"])} == {"precision"}


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_applying_a_site_changes_its_edits_and_nothing_else(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(KERNELS[:5]))
    operator = data.draw(st.sampled_from(operators_for("cuda")))
    tree = CudaTree(path.read_text())
    sites = operator.sites(tree)
    if not sites:
        return
    site = data.draw(st.sampled_from(sites))
    text, position, rest = operator.apply(tree, site), 0, tree.source
    for edit in site.edits:
        kept = rest[position : edit.start]
        assert text.startswith(kept)
        assert text[len(kept) :].startswith(edit.text)
        text, position = text[len(kept) + len(edit.text) :], edit.end
    assert text == rest[position:]
    assert operator.sites(CudaTree(tree.source)) == sites
    assert 1 <= site.line <= tree.source.count("\n") + 1


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.text("ab\n", max_size=3)), max_size=3),
    st.text("xyz", max_size=4),
)
def test_ids_depend_on_substrate_operator_and_edits(spans: list[tuple[int, int, str]], other: str) -> None:
    edits = [Edit(*span) for span in spans]
    assert mutant_id("h", "o", edits) == mutant_id("h", "o", list(edits))
    assert len(mutant_id("h", "o", edits)) == 16
    assert mutant_id("h" + other + "!", "o", edits) != mutant_id("h", "o", edits)
    assert mutant_id("h", "o" + other + "!", edits) != mutant_id("h", "o", edits)
    assert mutant_id("h", "o", [*edits, Edit(0, 0, other)]) != mutant_id("h", "o", edits)
