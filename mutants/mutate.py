"""`kernelward mutate`: the mutants of one kernel as a table, or one of them as a diff."""

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..reward.screen import detect_backend
from ..suites.errors import InputError
from ..suites.python_syntax import parse
from .matrix_delta import open_measured
from .mutant import FAMILIES, Mutant, Substrate, generate
from .operators import OPERATORS, operators_for
from .replay_line import replay_line
from .substrates import list_substrates, load_substrate


def open_substrate(name: str) -> Substrate:
    """A substrate by its name (`cuda/softmax__online_warp`), or any candidate by its path.

    Raises:
        InputError: there is none, it cannot be read, or its backend has no operators.
    """
    path = Path(name)
    if not path.is_file():
        known = list_substrates()
        found = next((substrate for substrate in known if substrate.name == name.removesuffix(".py")), None)
        if found is None:
            raise InputError(
                f"no substrate {name}: name one of ours, such as {', '.join(s.name for s in known[:3])}, or a file"
            )
        return found
    try:
        return load_substrate(path)
    except InputError:
        return _plain_candidate(path)


def _plain_candidate(path: Path) -> Substrate:
    """A candidate without the lines that a substrate's docstring has: somebody else's kernel."""
    try:
        source = path.read_text(encoding="utf-8")
        parse(source)
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as a candidate: {error}") from error
    backend = detect_backend(source)
    if backend not in ("cuda", "triton"):
        raise InputError(f"{path}: a {backend} candidate has no kernel to mutate; CUDA and Triton have")
    return Substrate(path.stem, "", backend, "", source, path)


def select_mutant(mutants: list[Mutant], identity: str) -> Mutant:
    """The mutant whose id is, or begins with, `identity`.

    Raises:
        InputError: none or several.
    """
    found = [mutant for mutant in mutants if mutant.id.startswith(identity)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise InputError(f"no mutant {identity} of this substrate: run without --show for the list of ids")
    raise InputError(f"{len(found)} mutants begin with {identity}: give more of the id")


def run_mutate(
    substrate: str,
    show: str | None = None,
    family: str | None = None,
    as_json: bool = False,
    matrix: Path | None = None,
) -> int:
    """Body of the command.

    Args:
        substrate: a substrate's name or a candidate's path.
        show: id of the mutant to print as a diff; a unique beginning is enough.
        family: list this family alone.
        as_json: one JSON object: `substrate`, `problem`, `backend`, `hash`, and `mutants`, each with `id`, `operator`,
            `family`, `line`, `detail`; with `show` that mutant's fields, its `source`, its `diff` and `replays`.
        matrix: a kill matrix, which may be missing: with `show`, the commands that reproduce what is in it.

    Returns:
        0.

    Raises:
        InputError: an unknown substrate, family or id.
    """
    if family is not None and family not in FAMILIES:
        raise InputError(f"no family {family}: there are {', '.join(FAMILIES)}")
    original = open_substrate(substrate)
    # Ids are those of the whole list; of equal texts the first operator's is kept, so the filter comes last.
    mutants = generate(original, operators_for(original.backend))
    if family is not None:
        mutants = [mutant for mutant in mutants if mutant.family == family]
    if show is not None:
        mutant = select_mutant(mutants, show)
        _show(original, mutant, as_json, _replays(mutant.id, matrix))
    elif as_json:
        fields = ("id", "operator", "family", "line", "detail")
        listed = [{name: getattr(mutant, name) for name in fields} for mutant in mutants]
        print(json.dumps({**_head(original), "mutants": listed}))
    else:
        _table(original, mutants)
    return 0


def _head(substrate: Substrate) -> dict[str, Any]:
    return {
        "substrate": substrate.name,
        "problem": substrate.problem,
        "backend": substrate.backend,
        "hash": substrate.hash,
    }


def _replays(mutant: str, path: Path | None) -> list[str]:
    """Per class of device, the commands for its clearest kill and for what it passes with the largest error."""
    if path is None or not path.is_file():
        return []
    lines = []
    with open_measured(path) as matrix:
        id = next((id for id, row in matrix.mutants().items() if row.uid == mutant), None)
        entries = matrix.entries()
        cells = [] if id is None else matrix.cells(id)
    cells = [c for c in cells if entries[c.entry].admitted]
    for device_class in sorted({entries[c.entry].device_class for c in cells}):
        here = [c for c in cells if entries[c.entry].device_class == device_class]
        for passed in (False, True):
            found = [c for c in here if (c.outcome in ("pass", "refused")) == passed]
            if found:
                cell = max(found, key=lambda c: (max(c.errs, default=0.0), -entries[c.entry].bytes))
                line = replay_line(mutant, entries[cell.entry].uid, device_class, path)
                lines.append(f"{line}  # {cell.outcome}")
    return lines


def _show(substrate: Substrate, mutant: Mutant, as_json: bool, replays: list[str]) -> None:
    diff = mutant.diff(substrate.source)
    if as_json:
        print(json.dumps({**asdict(mutant), "diff": diff, "replays": replays}))
        return
    operator = OPERATORS[mutant.operator]
    print(f"{mutant.id}  {mutant.operator} ({mutant.family}), line {mutant.line}: {mutant.detail}")
    print(f"What it changes: {operator.summary}\nWhy a checker may miss it: {operator.escapes}\n")
    print(diff, end="")
    for line in replays:
        print(f"\n{line}")


def _table(substrate: Substrate, mutants: list[Mutant]) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("id", "family", "operator"):
        table.add_column(title, no_wrap=True)
    table.add_column("line", justify="right", no_wrap=True)
    table.add_column("what changes", overflow="fold")
    for mutant in mutants:
        table.add_row(mutant.id, mutant.family, mutant.operator, str(mutant.line), escape(mutant.detail))
    console.print(table)
    counts = Counter(mutant.family for mutant in mutants)
    listed = ", ".join(f"{name} {counts[name]}" for name in FAMILIES if counts[name]) or "none"
    console.print(f"{len(mutants)} mutants of {escape(substrate.name)}: {listed}", highlight=False, soft_wrap=True)
