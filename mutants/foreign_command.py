"""`kernelward measure`: how much does somebody else's checker notice?"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..suites.errors import InputError
from ..suites.hashing import sha256_text, short
from .calibrate_command import DEFAULT_BUDGET, folders_and_ids, seconds_of
from .calibrate_plan import find_targets
from .coverage import fullest
from .coverage_cells import read_problems
from .coverage_report import By
from .coverage_table import markdown_rows, print_rows
from .foreign import Answers, Plan, make_plan, put
from .foreign_checker import TIME_LIMIT_S, ForeignChecker
from .foreign_report import Measured, count, summary, tables, witnessed_ids
from .matrix_delta import open_measured
from .mutant import Backend


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """What `kernelward measure` was asked; see `run_measure`.

    Attributes:
        checker: a command or a Python function, see `foreign_checker.ForeignChecker`.
        matrix: says which mutants are witnessed.
        name: of the checker, under which its answers are kept; its text by default. A checker that has changed needs
            another one.
        problems: folders, ids or files; our own by default.
        answers: where answers are kept; beside the matrix by default.
        budget: time for asking.
        workers: answers at one time.
        time_limit: seconds for one answer.
        backends: of the mutants; () = all that are witnessed.
        device_class: whose witnesses count; None = the one with the most cells.
        fail_under: percent; below it the exit code is 1.
    """

    checker: str
    matrix: Path
    name: str | None = None
    problems: tuple[str, ...] = ()
    answers: Path | None = None
    budget: str = DEFAULT_BUDGET
    workers: int = 2
    time_limit: float = TIME_LIMIT_S
    backends: tuple[Backend, ...] = ()
    substrates: Path | None = None
    by: By = "family"
    device_class: str | None = None
    fail_under: float | None = None
    as_json: bool = False
    markdown: bool = False


def run_measure(options: MeasureOptions) -> int:
    """Put witnessed mutants to a checker, and print what it detects beside what our protocols do.

    With `fail_under`, it must detect that percentage of the mutants it was asked about; no verdict counts as missed.

    `--json` prints one object: `format` (1), `checker` (its name), `by`, `device_class`, `answers` (the file),
    `asked` (questions put by this run), `witnessed` (mutants that count), `lost` (those that cannot be made any more),
    `set_aside` (mutants of kernels that the checker does not pass), `protocols` (a list, the checker first, of `name`,
    `ours`, `held_out` (suites only, else null) and `groups`; shares as in `kernelward coverage --json`), `rejected`
    (a share: correct kernels that it fails), `zeros` (kernels answering zero that it fails), `false_rejections`
    (`substrate`, `detail`), `zeros_passed` (names), `no_verdict` (`candidate`, `detail`), `missed` {id of a mutant that
    it passes: whether our suites of three entries detect it}, `seconds` (median per answer, or null), `fail_under` and
    `ok`.

    Returns:
        0, or 1 below the threshold.

    Raises:
        InputError: the options are wrong, nothing is witnessed, or the checker gives no verdict on anything.
        MatrixError: the matrix cannot be read now.
    """
    if options.fail_under is not None and not 0 <= options.fail_under <= 100:
        raise InputError(f"--fail-under {options.fail_under}: give a percentage, 0 to 100")
    checker = ForeignChecker(options.checker, options.time_limit)
    budget_s = seconds_of(options.budget)
    name = options.name or options.checker
    answers = Answers(options.answers or _beside(options.matrix, name), name).load()
    folders, ids = folders_and_ids(options.problems)
    targets = find_targets(folders, ids, options.substrates)
    with open_measured(options.matrix) as matrix, matrix.snapshot():
        device_class = options.device_class or fullest(matrix)
        problems = read_problems(matrix, device_class)
    chosen = {t.problem.hash for t in targets}
    problems = [cells for cells in problems if cells.hash in chosen]
    plan = make_plan(targets, witnessed_ids(problems), options.backends)
    if not plan.mutants:
        raise InputError(f"{options.matrix}: no witnessed mutant of these problems on {device_class}")
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("candidates", total=len(plan.questions))
        try:
            asked = put(
                checker,
                plan,
                answers,
                workers=options.workers,
                budget_s=budget_s,
                progress=lambda done, total: progress.update(task, completed=done, total=total),
            )
        except OSError as error:
            raise InputError(f"{answers.path}: answers cannot be kept: {error}") from error
    return _say(options, count(problems, plan, answers, options.by, device_class), plan, answers, asked)


def _beside(matrix: Path, name: str) -> Path:
    words = re.sub(r"[^\w.]+", "-", name).strip("-")[:40]
    return matrix.parent / "checkers" / f"{words}-{short(sha256_text(name))}.jsonl"


def _say(options: MeasureOptions, found: Measured, plan: Plan, answers: Answers, asked: int) -> int:
    least = 100 * found.lines[0].share.at_least
    ok = options.fail_under is None or least >= options.fail_under
    if options.as_json:
        rest = {"answers": str(answers.path), "asked": asked, "fail_under": options.fail_under, "ok": ok}
        print(json.dumps({**found.to_dict(), **rest}))
        return 0 if ok else 1
    lines = [f"{asked} of {len(plan.questions)} candidates asked now, answers in {answers.path}", *summary(found)]
    if options.markdown:
        print("\n\n".join(["\n".join(f"- {line}" for line in lines), *map(markdown_rows, tables(found))]))
    else:
        console = Console()
        for line in lines:
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        for rows in tables(found):
            print_rows(rows, console)
    if not ok:
        print(f"{found.checker}: at least {least:.2f} %, below {options.fail_under:g} %")
    return 0 if ok else 1


def backends_of(names: Sequence[str]) -> tuple[Backend, ...]:
    """Backends by name.

    Raises:
        InputError: there is no such backend.
    """
    found: list[Backend] = []
    for name in names:
        if name not in ("cuda", "triton"):
            raise InputError(f"--backend {name!r}: use cuda or triton")
        found.append("triton" if name == "triton" else "cuda")
    return tuple(found)
