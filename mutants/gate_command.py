"""The command `kernelward calibrate --gate`: which substrates are correct here, before anything is measured."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..reward.task import JudgeConfig
from ..reward.verdict import plain
from .calibrate_plan import Target
from .gate import GateResult, describe_gate, gate_substrates

CORRECT, NOT_CORRECT, NO_VERDICT = 0, 1, 3


def run_gate(
    targets: Sequence[Target],
    folders: Sequence[Path],
    *,
    device: str,
    workers: int,
    backends: Sequence[str],
    cache: Path,
    as_json: bool = False,
) -> int:
    """Body of the command; what is found is said as it is found.

    Args:
        targets: problems and their substrates.
        folders: in which the problems are looked up.
        device: `cpu` or `cuda:N`.
        workers: kernels judged at one time.
        backends: of the substrates that are judged.
        cache: SQLite file of earlier results.
        as_json: one object on standard output: `device`, `seconds`, the counts `verified`, `quarantined` and
            `undecided`, and `substrates`, each with the fields of `GateResult`.

    Returns:
        0 where all are verified, 1 where one is quarantined, else 3: one is undecided.

    Raises:
        InputError: the device is not there, or `cache` is no such file.
    """
    console = Console(stderr=as_json, soft_wrap=True)
    chosen = [s for t in targets for s in t.substrates if s.backend in backends]
    cache.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("substrates", total=len(chosen))

        def show(done: int, _: int, result: GateResult) -> None:
            console.print(describe_gate([result])[0], markup=False, highlight=False)
            progress.update(bar, completed=done)

        results = gate_substrates(
            chosen, device, show, problems=folders, cache=cache, config=JudgeConfig(workers=workers)
        )
    seconds = time.monotonic() - began
    counts = {state: sum(r.state == state for r in results) for state in ("verified", "quarantined", "undecided")}
    if as_json:
        found = [plain(asdict(r)) | {"seconds": round(r.seconds, 3)} for r in results]
        print(json.dumps({"device": device, "seconds": round(seconds, 2), **counts, "substrates": found}))
    else:
        console.print(f"{describe_gate(results)[-1]} on {device}, in {seconds:.0f} s", highlight=False)
    if counts["quarantined"]:
        return NOT_CORRECT
    return NO_VERDICT if counts["undecided"] else CORRECT
