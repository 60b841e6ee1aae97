"""The commands of this room, and the exit codes of every command.

0 correct or done; 1 judged and not correct, or below a threshold; 2 the user's input is wrong; 3 no verdict, or an
error of ours; 130 interrupted. Modules that need torch are imported by the command that uses them.
"""

import os
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from ..suites.cli import suite_app
from ..suites.errors import InputError
from ..suites.protocol import DEFAULT_PROTOCOL

EXIT_INPUT = 2
EXIT_ERROR = 3
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE, what a shell reports for `kernelward ... | head`

# The base class of usage errors: typer re-exports only subclasses, and newer versions carry their own copy of click.
_UsageErrors: type[BaseException] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


class Commands(TyperGroup):
    """A command group that turns every exception into the agreed exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; only typer's own exceptions pass."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, _UsageErrors):
            raise
        except InputError as error:
            print(f"kernelward: {error}", file=sys.stderr)
            raise typer.Exit(EXIT_INPUT) from error
        except KeyboardInterrupt as error:
            print("kernelward: interrupted", file=sys.stderr)
            raise typer.Exit(EXIT_INTERRUPTED) from error
        except BrokenPipeError as error:
            _silence_output()
            raise typer.Exit(EXIT_BROKEN_PIPE) from error
        except Exception as error:
            _report_own_fault(error)
            raise typer.Exit(EXIT_ERROR) from error


def _silence_output() -> None:
    """Give the final flush of standard output a place to go."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report_own_fault(error: Exception) -> None:
    if os.environ.get("KERNELWARD_DEBUG"):
        traceback.print_exception(error)
    text = " ".join(f"{type(error).__name__}: {error}".split())
    print(
        f"kernelward: internal error: {text[:500]}\n"
        "This is a fault in kernelward, not in your input. Please report it with the command, the output of\n"
        "`kernelward doctor --json` and the traceback (run again with KERNELWARD_DEBUG=1).",
        file=sys.stderr,
    )


def run(app: typer.Typer, program: str = "kernelward") -> NoReturn:
    """Run a program and leave with its exit code."""
    app(prog_name=program)
    sys.exit(0)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="A reward for training models to write GPU kernels, measured for how hard it is to fool.",
    epilog="Exit codes: 0 correct or done, 1 judged not correct, 2 wrong input, 3 no verdict or our error, "
    "130 interrupted.",
)
app.add_typer(suite_app, name="suite")

ProblemsOption = Annotated[
    Path | None,
    typer.Option(
        "--problems",
        envvar="KERNELBENCH_DIR",
        help="Folder of problem files, or a KernelBench checkout.",
        metavar="DIR",
    ),
]
DeviceOption = Annotated[str, typer.Option("--device", help="cpu, cuda or cuda:N; auto is a GPU where there is one.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


@app.command()
def check(
    candidate: Annotated[Path, typer.Argument(help="File that defines ModelNew; - reads standard input.")],
    problem: Annotated[str, typer.Option("--problem", help="Problem file, or an id such as level1/23_Softmax.")],
    protocol: Annotated[str, typer.Option("--protocol", help="Name, or the path of a YAML file.")] = DEFAULT_PROTOCOL,
    problems: ProblemsOption = None,
    device: DeviceOption = "auto",
    suite: Annotated[
        Path | None, typer.Option("--suite", help="Suite file to use instead of the problem's own.")
    ] = None,
    entry: Annotated[str | None, typer.Option("--entry", help="Run this one entry only (replays a verdict).")] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Seed of the draw (replays a verdict).")] = None,
    all_entries: Annotated[bool, typer.Option("--all-entries", help="Do not stop at the first failure.")] = False,
    speed: Annotated[bool, typer.Option("--speed", help="Also measure the speed-up of a correct candidate.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Judge one candidate. Exit code 0 correct, 1 not correct, 2 wrong input, 3 no verdict."""
    from .check import run_check

    code = run_check(
        candidate,
        problem=problem,
        problems=problems,
        protocol=protocol,
        device=device,
        suite=suite,
        entry=entry,
        seed=seed,
        all_entries=all_entries,
        speed=speed,
        as_json=as_json,
    )
    raise typer.Exit(code)


@app.command()
def score(
    source: Annotated[
        Path, typer.Argument(metavar="INPUT", help="JSONL of generations, or a KernelBench runs folder.")
    ],
    out: Annotated[Path, typer.Option("--out", help="JSONL of verdicts; an existing one is continued.")],
    protocol: Annotated[
        list[str] | None, typer.Option("--protocol", help="Repeat it to judge by several (default: kernelward).")
    ] = None,
    problems: ProblemsOption = None,
    device: DeviceOption = "auto",
    workers: Annotated[int, typer.Option("--workers", min=1, help="Candidates judged at the same time.")] = 2,
    as_json: JsonOption = False,
) -> None:
    """Judge a file of generations: resumable, by several protocols at once, with a summary.

    Columns: `problem` (id or path) or `reference` (source text), and `completion` (text or chat messages, the code is
    taken out of it) or `code` (used as it is). Other columns are carried through.
    """
    from .score import run_score

    raise typer.Exit(
        run_score(
            source,
            out,
            protocols=protocol or [DEFAULT_PROTOCOL],
            problems=problems,
            device=device,
            workers=workers,
            as_json=as_json,
        )
    )


@app.command()
def doctor(
    problems: ProblemsOption = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """What works on this machine, and what does not. Exit code 0 where judging works, 3 where it does not."""
    from .doctor import run_doctor

    raise typer.Exit(run_doctor(problems=problems, device=device, as_json=as_json))
