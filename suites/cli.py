"""Commands on suites: show, validate, build."""

import json
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from .devices import resolve_device
from .errors import InputError
from .folders import natural, problem_files
from .hashing import short
from .suite import Suite, SuiteEntry, find_suite, load_suite

if TYPE_CHECKING:
    from .build_many import Outcome
    from .problem import Problem
    from .suite_cache import Built
    from .tolerance import TolerancePolicy
    from .validity import Admission

suite_app = typer.Typer(no_args_is_help=True, help="Show, validate or build the suite of a problem.")

TargetArgument = Annotated[
    str, typer.Argument(metavar="ID|PATH", help="Problem id, problem file, or suite file (.yaml).")
]
ProblemsOption = Annotated[
    Path | None,
    typer.Option("--problems", envvar="KERNELBENCH_DIR", metavar="DIR", help="Folder that ids are looked up in."),
]
DeviceOption = Annotated[
    str, typer.Option("--device", help="cpu, cuda or cuda:N; auto takes a GPU where there is one.")
]
PolicyOption = Annotated[str, typer.Option("--precision", help="Tolerance policy: fp32, tf32, fp16, bf16, ...")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


@suite_app.command()
def show(
    target: TargetArgument,
    problems: ProblemsOption = None,
    device: DeviceOption = "auto",
    precision: PolicyOption = "fp32",
    as_json: JsonOption = False,
) -> None:
    """Print a problem's suite: the library's, or else the default one (built once, then kept)."""
    suite = load_suite(target) if _is_suite_file(target) else _own_suite(target, problems, device, precision)
    if suite is None:
        raise typer.Exit(3)
    if as_json:
        print(json.dumps(suite_json(suite)))
    else:
        print_suite(suite, Console())


@suite_app.command()
def validate(
    target: TargetArgument,
    problems: ProblemsOption = None,
    problem: Annotated[
        str | None, typer.Option("--problem", help="The problem of a suite file, where its id is not enough.")
    ] = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Put every entry of a suite through the validity gate again. Exit code 1 where one is not admitted."""
    from .problem import find_problem

    if _is_suite_file(target):
        suite = load_suite(target)
        source = find_problem(problem or suite.problem_id, problems)
    else:
        source = find_problem(target, problems)
        found = find_suite(source)
        if found is None:
            raise InputError(f"the library has no suite for {source.id}; name a suite file, or build one")
        suite = found
    if source.hash != suite.problem_hash:
        raise InputError(
            f"the suite is for another version of {suite.problem_id} (hash {short(suite.problem_hash)}) than "
            f"{source.place} (hash {short(source.hash)}); build it again"
        )
    answers = _admit_all(source, suite, device)
    refused = [a for a in answers if not a.admitted]
    if as_json:
        print(json.dumps({"suite": suite.hash, "valid": not refused, "entries": [a.to_dict() for a in answers]}))
    else:
        _print_answers(suite, answers, Console())
    raise typer.Exit(1 if refused else 0)


@suite_app.command()
def build(
    target: Annotated[
        str, typer.Argument(metavar="ID|PATH", help="Problem id, problem file, or a folder: all problems in it.")
    ],
    problems: ProblemsOption = None,
    device: DeviceOption = "auto",
    precision: PolicyOption = "fp32",
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the suite to this YAML file; of a folder, a file each into it.")
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Of a folder: problems at one time.")] = 2,
    as_json: JsonOption = False,
) -> None:
    """Build the default suite of a problem, or of all in a folder.

    Exit code 3 where no entry of a problem is admitted (it cannot be refereed), 1 where one of a folder could not be
    built. What was built is kept, so the same command goes on where an earlier one was ended.
    """
    from .problem import find_problem

    if Path(target).is_dir() and len(problem_files(Path(target))) != 1:
        raise typer.Exit(_build_folder(Path(target), device, precision, out, workers, as_json))
    problem = find_problem(target, problems)
    suite, rejected = _build(problem, device, precision)
    if out is not None and suite is not None:
        into = out.is_dir() or (Path(target).is_dir() and out.suffix not in (".yaml", ".yml"))
        _write(out / f"{problem.id}.yaml" if into else out, suite, folders=into)
    if as_json:
        print(json.dumps({"suite": None if suite is None else suite_json(suite), "rejected": _reasons(rejected)}))
    else:
        console = Console()
        if suite is not None:
            print_suite(suite, console)
        for r in rejected:
            console.print(f"not admitted: {r.entry.id}: {r.reason}: {r.detail}", markup=False, soft_wrap=True)
    if suite is None:
        print(f"kernelward: no entry of {target} is admitted: it cannot be refereed", file=sys.stderr)
        raise typer.Exit(3)


def _build_folder(folder: Path, device: str, precision: str, out: Path | None, workers: int, as_json: bool) -> int:
    """Suites of all problems of a folder; the exit code."""
    from .build_many import Outcome, build_many
    from .problem import find_problem

    files = problem_files(folder)
    if not files:
        raise InputError(f"folder {folder} holds no .py files")
    problems: list[Problem] = []
    outcomes: dict[str, Outcome] = {}
    for id, file in files.items():
        try:
            problems.append(replace(find_problem(str(file)), id=id))
        except InputError as error:  # the others are built for all that
            outcomes[id] = Outcome(id, None, (), str(error))
    with _progress(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()) as progress:
        task = progress.add_task(folder.name, total=len(problems))

        def done(outcome: Outcome) -> None:
            outcomes[outcome.problem_id] = outcome
            if out is not None and outcome.suite is not None:
                _write(out / f"{outcome.problem_id}.yaml", outcome.suite, folders=True)
            progress.update(task, advance=1, description=outcome.problem_id)

        build_many(problems, resolve_device(device), _policy(precision), workers, done)
    found = [outcomes[id] for id in sorted(outcomes, key=natural)]
    if as_json:
        print(json.dumps({o.problem_id: _outcome_json(o) for o in found}))
    else:
        _print_outcomes(found, Console())
    refused = any(o.suite is None and not o.failure for o in found)
    return 1 if any(o.failure for o in found) else 3 if refused else 0


def _outcome_json(outcome: "Outcome") -> dict[str, Any]:
    suite, rejected = outcome.suite, _reasons(outcome.rejected)
    return {"suite": None if suite is None else suite_json(suite), "rejected": rejected, "failure": outcome.failure}


def _print_outcomes(outcomes: "list[Outcome]", console: Console) -> None:
    """One line for each problem that lacks something, and how many there are of each kind."""
    states = Counter[str]()
    for outcome in outcomes:
        state, said = _state(outcome)
        states[state] += 1
        if said:
            console.print(f"{outcome.problem_id}: {state}: {said}", markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"{len(outcomes)} problems: " + ", ".join(f"{n} {state}" for state, n in states.most_common()), highlight=False
    )


def _state(outcome: "Outcome") -> tuple[str, str]:
    """What a problem got, and what people should know of it ("" where nothing is lacking)."""
    if outcome.failure:
        return "failed", outcome.failure
    if outcome.suite is None:
        return "unrefereeable", ", ".join(f"{r} ({n})" for r, n in Counter(r.reason for r in outcome.rejected).items())
    entries, lacking = outcome.suite.entries, outcome.suite.provenance
    gaps = [f"{name} {lacking[name]}" for name in ("uncovered_regions", "unguarded_outputs") if name in lacking]
    return ("one entry", ", ".join(gaps) or "no other is admitted") if len(entries) == 1 else ("built", ", ".join(gaps))


def _write(path: Path, suite: Suite, folders: bool = False) -> None:
    try:
        if folders:
            path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(suite.to_yaml(), encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error


def _reasons(rejected: "Iterable[Admission]") -> list[dict[str, str]]:
    return [{"entry": r.entry.id, "reason": r.reason, "detail": r.detail} for r in rejected]


def suite_json(suite: Suite) -> dict[str, Any]:
    """A suite for `--json`: what its YAML holds, with the ids and the hash that follow from it."""

    def item(entry: SuiteEntry) -> dict[str, Any]:
        return {"id": entry.entry.id, "declared_shape": entry.entry.declared_shape, **entry.to_dict()}

    return {
        "hash": suite.hash,
        "problem": suite.problem_id,
        "problem_hash": suite.problem_hash,
        "policy": suite.policy,
        "calibrated": suite.calibrated,
        "coverage": None if suite.coverage is None else dict(suite.coverage),
        "entries": [item(e) for e in suite.entries],
        "reserves": [item(e) for e in suite.reserves],
        "provenance": dict(suite.provenance),
    }


def print_suite(suite: Suite, console: Console) -> None:
    """A suite for people."""
    state = "calibrated" if suite.calibrated else "uncalibrated"
    console.print(f"{suite.problem_id}: {state}, policy {suite.policy}, hash {short(suite.hash)}", highlight=False)
    for protocol, measured in (suite.coverage or {}).items():
        console.print(f"  coverage of {protocol}: {measured['detected']} of {measured['witnessed']} mutants")
    table = Table(box=None, pad_edge=False)
    for name in ("entry", "shape", "device", "tolerance", "power", "KiB", "role"):
        table.add_column(name, no_wrap=name != "shape")
    for role, items in (("runs", suite.entries), ("reserve", suite.reserves)):
        for item in items:
            shape = ", ".join(f"{k}={v}" for k, v in item.entry.constants) or "declared"
            for m in item.measured:
                table.add_row(
                    item.entry.id,
                    shape,
                    m.device_class,
                    ", ".join(f"{t:.1e}" for t in m.tolerance),
                    ", ".join(f"{p:.3f}" for p in m.power),
                    str(m.bytes >> 10),
                    role,
                )
    console.print(table)
    for key, value in suite.provenance.items():
        console.print(f"  {key}: {value}", markup=False, highlight=False)


def _print_answers(suite: Suite, answers: "list[Admission]", console: Console) -> None:
    for answer in answers:
        said = "admitted" if answer.admitted else f"NOT admitted: {answer.reason}: {answer.detail}"
        console.print(f"{answer.entry.id}: {said}", markup=False, highlight=False, soft_wrap=True)
    refused = sum(not a.admitted for a in answers)
    console.print(f"{len(answers) - refused} of {len(answers)} entries of {suite.problem_id} are admitted here")


def _is_suite_file(target: str) -> bool:
    return Path(target).suffix in (".yaml", ".yml")


def _own_suite(target: str, problems: Path | None, device: str, precision: str) -> Suite | None:
    from .problem import find_problem

    problem = find_problem(target, problems)
    found = find_suite(problem)
    if found is not None:
        return found
    suite, rejected = _build(problem, device, precision)
    if suite is None:
        reasons = "; ".join(dict.fromkeys(f"{r.entry.id}: {r.reason}" for r in rejected))
        print(f"kernelward: no entry of {problem.id} is admitted: {reasons}", file=sys.stderr)
    return suite


def _build(problem: "Problem", device: str, precision: str) -> "Built":
    from .defaults import cached_default_suite

    with _progress() as progress:
        task = progress.add_task(problem.id, total=None)
        return cached_default_suite(
            problem,
            resolve_device(device),
            _policy(precision),
            progress=lambda entry: progress.update(task, description=f"{problem.id}: measuring {entry}"),
        )


def _admit_all(problem: "Problem", suite: Suite, device: str) -> "list[Admission]":
    from .validity import admit

    answers, policy = [], _policy(suite.policy)
    with _progress() as progress:
        task = progress.add_task(problem.id, total=None)
        for item in (*suite.entries, *suite.reserves):
            progress.update(task, description=f"{problem.id}: measuring {item.entry.id}")
            answers.append(admit(problem, item.entry, resolve_device(device), policy))
    return answers


def _progress(*more: ProgressColumn) -> Progress:
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), *more, TimeElapsedColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal, transient=True)


def _policy(name: str) -> "TolerancePolicy":
    from .tolerance import TolerancePolicy

    return TolerancePolicy.parse(name)
