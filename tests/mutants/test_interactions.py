"""Which single faults an interaction is made of, and when it counts."""

from pathlib import Path

import pytest
from kernelward.mutants.interactions import all_asked, members, members_first, of_families, survive_alone
from kernelward.mutants.matrix import Matrix
from kernelward.mutants.matrix_schema import Cell, EntryRow, MutantRow, SubstrateRow
from kernelward.mutants.mutant import Mutant, generate
from kernelward.mutants.substrates import list_substrates

SUBSTRATES = [s for s in list_substrates() if s.name in ("cuda/layernorm__vec4", "triton/gelu__flat")]


@pytest.mark.parametrize("substrate", SUBSTRATES, ids=lambda s: s.name)
def test_both_members_of_every_interaction_are_mutants_of_the_substrate(substrate: object) -> None:
    made = {m.id: m for m in generate(substrate)}  # type: ignore[arg-type]
    both = members(substrate)  # type: ignore[arg-type]
    interactions = [m for m in made.values() if m.family == "interaction"]
    assert interactions
    for mutant in interactions:
        one, other = (made[id] for id in both[mutant.id])
        assert "interaction" not in (one.family, other.family)
        assert one.id != other.id


def test_members_come_before_their_interaction_and_nothing_is_lost() -> None:
    substrate = SUBSTRATES[0]
    made = generate(substrate)
    both = members(substrate)
    backwards = sorted(made, key=lambda m: m.family != "interaction")
    found = [m.id for m in members_first(backwards, both)]
    assert sorted(found) == sorted(m.id for m in made)
    for id, pair in both.items():
        assert all(found.index(member) < found.index(id) for member in pair)


def test_an_interaction_without_known_members_is_left_out() -> None:
    def mutant(id: str, family: str) -> Mutant:
        return Mutant(id, "s", "h", "p", "cuda", "o", family, 1, "", "")

    found = members_first([mutant("i", "interaction"), mutant("a", "memory")], {})
    assert [m.id for m in found] == ["a"]


def test_a_choice_of_families_brings_the_members_of_its_interactions() -> None:
    made = generate(SUBSTRATES[0])
    both = members(SUBSTRATES[0])
    assert of_families(made, both, ()) == made
    memory = of_families(made, both, ("memory",))
    assert memory == [m for m in made if m.family == "memory"] != []
    chosen = of_families(made, both, ("interaction",))
    interactions = [m for m in made if m.family == "interaction"]
    assert {m.id for m in chosen} == {m.id for m in interactions} | {id for m in interactions for id in both[m.id]}
    assert [m for m in made if m in chosen] == chosen


@pytest.mark.parametrize(
    ("margins", "outcome", "alone"),
    [((1e-3, 2e-3), "pass", True), ((1e-3, 0.5), "value", False), ((1e-3, 1e-3), "crash", False), ((), "pass", False)],
)
def test_members_survive_alone_only_if_the_official_check_saw_both_pass(
    tmp_path: Path, margins: tuple[float, ...], outcome: str, alone: bool
) -> None:
    with Matrix(tmp_path / "m.sqlite") as matrix:
        problem = matrix.add_problem("p", "0" * 64)
        substrate = matrix.add_substrate(SubstrateRow("1" * 64, "s", "cuda", "naive", problem, "admitted"))
        ids = matrix.add_mutants(
            [MutantRow(uid, substrate, "o", "memory", 1, "", "ready") for uid in ("a" * 16, "b" * 16)]
        )
        entry = matrix.add_entry(EntryRow(problem, "own-1", "cpu", {"generator": "own"}, "protocol"))
        here = matrix.add_environment({"engine": "cpu-emulator"})
        for id, margin in zip(ids, margins, strict=False):
            last = id == ids[-1]
            matrix.put_cells(
                [Cell(id, entry, here, "plain", 1, outcome if last else "pass", (0.1,), margin)]  # type: ignore[arg-type]
            )
        assert survive_alone(matrix, ("a" * 16, "b" * 16), [entry]) is alone
        assert all_asked(matrix, ("a" * 16, "b" * 16), [entry]) is bool(margins), "not asked is not failed"
        assert all_asked(matrix, ("c" * 16,), [entry]), "one that does not count is not waited for"
