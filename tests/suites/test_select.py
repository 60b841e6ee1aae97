"""Selection: proved optimal, deterministic, and halves that near-duplicates never straddle."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernelward.suites import select
from kernelward.suites.select import balanced, choose, covered, held_out, site_key


@st.composite
def tasks(draw: st.DrawFn) -> dict:
    mutants, entries = draw(st.integers(0, 9)), draw(st.integers(1, 7))
    row = st.lists(st.booleans(), min_size=entries, max_size=entries)
    some = st.sets(st.integers(0, entries - 1), max_size=3)
    return {
        "kills": np.array(draw(st.lists(row, min_size=mutants, max_size=mutants)), bool).reshape(mutants, entries),
        "k": draw(st.integers(1, 4)),
        "weights": np.array(draw(st.lists(st.integers(0, 4), min_size=mutants, max_size=mutants)), float),
        "cost": draw(st.lists(st.integers(1, 3), min_size=entries, max_size=entries)),
        "dense": draw(some),
        "declared": draw(some),
        "kinds": draw(st.none() | st.lists(st.tuples(*[st.integers(0, 2)] * 2), min_size=entries, max_size=entries)),
    }


def allowed(task: dict, k: int) -> list[tuple[int, ...]]:
    """Every suite of k entries with a dense and, of two or more, a declared-shape entry."""
    groups = [task["dense"], task["declared"] if task["k"] > 1 else ()]
    suites = itertools.combinations(range(task["kills"].shape[1]), k)
    return [s for s in suites if all(not g or set(g) & set(s) for g in groups)]


def weight_of(task: dict, suite: tuple[int, ...]) -> float:
    return float(task["weights"][task["kills"][:, list(suite)].any(axis=1)].sum())


@settings(max_examples=60, deadline=None)
@given(tasks())
def test_the_choice_is_as_good_as_the_best_of_all_suites(task: dict) -> None:
    k = min(task["k"], task["kills"].shape[1])
    suites = allowed(task, k)
    chosen = choose(**task)
    assert chosen.exact
    assert tuple(sorted(chosen.indices)) in suites
    assert weight_of(task, chosen.indices) == max(weight_of(task, s) for s in suites)
    assert not task["dense"] or chosen.indices[0] in task["dense"]


@settings(max_examples=60, deadline=None)
@given(tasks())
def test_the_greedy_fallback_obeys_the_rules_and_is_never_better(task: dict) -> None:
    k = min(task["k"], task["kills"].shape[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(select, "_solve", lambda *_: None)
        greedy = choose(**task)
    assert tuple(sorted(greedy.indices)) in allowed(task, k)
    assert weight_of(task, greedy.indices) <= weight_of(task, choose(**task).indices)
    if not greedy.exact:
        assert greedy.covered < covered(task["kills"], range(task["kills"].shape[1]), task["weights"])


def test_an_exchange_that_leaves_nothing_to_gain_is_the_best_there_is() -> None:
    kills = np.zeros((1, 5), bool)
    kills[0, 4] = True  # greedy takes 0 for its place and then has to take the declared one
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(select, "_solve", lambda *_: None)
        found = choose(kills, 2, dense={0, 1}, declared={1})
    assert (sorted(found.indices), found.covered, found.exact) == ([1, 4], 1.0, True)


def test_the_greedy_trap_needs_the_exact_search() -> None:
    trap = np.zeros((8, 3), bool)
    trap[1:6, 0] = True  # the largest first leaves one mutant to either of the others
    trap[:4, 1] = trap[4:, 2] = True
    chosen = choose(trap, 2)
    assert (sorted(chosen.indices), chosen.covered, chosen.exact) == ([1, 2], 1.0, True)


def test_a_bound_of_no_nodes_falls_back_and_says_so() -> None:
    kills = np.random.default_rng(0).random((120, 25)) < 0.15
    bounded = choose(kills, 5, nodes=0)
    assert not bounded.exact
    assert 0 < bounded.covered <= 1


def test_ties_go_to_double_kills_then_to_the_cheaper_then_to_the_first() -> None:
    kills = np.array([[1, 1, 0, 0], [1, 1, 0, 0]], bool)
    assert choose(kills, 1, cost=[2, 1, 1, 1]).indices == (1,)
    assert choose(kills, 1, cost=[1, 1, 1, 1]).indices == (0,)
    assert choose(kills, 2, cost=[9, 9, 1, 1]).indices == (0, 1)


def test_among_equals_the_suite_with_more_shapes_and_generators_wins_before_the_cheaper() -> None:
    kills = np.ones((2, 4), bool)
    kinds = [("tiny", "normal"), ("tiny", "own"), ("ragged", "own"), ("ragged", "ramp")]
    assert choose(kills, 2, cost=[1, 1, 5, 9]).indices == (0, 1)
    assert choose(kills, 2, cost=[1, 1, 5, 9], kinds=kinds).indices == (0, 2)
    kills[0, 2:] = False  # what is killed twice counts more
    assert choose(kills, 2, cost=[1, 1, 5, 9], kinds=kinds).indices == (0, 1)


def test_every_suite_of_two_keeps_the_declared_shape() -> None:
    kills = np.array([[1, 0, 0], [0, 1, 0]], bool)
    assert sorted(choose(kills, 2, dense=[0], declared=[2]).indices) == [0, 2]
    assert choose(kills, 1, dense=[0], declared=[2]).indices == (0,)


def test_weights_per_family_decide_between_families() -> None:
    families = ["arithmetic"] * 9 + ["precision"]
    kills = np.array([[True, False]] * 9 + [[False, True]], bool)
    assert choose(kills, 1).indices == (0,)
    weights = balanced(families)
    assert weights.sum() == pytest.approx(10)
    assert weights[:9].sum() == pytest.approx(weights[9])
    assert choose(kills, 1, weights=weights * np.where(np.arange(10) == 9, 1.01, 1)).indices == (1,)


def test_nothing_to_cover_and_nothing_to_choose() -> None:
    assert math.isnan(choose(np.zeros((0, 3), bool), 2).covered)
    assert choose(np.zeros((4, 0), bool), 2).indices == ()
    assert choose(np.zeros((4, 3), bool), 2, cost=[3, 2, 1]).indices == (2, 1)


@pytest.mark.parametrize(
    "wrong", [{"k": 0}, {"k": 1, "weights": np.ones(3)}, {"k": 1, "cost": [1.0]}, {"k": 1, "kinds": [(1,)]}]
)
def test_arguments_that_do_not_fit_are_named(wrong: dict) -> None:
    with pytest.raises(ValueError, match="kills"):
        choose(np.zeros((2, 2), bool), **wrong)


@given(st.text(max_size=20), st.text(max_size=20), st.text(alphabet=" \t\n", max_size=3))
def test_near_duplicates_are_in_the_same_half(operator: str, detail: str, blank: str) -> None:
    here, there = site_key("p", f"{detail} x"), site_key("p", f"{detail}{blank} {blank}x")
    assert held_out(operator, here) == held_out(operator, there)


def test_the_halves_are_halves_and_stay_the_same() -> None:
    sites = [site_key("p", f"`<` -> `<=` in `i < n{i}`") for i in range(2000)]
    held = [held_out("lt2le", site) for site in sites]
    assert 900 < sum(held) < 1100
    assert [held_out("lt2le", f"site {i}") for i in range(8)] == [True, True, False, True, False, True, False, False]
