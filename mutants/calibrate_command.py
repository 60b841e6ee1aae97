"""The command `kernelward calibrate`: options, progress, and what is printed at the end."""

import contextlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..suites.devices import resolve_device
from ..suites.errors import InputError
from .calibrate import Calibrator
from .calibrate_mutants import COSTLY_PHASE
from .calibrate_plan import find_targets
from .calibrate_suites import Chosen, write_suites
from .calibrate_values import CalibrateOptions, Tally
from .coverage import measure
from .coverage_table import print_report
from .gate_command import run_gate
from .matrix import Matrix
from .matrix_delta import ImportReport
from .mutant import FAMILIES
from .watch import holder, only_one

DEFAULT_BUDGET = "25m"
OWN_PROBLEMS = Path("examples/problems")
_UNITS = {"s": 1, "m": 60, "h": 3600}


def seconds_of(budget: str) -> float:
    """`90s`, `25m`, `1.5h` or plain seconds.

    Raises:
        InputError: anything else.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", budget.strip())
    if match is None:
        raise InputError(f"--budget {budget!r}: give seconds, or a number with s, m or h, such as 10m")
    return float(match[1]) * _UNITS[match[2] or "s"]


def folders_and_ids(problems: Sequence[str]) -> tuple[list[Path], list[str]]:
    """What `--problems` names: folders to look in, and ids or files; our own problems where there is no folder.

    Raises:
        InputError: no folder is named, and the examples are not here.
    """
    folders = [Path(p) for p in problems if Path(p).is_dir()]
    ids = [p for p in problems if not Path(p).is_dir()]
    if not folders:
        if not OWN_PROBLEMS.is_dir():
            raise InputError("--problems: name a folder of problems, such as a KernelBench checkout")
        folders = [OWN_PROBLEMS]
    return folders, ids


class _Bars:
    """One bar per phase, with what is left of it and the evaluations per second."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}
        self.calibrator: Calibrator | None = None

    def __call__(self, phase: str, done: int, total: int) -> None:
        if phase not in self._tasks:
            self._tasks[phase] = self._progress.add_task(phase, total=total, rate="")
        rate = ""
        if phase in ("mutants", COSTLY_PHASE) and self.calibrator is not None:
            rate = f"{self.calibrator.rate:.0f} evaluations/s, {self.calibrator.left_s:.0f} s left"
        self._progress.update(self._tasks[phase], completed=done, total=total, rate=rate)


def run_calibrate(
    problems: Sequence[str],
    *,
    budget: str = DEFAULT_BUDGET,
    out: Path,
    device: str = "auto",
    workers: int | None = None,
    backends: Sequence[str] = (),
    substrates: Path | None = None,
    per_substrate: int | None = None,
    families: Sequence[str] = (),
    export_delta: Path | None = None,
    since: Path | None = None,
    import_delta: Sequence[Path] = (),
    suites: Path | None = None,
    gate: bool = False,
    as_json: bool = False,
) -> int:
    """Body of the command.

    Args:
        problems: folders, ids or files; our own problems by default.
        budget: time for mutants.
        out: folder of the matrix and the suites.
        device: `cpu`, `cuda` or `auto`.
        workers: kernels judged at one time; 2 on a CPU, 8 on a GPU.
        backends: of the substrates; CUDA on a CPU, where Triton's interpreter takes ten times as long, and both on a
            GPU by default.
        substrates: folder of substrates in place of the package's.
        per_substrate: at most so many mutants of each.
        families: of the mutants that are made, with the members of interactions; all by default. The shares over all
            mutants are then those of an unfair sample, to be read by family, and no suites are written.
        export_delta, since: write what was measured to a file, without what an earlier delta holds; also when
            interrupted.
        import_delta: take in deltas first.
        suites: where suites are written; `out`/suites by default.
        gate: judge the substrates by every protocol of the gate, and do nothing else (`gate_command.run_gate`).
        as_json: one object on standard output: `matrix`, `tally` (what this run did), `suites`, `coverage` (see
            `kernelward coverage --json`; null where nothing is witnessed yet).

    Returns:
        0; an infrastructure fault leaves its mutant for the next run and is said. With `gate` see `run_gate`.

    Raises:
        InputError: the options or the problems are wrong, or another process works on `out`.
        MatrixError: the matrix cannot be written.
    """
    console = Console(stderr=as_json)
    if unknown := sorted(set(families) - set(FAMILIES)):
        raise InputError(f"--family {', '.join(unknown)}: there are {', '.join(FAMILIES)}")
    if gate and families:
        raise InputError("--gate judges kernels that are whole: leave out --family")
    place = resolve_device(device)
    folders, ids = folders_and_ids(problems)
    options = CalibrateOptions(
        targets=tuple(find_targets(folders, ids, substrates)),
        out=out,
        device=place,
        workers=workers or (8 if place.startswith("cuda") else 2),
        budget_s=seconds_of(budget),
        backends=tuple(backends) or (("cuda", "triton") if place.startswith("cuda") else ("cuda",)),
        per_substrate=per_substrate,
        families=tuple(families),
    )
    if gate:
        return run_gate(
            options.targets,
            folders,
            device=place,
            workers=options.workers,
            backends=options.backends,
            cache=out / "gate.sqlite",
            as_json=as_json,
        )
    with contextlib.ExitStack() as stack:
        try:
            mine = stack.enter_context(only_one(out))
        except OSError as error:
            raise InputError(f"--out {out}: cannot be used: {error.strerror}") from error
        if not mine:
            return _export_beside(console, options, export_delta, since, idle=not options.budget_s and not import_delta)
        with Matrix(options.matrix_path) as matrix:
            for delta in import_delta:
                _say_import(console, delta, matrix.import_delta(delta))
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            with Progress(*columns, TextColumn("{task.fields[rate]}"), console=console) as progress:
                bars = _Bars(progress)
                calibrator = bars.calibrator = Calibrator(options, matrix, bars)
                try:
                    tally = calibrator.run()
                except KeyboardInterrupt:  # what a machine that keeps nothing has measured must not be lost with it
                    if export_delta is not None:
                        _export(console, matrix, export_delta, since)
                    raise
            hashes = [t.problem.hash for t in options.targets]
            # of an unfair sample no suite is chosen
            chosen = [] if families else write_suites(matrix, suites or out / "suites", calibrator.device_class, hashes)
            seen = matrix.query("SELECT count(*) FROM cells")[0][0] if families else any(c.suite for c in chosen)
            report = measure(matrix, device_class=calibrator.device_class) if seen else None
            if export_delta is not None:
                _export(console, matrix, export_delta, since)
    _say_tally(console, tally)
    _say_suites(console, chosen)
    if as_json:
        coverage = None if report is None else report.to_dict()
        print(
            json.dumps(
                {
                    "matrix": str(options.matrix_path),
                    "tally": _plain(tally),
                    "suites": [_line(c) for c in chosen],
                    "coverage": coverage,
                }
            )
        )
    elif report is not None:
        print_report(report, console)
    return 0


def _export_beside(
    console: Console, options: CalibrateOptions, delta: Path | None, since: Path | None, idle: bool
) -> int:
    """Another process works on the folder: all that can be done is to write what it has measured so far."""
    if delta is None or not idle:
        raise InputError(
            f"{holder(options.out)} works on {options.out} already, a watcher or another calibration: wait for it or "
            "end it, or name another --out; --budget 0 --export-delta FILE writes what it has measured so far"
        )
    with Matrix(options.matrix_path, create=False) as matrix:
        _export(console, matrix, delta, since)
    return 0


def _export(console: Console, matrix: Matrix, delta: Path, since: Path | None) -> None:
    cells = matrix.export_delta(delta, since)
    console.print(f"{cells} cells in {delta} ({delta.stat().st_size / 2**20:.2f} MiB)")


def _plain(tally: Tally) -> dict[str, Any]:
    return {
        "evaluations": tally.evaluations,
        "mutants": tally.mutants,
        "mutants_waiting": tally.waiting,
        "faults": tally.faults,
        "quarantined": tally.quarantined,
        "dropped": {f"{problem} {entry}": why for (problem, entry), why in tally.dropped.items()},
        "uncompilable": tally.uncompilable,
        "seconds": {phase: round(seconds, 2) for phase, seconds in tally.seconds.items()},
        "out_of_time": tally.out_of_time,
    }


def _line(chosen: Chosen) -> dict[str, Any]:
    return {
        "problem": chosen.problem,
        "suite": None if chosen.suite is None else chosen.suite.hash,
        "entries": [] if chosen.suite is None else [e.entry.id for e in chosen.suite.entries],
        "detected": chosen.detected,
        "witnessed": chosen.witnessed,
        "change": chosen.change if chosen.suite is not None else chosen.why,
    }


def _say_import(console: Console, delta: Path, report: ImportReport) -> None:
    console.print(
        f"{delta}: {report.added} new cells, {report.replaced} replaced, {report.unchanged} known, "
        f"{report.conflicts} conflicts"
    )
    for example in report.examples:
        console.print(f"  {example}", markup=False)


def _say_tally(console: Console, tally: Tally) -> None:
    seconds = ", ".join(f"{phase} {s:.0f} s" for phase, s in tally.seconds.items())
    spent = tally.seconds.get("mutants", 0.0)
    rate = f", {tally.evaluations / spent:.1f} a second" if tally.evaluations and spent else ""
    console.print(f"{tally.mutants} mutants, {tally.evaluations} evaluations{rate} ({seconds})")
    if tally.out_of_time:
        console.print(f"the budget is spent: {tally.waiting} mutants wait for the next run, which continues here")
    for name, why in tally.quarantined.items():
        console.print(f"quarantined: {name}: {why}", markup=False)
    for (problem, entry), why in tally.dropped.items():
        console.print(f"entry {entry} of {problem} judges nothing: {why}", markup=False)
    for name, count in tally.uncompilable.items():
        console.print(f"operator {name} makes nothing that compiles: all {count} of its mutants are compile errors")
    for fault in tally.faults[:10]:
        console.print(f"fault of the infrastructure (tried again next time): {fault}", markup=False)
    if len(tally.faults) > 10:
        console.print(f"... and {len(tally.faults) - 10} more faults")


def _say_suites(console: Console, chosen: Sequence[Chosen]) -> None:
    table = Table("problem", "suite", "detected of witnessed", "against the one before")
    for c in chosen:
        entries = "-" if c.suite is None else ", ".join(e.entry.id for e in c.suite.entries)
        table.add_row(c.problem, entries, f"{c.detected} of {c.witnessed}", c.change if c.suite else c.why)
    console.print(table)
