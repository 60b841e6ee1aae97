"""The command `kernelward report`."""

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ...suites.errors import InputError
from ..coverage import DEFAULT_MATRIX
from ..matrix_delta import is_delta, open_measured
from ..substrates import list_substrates
from .facts import HEAD, Facts, gather
from .history import History, read_history
from .html import render
from .markdown import render_markdown
from .scored import Scored, read_scored
from .sources import Sources, collect
from .stryker import stryker_report

HISTORY = "history.jsonl"
"""Name of the history that a watcher keeps beside its matrix."""


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What `kernelward report` was asked.

    Attributes:
        matrix: the kill matrix, or a delta of one; None = the default one, which may be missing where there are scored
            generations.
        out: the HTML file.
        stryker, markdown: further files; None = not wanted.
        scored: an output of `kernelward score`.
        history: what a watcher published; None = the file `history.jsonl` beside the matrix, if there is one.
        substrates: a folder of substrates beside the package's own, for diffs.
        device_class: `cpu` or `cuda`; None = the one with the most cells.
    """

    matrix: Path | None = None
    out: Path = Path("report.html")
    stryker: Path | None = None
    markdown: Path | None = None
    scored: Path | None = None
    history: Path | None = None
    substrates: Path | None = None
    device_class: str | None = None


def run_report(options: ReportOptions) -> int:
    """Write the files that were asked for, and say what is in them.

    Returns:
        0.

    Raises:
        InputError: nothing to report, a file cannot be read or written, or jinja2 is missing.
        MatrixError: the matrix cannot be read now.
    """
    facts = _facts(options)
    if facts is None and options.stryker is not None:
        raise InputError("--stryker: there is no kill matrix to report; make one with `kernelward calibrate`")
    scored = None if options.scored is None else read_scored(options.scored)
    history = _history(options)
    sources = Sources() if facts is None else _sources(facts, options.substrates)
    _write(options.out, render(facts, sources, scored, history))
    if options.stryker is not None and facts is not None:
        _write(options.stryker, json.dumps(stryker_report(facts, sources, HEAD[1]), allow_nan=False))
    if options.markdown is not None:
        _write(options.markdown, render_markdown(facts, sources, scored, history))
    for line in _said(options, facts, scored, history):
        print(line)
    return 0


def _facts(options: ReportOptions) -> Facts | None:
    path = options.matrix or DEFAULT_MATRIX
    if options.matrix is None and options.scored is not None and not path.is_file():
        return None
    with open_measured(path) as matrix:
        return gather(matrix, options.device_class)


def _history(options: ReportOptions) -> History | None:
    if options.history is not None:
        return read_history(options.history)
    path = options.matrix or DEFAULT_MATRIX
    beside = path.parent / HISTORY
    return read_history(beside) if beside.is_file() and not is_delta(path) else None  # a delta is another machine's


def _sources(facts: Facts, folder: Path | None) -> Sources:
    rows = [(m, p.substrates[m.substrate]) for p in facts.problems for m in p.cells.mutants]
    known = list_substrates()
    if folder is not None:
        known += list_substrates(folder)
    return collect([*rows, *facts.others], known)


def _write(path: Path, text: str) -> None:
    """Replace a file as a whole, so that a reader never sees half of it."""
    data = text.encode("utf-8", "replace")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.chmod(draft, 0o644)
            os.replace(draft, path)
        except BaseException:
            os.unlink(draft)
            raise
    except OSError as error:
        raise InputError(f"{path}: cannot write the report: {error.strerror or error}") from error


def _said(options: ReportOptions, facts: Facts | None, scored: Scored | None, history: History | None) -> list[str]:
    what = []
    if facts is not None:
        mutants = sum(len(p.cells.mutants) for p in facts.problems)
        what.append(f"{mutants} mutants of {len(facts.problems)} problems")
    if scored is not None:
        what.append(f"{scored.summary.rows} scored rows")
    if history is not None:
        what.append(f"{len(history.points)} points of training")
    lines = [f"{options.out}: {', '.join(what)} ({options.out.stat().st_size / 2**20:.2f} MiB)"]
    return lines + [str(path) for path in (options.stryker, options.markdown) if path is not None]
