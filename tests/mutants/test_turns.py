"""Turns of problems: equal parts of the time, rounds, and an end."""

import time
from dataclasses import dataclass, field

import pytest
from kernelward.mutants.calibrate_values import Budget
from kernelward.mutants.turns import LEAST_TURN_S, Turns


@dataclass
class Line:
    name: str
    mutants: list[int] = field(default_factory=lambda: [1, 2])


def taken(turns: Turns[Line]) -> tuple[list[Line], float]:
    turn = turns.take()
    assert turn is not None
    queues, until = turn
    return queues, until - time.monotonic()


def test_each_problem_of_a_round_gets_an_equal_part_of_the_time() -> None:
    turns = Turns([[Line(name)] for name in "abcd"], 2, Budget(1000.0))
    for _ in "abcd":
        assert taken(turns)[1] == pytest.approx(500, abs=5)  # two lanes, four problems
    assert turns.take() is None


def test_time_that_a_problem_did_not_need_goes_to_the_others() -> None:
    turns = Turns([[Line(name)] for name in "abcd"], 1, Budget(1000.0))
    assert taken(turns)[1] == pytest.approx(250, abs=5)
    turns.give_back([])
    assert taken(turns)[1] == pytest.approx(1000 / 3, abs=5)


def test_what_a_turn_left_comes_again_when_all_others_had_theirs() -> None:
    turns = Turns([[Line("a")], [Line("b"), Line("c")]], 1, Budget(1000.0))
    first, _ = taken(turns)
    turns.give_back(first)
    assert turns.mutants == 6
    second, _ = taken(turns)
    assert [line.name for line in second] == ["b", "c"]
    turns.give_back([])
    assert [line.name for line in taken(turns)[0]] == ["a"]
    assert turns.take() is None


def test_a_turn_has_a_least_length_and_ends_with_the_budget() -> None:
    turns = Turns([[Line(str(n))] for n in range(1000)], 1, Budget(100.0))
    assert taken(turns)[1] == pytest.approx(LEAST_TURN_S, abs=1)
    assert turns.go_on(time.monotonic() + 1)
    assert not turns.go_on(time.monotonic() - 1)
    spent = Turns([[Line("a")]], 1, Budget(0.0))
    assert not spent.go_on(time.monotonic() + 1)
    assert spent.take() is None
    turns.end()
    assert not turns.go_on(time.monotonic() + 1)
    assert turns.take() is None
