"""`kernelward score`: judge many generations by several protocols, resumably."""

import json
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..suites.devices import resolve_device
from ..suites.errors import InputError
from ..suites.hashing import sha256_text, stable_hash
from ..suites.problem import Problem, find_problem, problem_from_source
from ..suites.protocol import ProtocolSpec, load_protocol
from ..suites.suite import find_suite
from ..suites.suite_cache import suite_identity
from .client import JudgeClient
from .score_rows import Row, read_rows
from .score_store import ScoreStore
from .score_summary import Coverage, Summary, print_summary, summarise
from .task import JudgeConfig, Task
from .verdict import Outcome, Verdict

Judge = Callable[[Task], Verdict]


@dataclass(frozen=True, slots=True)
class Protocol:
    """A protocol as the user named it, and what it says."""

    ref: str
    spec: ProtocolSpec


@dataclass(frozen=True, slots=True)
class Job:
    """One thing to judge: equal candidates for one problem under one protocol are one job.

    Attributes:
        rows: the rows that get the verdict, each with its identity in the store.
    """

    code: str
    problem: Problem
    protocol: Protocol
    rows: tuple[tuple[str, Row], ...]


def load_protocols(refs: Sequence[str]) -> list[Protocol]:
    """The protocols that the user named, each once.

    Raises:
        InputError: an unknown one, or two that share a name.
    """
    protocols: dict[str, Protocol] = {}
    for ref in refs:
        spec = load_protocol(ref)
        known = protocols.setdefault(
            spec.name, Protocol(str(Path(ref).resolve()) if Path(ref).is_file() else ref, spec)
        )
        if known.spec.hash != spec.hash:
            raise InputError(f"two different protocols are called {spec.name!r} ({known.ref} and {ref}); rename one")
    return list(protocols.values())


def resolve_problems(rows: Sequence[Row], folder: Path | None) -> tuple[list[Row], dict[int, Problem]]:
    """The problem of each row by its number; rows without one get the error.

    Raises:
        InputError: no row names a problem that can be found.
    """
    found: dict[tuple[str | None, str | None], Problem | InputError] = {}
    resolved: dict[int, Problem] = {}
    result: list[Row] = []
    first: InputError | None = None
    for row in rows:
        if row.error is None:
            key = (row.problem, row.reference)
            if key not in found:
                found[key] = _find(row, folder)
            problem = found[key]
            if isinstance(problem, InputError):
                first = first or problem
                row = replace(row, error=str(problem))
            else:
                resolved[row.number] = problem
        result.append(row)
    if not resolved:
        why = first or (rows[0].error if rows else "no rows")
        raise InputError(f"none of the {len(rows)} rows can be judged; the first: {rows[0].where}: {why}")
    return result, resolved


def _find(row: Row, folder: Path | None) -> Problem | InputError:
    try:
        return (
            problem_from_source(row.reference) if row.reference is not None else find_problem(row.problem or "", folder)
        )
    except InputError as error:
        return error


def plan(
    rows: Sequence[Row],
    problems: Mapping[int, Problem],
    protocols: Sequence[Protocol],
    identify: Callable[[Problem, Protocol], str],
) -> tuple[list[Job], dict[str, Row]]:
    """Jobs for the rows that can be judged, and the identities of those that cannot.

    Args:
        identify: what, besides the row, a verdict depends on, as a hash.
    """
    groups: dict[tuple[str, str, str], list[tuple[str, Row]]] = {}
    bad: dict[str, Row] = {}
    for row in rows:
        if row.error is not None:
            bad[stable_hash([row.content, row.error])] = row
            continue
        for protocol in protocols:
            problem = problems[row.number]
            identity = stable_hash([row.content, problem.hash, identify(problem, protocol)])
            groups.setdefault((problem.hash, sha256_text(row.code), protocol.spec.name), []).append((identity, row))
    by_name = {protocol.spec.name: protocol for protocol in protocols}
    jobs = [
        Job(members[0][1].code, problems[members[0][1].number], by_name[name], tuple(members))
        for (_, _, name), members in groups.items()
    ]
    return jobs, bad


def pending(jobs: Sequence[Job], store: ScoreStore) -> list[Job]:
    """What is left to judge: a row without a verdict because of our own fault is judged again."""

    def open_(identity: str) -> bool:
        record = store.records.get(identity)
        return record is None or record.get("verdict") == Outcome.INFRA_ERROR

    left = (replace(job, rows=tuple(item for item in job.rows if open_(item[0]))) for job in jobs)
    return [job for job in left if job.rows]


def judge_jobs(
    jobs: Sequence[Job], judge: Judge, run_key: bytes, workers: int
) -> Iterator[tuple[Job, Verdict | InputError]]:
    """Judge on several threads; yields in the order in which verdicts arrive.

    Raises:
        Exception: whatever the judge raises that is not the user's error.
    """
    todo: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[Job, Verdict | BaseException]] = queue.SimpleQueue()
    for job in jobs:
        todo.put(job)

    def work() -> None:
        while (job := todo.get()) is not None:
            result: Verdict | BaseException
            try:
                result = judge(
                    Task(candidate=job.code, problem=job.problem, protocol=job.protocol.ref, run_key=run_key)
                )
            except BaseException as error:  # handed to the thread that reads
                result = error
            done.put((job, result))

    for _ in range(workers):
        todo.put(None)
        threading.Thread(target=work, name="kernelward-score", daemon=True).start()
    for _ in jobs:
        job, result = done.get()
        if isinstance(result, BaseException) and not isinstance(result, InputError):
            raise result
        yield job, result


def score(
    jobs: Sequence[Job],
    bad: Mapping[str, Row],
    store: ScoreStore,
    judge: Judge,
    workers: int,
    advance: Callable[[int], None],
) -> None:
    """Judge what is pending and append each row's line as soon as its verdict is there.

    Args:
        advance: called with the number of rows that each verdict finished.
    """
    for identity, row in bad.items():
        if identity not in store.records:
            store.append(_line(identity, row) | {"error": row.error})
    for job, result in judge_jobs(pending(jobs, store), judge, store.run_key, workers):
        for identity, row in job.rows:
            line = _line(identity, row) | {"protocol": job.protocol.spec.name, "problem": job.problem.id}
            if isinstance(result, InputError):
                store.append(line | {"error": str(result)})
            else:
                store.append(line | {k: v for k, v in result.to_json().items() if k not in ("protocol", "problem")})
        advance(len(job.rows))


def _line(identity: str, row: Row) -> dict[str, Any]:
    return {
        "id": identity,
        "row": row.number,
        "where": row.where,
        "columns": dict(row.columns),
        "recorded": None if row.recorded is None else asdict(row.recorded),
        "error": None,
        "verdict": None,
    }


def measured_coverage(problems: Mapping[str, Problem], protocol: str) -> Coverage | None:
    """A protocol's measured coverage, summed over the problems whose suite was calibrated."""
    found = []
    for problem in problems.values():
        suite = find_suite(problem)
        measured = (suite.coverage or {}).get(protocol) if suite is not None and suite.calibrated else None
        if measured is not None:
            found.append(measured)
    if not found:
        return None
    detected, witnessed = (sum(int(m[key]) for m in found) for key in ("detected", "witnessed"))
    return Coverage(detected, witnessed, len(found), len(problems))


def run_score(
    source: Path,
    out: Path,
    *,
    protocols: Sequence[str],
    problems: Path | None = None,
    device: str = "auto",
    workers: int = 2,
    as_json: bool = False,
) -> int:
    """The command `kernelward score`.

    Returns:
        0 all rows judged; 2 some rows are wrong (the others are judged); 3 some have no verdict for a reason of ours.

    Raises:
        InputError: nothing can be judged, or the output cannot be used; raised before anything runs.
    """
    if source.exists() and out.exists() and out.samefile(source):
        raise InputError(f"--out {out} is the input itself; choose another file")
    chosen = load_protocols(protocols)
    config = JudgeConfig(device=resolve_device(device), workers=workers)
    rows, by_row = resolve_problems(read_rows(source), problems)
    identify = _identities(config)
    jobs, bad = plan(rows, by_row, chosen, identify)
    console = Console(stderr=True)
    with ScoreStore(out) as store, JudgeClient(config) as client:
        if store.repaired:
            console.print(f"{out}: an unfinished last line was cut off")
        total = sum(len(job.rows) for job in jobs)
        with _progress(console) as progress:
            bar = progress.add_task("judging", total=total)
            progress.advance(bar, total - sum(len(job.rows) for job in pending(jobs, store)))
            score(jobs, bad, store, client.judge, workers, lambda n: progress.advance(bar, n))
        wanted = [*bad, *(identity for job in jobs for identity, _ in job.rows)]
        records = [store.records[identity] for identity in wanted]
    distinct = {problem.hash: problem for problem in by_row.values()}
    coverage = {p.spec.name: measured_coverage(distinct, p.spec.name) for p in chosen}
    summary = summarise(records, [p.spec.name for p in chosen], coverage)
    _show(summary, as_json)
    if summary.bad_rows:
        return 2
    return 3 if any(str(Outcome.INFRA_ERROR) in p.no_verdict for p in summary.protocols) else 0


def _identities(config: JudgeConfig) -> Callable[[Problem, Protocol], str]:
    device_class = config.device.partition(":")[0]

    def identify(problem: Problem, protocol: Protocol) -> str:
        suite = suite_identity(problem, device_class, config.precision) if protocol.spec.uses_suite else None
        return stable_hash([protocol.spec.name, protocol.spec.hash, suite, device_class, config.precision, config.ties])

    return identify


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)


def _show(summary: Summary, as_json: bool) -> None:
    if as_json:
        json.dump(summary.to_json(), sys.stdout, indent=2)
        print()
    else:
        print_summary(summary, Console())
