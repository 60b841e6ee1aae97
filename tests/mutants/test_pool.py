"""Which entries a pool is made of."""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from kernelward.mutants import pool
from kernelward.mutants.pool import asked_pool, pool_entries
from kernelward.suites.draw import entry_bytes
from kernelward.suites.entry import Entry
from kernelward.suites.problem import find_problem
from kernelward.suites.validity import Admission, admit

EXAMPLES = Path(__file__).parents[2] / "examples" / "problems"


def test_a_large_declared_shape_is_asked_twice_a_small_one_by_every_dense_family(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = find_problem("relu", EXAMPLES)  # 8 MiB
    large = [e for e in pool_entries(problem, "cpu") if e.declared_shape]
    assert [e.generator for e in large] == ["normal", "own"]
    monkeypatch.setitem(pool.FEW_ABOVE, "cpu", 64 << 20)
    small = {e.generator for e in pool_entries(problem, "cpu") if e.declared_shape}
    assert small == {"normal", "own", "spiky", "negative", "offset", "ramp"}


def test_a_family_that_the_declared_sums_are_too_long_for_is_asked_at_small_shapes() -> None:
    problem = find_problem("groupnorm", EXAMPLES)  # 2,304 terms at the declared shape, about a hundred at a small one
    found = [e for e in pool_entries(problem, "cpu") if e.generator == "offset"]
    assert {dict(e.params).get("center") for e in found} == {None, 300.0}
    assert not any(e.declared_shape for e in found)


@pytest.mark.parametrize("short", ["entry", "member", ""])
def test_where_memory_was_short_a_large_entry_is_asked_again_with_the_device_to_itself(
    short: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, entry, held, asked = find_problem("relu", EXAMPLES), Entry.make("normal"), [], []
    whole = admit(problem, Entry.make("normal", constants={"batch_size": 3, "dim": 7}), seeds=2)
    assert whole.measured is not None
    answers = {
        "entry": replace(whole, admitted=False, reason="out-of-memory", measured=None),
        "member": replace(whole, measured=replace(whole.measured, skipped={"blocked": "out-of-memory: 1 GiB"})),
        "": whole,
    }

    class Held:
        @contextlib.contextmanager
        def hold(self, size: int) -> Iterator[None]:
            held.append(size)
            yield

    def answer(*_: object) -> Admission:
        asked.append(held[-1])
        return answers[short] if len(asked) == 1 else whole

    monkeypatch.setattr(pool, "is_large", lambda *_: True)
    monkeypatch.setattr(pool, "shares", lambda _: Held())
    monkeypatch.setattr(pool, "admit", answer)
    found = asked_pool(problem, torch.device("cuda"), {entry.id: entry})
    least = pool.NEEDED * entry_bytes(problem, entry)
    assert held == asked == ([least, sys.maxsize] if short else [least])
    assert found.admissions == (whole,)


def test_an_entry_that_the_problem_cannot_be_given_is_the_gates_to_refuse() -> None:
    problem = find_problem("relu", EXAMPLES)
    for kind in ("cpu", "cuda"):
        wrong = Entry.make("normal", constants={"nothing": 3})
        answer = asked_pool(problem, torch.device(kind), {wrong.id: wrong}).admissions[0]
        assert not answer.admitted
        assert "nothing" in answer.detail
