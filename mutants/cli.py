"""The commands of this room, and the `kernelward` console script assembled from those of all three."""

from pathlib import Path
from typing import Annotated

import typer

from ..reward.cli import app, run
from ..suites.errors import InputError
from . import promote_command  # adds `suite promote`

_MATRIX = promote_command.PROPOSALS.parent / "matrix.sqlite"
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


@app.command()
def mutate(
    substrate: Annotated[str, typer.Argument(help="Name of a substrate, or a file with a CUDA or Triton candidate.")],
    show: Annotated[str | None, typer.Option("--show", metavar="ID", help="Print this mutant as a diff.")] = None,
    family: Annotated[str | None, typer.Option("--family", help="List this family of operators alone.")] = None,
    matrix: Annotated[
        Path, typer.Option("--matrix", help="With --show: how to reproduce what this matrix or delta has.")
    ] = _MATRIX,
    as_json: JsonOption = False,
) -> None:
    """List the mutants of a kernel, or print one as a diff."""
    from .mutate import run_mutate

    raise typer.Exit(run_mutate(substrate, show, family, as_json, matrix))


@app.command()
def calibrate(
    problems: Annotated[
        list[str] | None,
        typer.Option("--problems", envvar="KERNELBENCH_DIR", metavar="DIR|ID", help="Folders, ids or files; repeat."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option("--budget", help="Time for mutants: 90s, 25m (the default), 2h; with --watch: of a pass."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of the kill matrix and the suites.")] = _MATRIX.parent,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or auto.")] = "auto",
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Kernels judged at one time.")] = None,
    backend: Annotated[
        list[str] | None, typer.Option("--backend", help="cuda, triton (on a CPU: cuda); repeat.")
    ] = None,
    substrates: Annotated[Path | None, typer.Option("--substrates", help="Folder in place of our own.")] = None,
    per_substrate: Annotated[
        int | None, typer.Option("--per-substrate", min=1, help="At most so many mutants of each.")
    ] = None,
    family: Annotated[list[str] | None, typer.Option("--family", help="Mutants of this family alone; repeat.")] = None,
    export_delta: Annotated[Path | None, typer.Option("--export-delta", help="Write what was measured.")] = None,
    since: Annotated[Path | None, typer.Option("--since", help="Leave out what this delta holds.")] = None,
    import_delta: Annotated[
        list[Path] | None, typer.Option("--import", help="Take in a delta first; repeat for several.")
    ] = None,
    suites: Annotated[Path | None, typer.Option("--suites", help="Where suites are written; OUT/suites.")] = None,
    gate: Annotated[
        bool, typer.Option("--gate", help="Only judge the substrates: is each correct here? Exit code 1 if not.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Stay, measure again what changes make stale, publish OUT/coverage.json.")
    ] = False,
    bank: Annotated[
        Path | None, typer.Option("--bank", help="With --watch: accepted kernels, the reward's bank by default.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure how much every protocol notices, and choose suites that notice the most. Resumable.

    Breaks correct kernels on purpose, sees which inputs show it, and prints per protocol the share that it detects.
    """
    if watch:
        from .watch_command import run_watch

        if as_json or gate or family or export_delta or since or import_delta:
            raise InputError(
                "--watch measures all families and publishes files: leave out --family, --json, --gate, "
                "--export-delta, --since and --import"
            )
        raise typer.Exit(
            run_watch(problems or [], budget, out, device, workers, backend, substrates, per_substrate, suites, bank)
        )
    from .calibrate_command import DEFAULT_BUDGET, run_calibrate

    raise typer.Exit(
        run_calibrate(
            problems or [],
            budget=budget or DEFAULT_BUDGET,
            out=out,
            device=device,
            workers=workers,
            backends=backend or [],
            substrates=substrates,
            per_substrate=per_substrate,
            families=family or [],
            export_delta=export_delta,
            since=since,
            import_delta=import_delta or [],
            suites=suites,
            gate=gate,
            as_json=as_json,
        )
    )


@app.command()
def coverage(
    protocol: Annotated[
        list[str] | None, typer.Option("--protocol", help="A name, a YAML file, kernelward or kernelward@K; repeat.")
    ] = None,
    by: Annotated[str, typer.Option("--by", help="family, problem, operator or backend.")] = "family",
    fail_under: Annotated[
        float | None, typer.Option("--fail-under", metavar="PERCENT", help="Exit code 1 below this.")
    ] = None,
    matrix: Annotated[Path, typer.Option("--matrix", help="The kill matrix, or a delta of one.")] = _MATRIX,
    device_class: Annotated[str | None, typer.Option("--device", help="cpu or cuda; the fuller one.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Tables in Markdown.")] = False,
    agreement: Annotated[
        bool, typer.Option("--agreement", help="Instead: do the CPU emulator and a GPU say the same of each cell?")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """How many mutants each protocol detects, counted from a kill matrix."""
    from .coverage import CoverageOptions, run_coverage
    from .coverage_report import grouping

    if agreement:
        from .agreement_table import run_agreement

        if protocol or device_class:
            raise InputError("--agreement compares cells of both device classes: leave out --protocol and --device")
        raise typer.Exit(run_agreement(matrix, grouping(by), fail_under, as_json, markdown))
    options = CoverageOptions(matrix, tuple(protocol or ()), grouping(by), fail_under, as_json, markdown, device_class)
    raise typer.Exit(run_coverage(options))


@app.command()
def measure(
    checker: Annotated[
        str,
        typer.Argument(
            help="A command with {problem} and {candidate}, exit code 0 = pass, 1 = fail; or package:function."
        ),
    ],
    matrix: Annotated[Path, typer.Option("--matrix", help="A kill matrix or a delta: what is witnessed.")] = _MATRIX,
    problems: Annotated[
        list[str] | None,
        typer.Option("--problems", envvar="KERNELBENCH_DIR", metavar="DIR|ID", help="Folders, ids or files; repeat."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Answers are kept under it; a changed checker needs a new one.")
    ] = None,
    answers: Annotated[Path | None, typer.Option("--answers", help="JSON lines; beside the matrix.")] = None,
    budget: Annotated[str, typer.Option("--budget", help="Time for asking: 90s, 25m, 2h.")] = "25m",
    workers: Annotated[int, typer.Option("--workers", min=1, help="Candidates at one time.")] = 2,
    time_limit: Annotated[float, typer.Option("--time-limit", min=1.0, help="Seconds for one candidate.")] = 300.0,
    backend: Annotated[list[str] | None, typer.Option("--backend", help="Mutants in cuda or triton; repeat.")] = None,
    substrates: Annotated[Path | None, typer.Option("--substrates", help="Folder in place of our own.")] = None,
    by: Annotated[str, typer.Option("--by", help="family, problem, operator or backend.")] = "family",
    device_class: Annotated[str | None, typer.Option("--device", help="cpu or cuda; the fuller one.")] = None,
    fail_under: Annotated[
        float | None, typer.Option("--fail-under", metavar="PERCENT", help="Exit code 1 below this.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Tables in Markdown.")] = False,
    as_json: JsonOption = False,
) -> None:
    """How many mutants somebody else's checker detects. It runs wrong kernels with your rights: use a container."""
    from .coverage_report import grouping
    from .foreign_command import MeasureOptions, backends_of, run_measure

    raise typer.Exit(
        run_measure(
            MeasureOptions(
                checker=checker,
                matrix=matrix,
                name=name,
                problems=tuple(problems or ()),
                answers=answers,
                budget=budget,
                workers=workers,
                time_limit=time_limit,
                backends=backends_of(backend or ()),
                substrates=substrates,
                by=grouping(by),
                device_class=device_class,
                fail_under=fail_under,
                as_json=as_json,
                markdown=markdown,
            )
        )
    )


@app.command()
def replay(
    mutant: Annotated[str, typer.Argument(help="Id of a mutant in the matrix.")],
    entry: Annotated[str, typer.Argument(help="Id of an entry that it was put to.")],
    matrix: Annotated[Path, typer.Option("--matrix", help="The kill matrix, or a delta of one.")] = _MATRIX,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or auto: where it was measured.")] = "auto",
    problems: Annotated[
        list[Path] | None,
        typer.Option("--problems", envvar="KERNELBENCH_DIR", metavar="DIR", help="Folders of problems; repeat."),
    ] = None,
    substrates: Annotated[Path | None, typer.Option("--substrates", help="Folder beside our own.")] = None,
    bank: Annotated[Path | None, typer.Option("--bank", help="Of accepted kernels, the reward's by default.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure one cell of the kill matrix again. Exit code 0 if the same is seen, 1 if not."""
    from .replay_command import run_replay

    raise typer.Exit(
        run_replay(
            mutant,
            entry,
            matrix=matrix,
            device=device,
            problems=problems or (),
            substrates=substrates,
            bank=bank,
            as_json=as_json,
        )
    )


@app.command()
def report(
    matrix: Annotated[
        Path | None,
        typer.Option("--matrix", help=f"The kill matrix, or a delta of one; {_MATRIX} by default.", show_default=False),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="One HTML file with everything in it.")] = Path("report.html"),
    stryker: Annotated[Path | None, typer.Option("--stryker", help="Also Stryker's mutation report JSON.")] = None,
    markdown: Annotated[Path | None, typer.Option("--markdown", help="Also Markdown for a pull request.")] = None,
    scored: Annotated[
        Path | None, typer.Option("--scored", metavar="FILE.jsonl", help="An output of `kernelward score`.")
    ] = None,
    history: Annotated[
        Path | None, typer.Option("--history", metavar="FILE.jsonl", help="Coverage that a watcher published.")
    ] = None,
    substrates: Annotated[Path | None, typer.Option("--substrates", help="Folder beside our own, for diffs.")] = None,
    device_class: Annotated[str | None, typer.Option("--device", help="cpu or cuda; the fuller one.")] = None,
) -> None:
    """What a checker misses and which input would catch it, as one HTML file."""
    from .report.command import ReportOptions, run_report

    raise typer.Exit(
        run_report(ReportOptions(matrix, out, stryker, markdown, scored, history, substrates, device_class))
    )


def main() -> None:
    """Entry point of the console script; see `kernelward.reward.cli.run` for the exit codes."""
    run(app)
