"""A foreign checker from a matrix to its figures: in which order it is asked, what counts, and going on later."""

import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from kernelward.mutants.calibrate_plan import Target
from kernelward.mutants.coverage_cells import read_problems
from kernelward.mutants.coverage_report import Share
from kernelward.mutants.foreign import ATTEMPTS, Answers, Plan, fair_order, make_plan, put
from kernelward.mutants.foreign_checker import ForeignChecker, Said
from kernelward.mutants.foreign_command import MeasureOptions, run_measure
from kernelward.mutants.foreign_report import count, witnessed_ids
from kernelward.mutants.matrix import Matrix
from kernelward.mutants.matrix_schema import Cell, EntryRow, MutantRow, SubstrateRow
from kernelward.mutants.mutant import Mutant, Substrate, generate
from kernelward.suites.entry import Entry
from kernelward.suites.errors import InputError
from kernelward.suites.problem import find_problem
from watched import KERNEL, PROBLEM

OTHER = KERNEL.replace("ReLU, one block", "ReLU again, a block")
ENTRY = Entry.make("normal")


class Bench:
    """A problem, two Triton kernels for it, and a matrix of every fifth mutant of both, all witnessed but the last."""

    def __init__(self, folder: Path) -> None:
        (folder / "problems").mkdir()
        (folder / "problems" / "tiny_relu.py").write_text(PROBLEM)
        (folder / "substrates" / "triton").mkdir(parents=True)
        for name, text in (("relu__one", KERNEL), ("relu__two", OTHER)):
            (folder / "substrates" / "triton" / f"{name}.py").write_text(text)
        problem = find_problem("tiny_relu", folder / "problems")
        self.substrates = tuple(
            Substrate(f"triton/{name}", "tiny_relu", "triton", "naive", text)
            for name, text in (("relu__one", KERNEL), ("relu__two", OTHER))
        )
        self.target = Target(problem, self.substrates)
        made = {s.hash: generate(s) for s in self.substrates}
        self.made: dict[str, list[Mutant]] = {digest: mutants[::5] for digest, mutants in made.items()}
        self.path = folder / "matrix.sqlite"
        with Matrix(self.path) as matrix:
            id = matrix.add_problem(problem.id, problem.hash)
            measured = {"tolerance": [1e-3]}
            entry = matrix.add_entry(EntryRow(id, ENTRY.id, "cpu", ENTRY.to_dict(), measured=measured, bytes=1))
            environment = matrix.add_environment({"engine": "interpreter", "device_class": "cpu"})
            cells = []
            for s in self.substrates:
                row = matrix.add_substrate(SubstrateRow(s.hash, s.name, "triton", "naive", id, "admitted"))
                made = [
                    MutantRow(m.id, row, m.operator, m.family, m.line, m.detail, "ready") for m in self.made[s.hash]
                ]
                for i, mutant in enumerate(matrix.add_mutants(made)):
                    err = 1.0 if i < len(made) - 1 else 0.0
                    cells.append(Cell(mutant, entry, environment, "strict", 3, "value" if err else "pass", (err,), err))
            matrix.put_cells(cells)
            self.problems = read_problems(matrix, "cpu")

    @property
    def plan(self) -> Plan:
        """All that can be asked."""
        return make_plan([self.target], witnessed_ids(self.problems))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


class Scripted(ForeignChecker):
    """Answers by a rule, without a process."""

    def __init__(self, rule) -> None:  # type: ignore[no-untyped-def]
        self.rule = rule
        self.asked: list[str] = []

    def ask(self, problem: str, candidate: str) -> Said:
        self.asked.append(candidate)
        return Said(self.rule(candidate), 0.5, "said")


def ask_all(bench: Bench, path: Path, rule, name: str = "theirs", budget_s: float = 60.0) -> tuple[Answers, int]:  # type: ignore[no-untyped-def]
    answers = Answers(path / "answers.jsonl", name).load()
    asked = put(Scripted(rule), bench.plan, answers, workers=2, budget_s=budget_s)
    return answers, asked


def test_any_beginning_of_the_order_has_the_shares_of_the_whole() -> None:
    def mutant(i: int, family: str, operator: str) -> Mutant:
        return Mutant(f"{i:016x}", "s", "h", "p", "cuda", operator, family, 1, "", "")

    many = [mutant(i, "indexing", f"op{i % 2}") for i in range(80)]
    many += [mutant(100 + i, "precision", "half") for i in range(20)]
    ordered = fair_order(many)
    assert sorted(m.id for m in ordered) == sorted(m.id for m in many)
    for length in (5, 10, 25, 50, 75):
        share = Counter(m.family for m in ordered[:length])["precision"] / length
        assert abs(share - 0.2) <= 1 / length
        operators = Counter(m.operator for m in ordered[:length])
        assert abs(operators["op0"] - operators["op1"]) <= 2
    assert ordered == fair_order(list(reversed(many)))


def test_correct_kernels_come_before_their_mutants_and_zeros_once_for_a_problem(bench: Bench) -> None:
    questions = bench.plan.questions
    kinds = Counter(q.kind for q in questions)
    assert (kinds["clean"], kinds["zeros"]) == (2, 1)
    assert kinds["mutant"] == bench.plan.mutants == sum(len(made) - 1 for made in bench.made.values())
    for i, q in enumerate(questions):
        if q.kind == "mutant":
            assert any(c.kind == "clean" and c.substrate == q.substrate for c in questions[:i])


def test_a_share_of_what_it_was_asked_beside_ours_on_the_same_mutants(bench: Bench, tmp_path: Path) -> None:
    fails = {m.source for made in bench.made.values() for m in made if m.family == "boundary"}

    def rule(candidate: str) -> bool | None:
        return "_nothing" not in candidate and candidate not in fails

    answers, asked = ask_all(bench, tmp_path, rule)
    found = count(bench.problems, bench.plan, answers, "family", "cpu")
    assert asked == len(bench.plan.questions)
    theirs, ours = found.lines[0], found.lines[-1]
    assert theirs.groups["boundary"].share == 1.0
    assert {share.share for label, share in theirs.groups.items() if label != "boundary"} == {0.0}
    assert (ours.name, ours.share.share, ours.share.of) == ("kernelward@3", 1.0, theirs.share.of)
    assert len(found.missed) == theirs.share.of - theirs.share.detected
    assert all(found.missed.values())
    assert found.rejected == Share(0, 2)
    assert found.zeros == Share(1, 1)


def test_no_verdict_is_unknown_and_never_a_detection(bench: Bench, tmp_path: Path) -> None:
    silent = bench.plan.questions[-1].source

    answers, _ = ask_all(bench, tmp_path, lambda c: None if c == silent else c in (KERNEL, OTHER))
    found = count(bench.problems, bench.plan, answers, "family", "cpu")
    share = found.lines[0].share
    assert (share.detected, share.of, share.unknown) == (bench.plan.mutants - 1, bench.plan.mutants - 1, 1)
    assert share.at_least < 1.0
    assert len(found.no_verdict) == 1


def test_a_kernel_that_is_rejected_when_correct_says_nothing_about_its_mutants(bench: Bench, tmp_path: Path) -> None:
    answers, asked = ask_all(bench, tmp_path, lambda c: c == KERNEL)
    found = count(bench.problems, bench.plan, answers, "family", "cpu")
    of_other = len(bench.made[bench.substrates[1].hash]) - 1
    assert asked == len(bench.plan.questions) - of_other
    assert (found.rejected.detected, found.rejected.of, found.set_aside) == (1, 2, of_other)
    assert found.false_rejections == (("triton/relu__two", "said"),)
    assert found.lines[0].share.of == len(bench.made[bench.substrates[0].hash]) - 1


def test_a_run_goes_on_where_another_was_killed(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    _, asked = ask_all(bench, tmp_path, lambda c: c in (KERNEL, OTHER))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-2]) + lines[-2][:20])  # the last two answers are lost, one of them is torn
    _, again = ask_all(bench, tmp_path, lambda c: c in (KERNEL, OTHER))
    assert again == 2
    _, third = ask_all(bench, tmp_path, lambda c: c in (KERNEL, OTHER))
    assert third == 0
    _, other = ask_all(bench, tmp_path, lambda c: c in (KERNEL, OTHER), name="another checker")
    assert other == asked


def test_what_had_no_verdict_is_asked_again_so_many_times(bench: Bench, tmp_path: Path) -> None:
    silent = bench.plan.questions[-1].source
    runs = [ask_all(bench, tmp_path, lambda c: None if c == silent else c in (KERNEL, OTHER))[1] for _ in range(4)]
    assert runs[1:] == [1] * (ATTEMPTS - 1) + [0] * (4 - ATTEMPTS)


def test_a_spent_budget_leaves_the_rest_for_another_run(bench: Bench, tmp_path: Path) -> None:
    answers, asked = ask_all(bench, tmp_path, lambda c: True, budget_s=0.0)
    assert (asked, answers.said) == (0, {})
    assert count(bench.problems, bench.plan, answers, "family", "cpu").lines[0].share.of == 0


def test_a_checker_that_says_nothing_at_all_is_named_early(bench: Bench, tmp_path: Path) -> None:
    clean = bench.plan.questions[0]
    many = Plan(tuple(replace(clean, id=f"{i}", substrate=f"{i}") for i in range(20)), 1, 0)
    answers = Answers(tmp_path / "answers.jsonl", "theirs")
    checker = Scripted(lambda c: None)
    with pytest.raises(InputError, match="no verdict on the first 8 candidates; one said: said"):
        put(checker, many, answers, workers=1, budget_s=60.0)
    assert len(checker.asked) == 8


def test_the_command_from_matrix_to_exit_code(bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "checker.py"
    script.write_text("import sys\nsys.exit('x > 0.0, x, 0.0' not in open(sys.argv[1]).read())")  # what it looks at
    options = MeasureOptions(
        checker=f"{sys.executable} -I -S {script} {{candidate}}",
        name="looks at the comparison",
        matrix=bench.path,
        problems=(str(tmp_path / "problems"),),
        substrates=tmp_path / "substrates",
        fail_under=90.0,
        as_json=True,
    )
    assert run_measure(options) == 1
    found = json.loads(capsys.readouterr().out)
    documented = run_measure.__doc__ or ""
    assert [key for key in found if f"`{key}`" not in documented] == []
    share = found["protocols"][0]["ours"]
    assert 0 < share["detected"] < share["of"] == bench.plan.mutants
    assert len(found["zeros_passed"]) == 1  # its text has the comparison
    assert found["rejected"]["detected"] == 0
    assert Path(found["answers"]).parent == tmp_path / "checkers"
    assert run_measure(replace(options, fail_under=None, as_json=False)) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("0 of ")
    assert "correct kernels (false rejections)" in printed
