"""Parity: the real checker and one of our protocols on the same candidates, one by one, resumably."""

import json
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ..suites.devices import resolve_device
from ..suites.errors import InputError
from ..suites.hashing import stable_hash
from ..suites.problem import Problem, find_problem
from ..suites.protocol import load_protocol
from .cli import Commands, run
from .client import JudgeClient
from .kernelbench import TIME_LIMIT_S, OfficialChecker
from .score import resolve_problems
from .score_rows import Row, read_rows
from .score_store import ScoreStore
from .score_summary import wilson
from .task import JudgeConfig, Task
from .verdict import Outcome, Verdict

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """One candidate on which the two disagree."""

    where: str
    problem: str
    official: str
    ours: str


@dataclass(frozen=True, slots=True)
class Parity:
    """How far the two agree.

    Attributes:
        table: (official verdict, our verdict) -> candidates.
        both: candidates that both decided; agree: those with the same acceptance; the interval is Wilson's at 95 %.
        official_s, ours_s: median seconds per verdict over those.
    """

    table: Mapping[tuple[str, str], int]
    both: int
    agree: int
    low: float
    high: float
    official_s: float | None
    ours_s: float | None
    differences: tuple[Difference, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON-able mapping; the table as a list of rows."""
        rows = [{"official": a, "ours": b, "candidates": n} for (a, b), n in sorted(self.table.items())]
        return asdict(self) | {"table": rows}


def run_parity(
    rows: Sequence[Row],
    problems: Mapping[int, Problem],
    store: ScoreStore,
    official: Callable[[Problem, str], Verdict],
    ours: Callable[[Problem, str], Verdict],
    settings: str,
    advance: Callable[[], None],
) -> list[Record]:
    """Judge every row by both, one at a time, and append each as it is done.

    Args:
        settings: hash of what the verdicts depend on besides the row.

    Returns:
        The records of these rows, those of an earlier run included.
    """
    records: list[Record] = []
    for row in rows:
        if row.number not in problems:
            continue
        problem = problems[row.number]
        identity = stable_hash([row.content, problem.hash, settings])
        known = store.records.get(identity)
        if known is None or not all(Outcome(known[side]["verdict"]).decided for side in ("official", "ours")):
            store.append(
                {
                    "id": identity,
                    "row": row.number,
                    "where": row.where,
                    "problem": problem.id,
                    "columns": dict(row.columns),
                    "official": official(problem, row.code).to_json(),
                    "ours": ours(problem, row.code).to_json(),
                }
            )
        records.append(store.records[identity])
        advance()
    return records


def compare(records: Iterable[Record]) -> Parity:
    """The agreement table of parity records."""
    table: Counter[tuple[str, str]] = Counter()
    differences, both, seconds = [], 0, []
    for record in records:
        official, ours = record["official"], record["ours"]
        table[official["verdict"], ours["verdict"]] += 1
        if not (Outcome(official["verdict"]).decided and Outcome(ours["verdict"]).decided):
            continue
        both += 1
        seconds.append((official["seconds"], ours["seconds"]))
        if (official["verdict"] == "correct") != (ours["verdict"] == "correct"):
            differences.append(Difference(record["where"], record["problem"], _text(official), _text(ours)))
    agree = both - len(differences)
    low, high = wilson(agree, both)
    return Parity(
        table=dict(table),
        both=both,
        agree=agree,
        low=low,
        high=high,
        official_s=statistics.median(a for a, _ in seconds) if seconds else None,
        ours_s=statistics.median(b for _, b in seconds) if seconds else None,
        differences=tuple(differences),
    )


def _text(verdict: Mapping[str, Any]) -> str:
    err = "" if verdict.get("err") is None else f", err {verdict['err']} against {verdict['tolerance']}"
    return f"{verdict['verdict']} ({verdict['reason']}{err}) {verdict['message']}"[:300]


def print_parity(parity: Parity, console: Console) -> None:
    """The agreement as a table, and the differences one by one."""
    names = sorted({name for pair in parity.table for name in pair})
    table = Table(title="official (rows) against ours (columns)")
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right")
    for official in names:
        table.add_row(official, *(str(parity.table.get((official, ours), 0)) for ours in names))
    console.print(table)
    if parity.both:
        share = f"{parity.agree / parity.both:.1%}, 95 % interval {parity.low:.1%} - {parity.high:.1%}"
        console.print(f"same acceptance on {parity.agree} of {parity.both} that both decided ({share})")
        console.print(f"median seconds per verdict: official {parity.official_s:.2f}, ours {parity.ours_s:.2f}")
    for d in parity.differences:
        console.print(f"- {d.where} ({d.problem})\n    official: {d.official}\n    ours:     {d.ours}", markup=False)


app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

CheckoutOption = Annotated[Path, typer.Option("--checkout", help="Folder of a KernelBench checkout.")]
DeviceOption = Annotated[str, typer.Option("--device", help="cuda or cuda:N.")]
LimitOption = Annotated[float, typer.Option("--time-limit", help="Seconds for one candidate under the real checker.")]
UnconfinedOption = Annotated[
    bool, typer.Option("--unconfined", help="Run candidates of the real checker with your own rights.")
]


@app.command()
def evaluate(
    candidate: Annotated[Path, typer.Argument(help="File that defines ModelNew.")],
    problem: Annotated[str, typer.Option("--problem", help="Problem file, or an id such as level1/23.")],
    checkout: CheckoutOption,
    device: DeviceOption = "cuda",
    time_limit: LimitOption = TIME_LIMIT_S,
    unconfined: UnconfinedOption = False,
) -> None:
    """Judge one candidate with the checkout's own evaluation; prints the verdict as JSON."""
    checker = OfficialChecker(checkout, resolve_device(device), time_limit=time_limit, confine=not unconfined)
    try:
        source = candidate.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{candidate}: cannot read the candidate: {error}") from error
    verdict = checker.judge(find_problem(problem, checkout), source)
    print(json.dumps(verdict.to_json()))
    raise typer.Exit(verdict.exit_code)


@app.command()
def parity(
    checkout: CheckoutOption,
    candidates: Annotated[Path, typer.Option("--candidates", help="Runs folder or JSONL, as for `kernelward score`.")],
    out: Annotated[Path, typer.Option("--out", help="JSONL of both verdicts; an existing one is continued.")],
    problems: Annotated[Path | None, typer.Option("--problems", help="Default: the checkout.")] = None,
    protocol: Annotated[str, typer.Option("--protocol", help="Ours to hold against it.")] = "kernelbench-head",
    device: DeviceOption = "cuda",
    time_limit: LimitOption = TIME_LIMIT_S,
    unconfined: UnconfinedOption = False,
    fail_under: Annotated[float | None, typer.Option("--fail-under", help="Exit 1 below this share.")] = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Hold the checkout's own evaluation against one of our protocols on the same candidates."""
    spec = load_protocol(protocol)
    rows, by_row = resolve_problems(read_rows(candidates), problems or checkout)
    for row in rows:
        if row.error:
            print(f"left out: {row.where}: {row.error}", file=sys.stderr)
    name = resolve_device(device)
    checker = OfficialChecker(checkout, name, time_limit=time_limit, confine=not unconfined)
    checker.probe()
    settings = stable_hash([spec.hash, str(checker.checkout), name.partition(":")[0]])
    console = Console(stderr=True)
    with ScoreStore(out) as store, JudgeClient(JudgeConfig(device=name, workers=1)) as client:
        done = 0

        def advance() -> None:
            nonlocal done
            done += 1
            console.print(f"{done} of {len(by_row)}")

        def ours(problem: Problem, code: str) -> Verdict:
            return client.judge(Task(candidate=code, problem=problem, protocol=protocol, run_key=store.run_key))

        records = run_parity(rows, by_row, store, checker.judge, ours, settings, advance)
    result = compare(records)
    if as_json:
        print(json.dumps(result.to_json(), indent=2))
    else:
        print_parity(result, Console())
    share = result.agree / result.both if result.both else 0.0
    raise typer.Exit(1 if fail_under is not None and share < fail_under else 0)


def main() -> None:
    """Entry point of `python -m kernelward.reward.kernelbench`."""
    run(app, "python -m kernelward.reward.kernelbench")
