"""`kernelward mutate`: a table, JSON, one mutant as a diff, and errors that say what to do."""

import json
from pathlib import Path

import pytest
from kernelward.mutants.matrix_schema import Cell
from kernelward.mutants.mutant import generate
from kernelward.mutants.mutate import open_substrate, run_mutate, select_mutant
from kernelward.mutants.operators import OPERATORS
from kernelward.suites.errors import InputError
from small_matrix import SmallMatrix

KERNEL = str(Path(__file__).parents[2] / "examples" / "kernels" / "cuda" / "relu.py")


def listed(capsys: pytest.CaptureFixture[str], **options: str | None) -> dict:
    assert run_mutate(KERNEL, as_json=True, **options) == 0
    return json.loads(capsys.readouterr().out)


def test_the_table_lists_every_mutant_and_counts_families(capsys: pytest.CaptureFixture[str]) -> None:
    mutants = listed(capsys)["mutants"]
    assert run_mutate(KERNEL) == 0
    out = capsys.readouterr().out
    assert all(mutant["id"] in out for mutant in mutants)
    assert f"{len(mutants)} mutants of relu" in out


def test_a_family_is_a_part_of_the_whole_with_the_same_ids(capsys: pytest.CaptureFixture[str]) -> None:
    everything = listed(capsys)["mutants"]
    boundary = listed(capsys, family="boundary")["mutants"]
    assert boundary == [mutant for mutant in everything if mutant["family"] == "boundary"] != []


def test_a_mutant_that_a_matrix_has_is_shown_with_the_commands_that_reproduce_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mutant = generate(open_substrate(KERNEL))[0]
    small = SmallMatrix(tmp_path / "m.sqlite", mutants=1, entries=3)
    with small.matrix as matrix:
        with matrix.transaction() as connection:
            connection.execute("UPDATE mutants SET uid = ?", (mutant.id,))
        answers = (("value", 0.5), ("value", 0.25), ("pass", 1e-6))
        matrix.put_cells(
            Cell(small.mutants[0], entry, small.environment, "strict", 1, outcome, (err,))  # type: ignore[arg-type]
            for entry, (outcome, err) in zip(small.entries, answers, strict=True)
        )
        uids = [row.uid for row in matrix.entries().values()]
    assert run_mutate(KERNEL, show=mutant.id, matrix=small.matrix.path) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("kernelward replay")]
    rest = f"--device cpu --matrix {small.matrix.path}"
    assert lines == [
        f"kernelward replay {mutant.id} {uids[0]} {rest}  # value",
        f"kernelward replay {mutant.id} {uids[2]} {rest}  # pass",
    ]
    assert run_mutate(KERNEL, show=mutant.id, matrix=tmp_path / "none.sqlite") == 0
    assert "kernelward replay" not in capsys.readouterr().out


def test_one_mutant_is_shown_as_a_diff_by_the_beginning_of_its_id(capsys: pytest.CaptureFixture[str]) -> None:
    mutant = listed(capsys)["mutants"][0]
    assert run_mutate(KERNEL, show=mutant["id"]) == 0
    out = capsys.readouterr().out
    assert OPERATORS[mutant["operator"]].escapes in out
    assert "--- relu\n+++ relu with" in out
    shown = listed(capsys, show=mutant["id"])
    assert shown["source"] != Path(KERNEL).read_text()
    assert shown["diff"] in out


def test_a_substrate_is_opened_by_its_name() -> None:
    assert open_substrate("cuda/relu__vec4").problem
    assert open_substrate("cuda/relu__vec4.py").backend == "cuda"


def test_wrong_names_are_the_users_errors(tmp_path: Path) -> None:
    torch_only = tmp_path / "plain.py"
    torch_only.write_text("class ModelNew: pass\n")
    broken = tmp_path / "broken.py"
    broken.write_text("def :\n")
    for name, message in (
        ("cuda/none", "name one of ours"),
        (str(torch_only), "no kernel"),
        (str(broken), "cannot be"),
    ):
        with pytest.raises(InputError, match=message):
            run_mutate(name)
    with pytest.raises(InputError, match="no family"):
        run_mutate(KERNEL, family="nonsense")
    with pytest.raises(InputError, match="no mutant"):
        run_mutate(KERNEL, show="zz")
    with pytest.raises(InputError, match="give more of the id"):
        select_mutant(generate(open_substrate(KERNEL)), "")
