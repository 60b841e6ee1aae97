"""The command `kernelward replay`: measure one cell of a kill matrix again, and say whether it is the same."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..reward.bank import bank_path
from ..reward.sandbox.failure import ChildFailure
from ..reward.verdict import plain
from ..suites.devices import resolve_device
from ..suites.entry import Entry
from ..suites.errors import InputError
from .calibrate_command import OWN_PROBLEMS
from .evaluate import Evaluator, environment, matrix_seed
from .matrix_delta import open_measured
from .replay import Answer, Place, Replay, ask, classes_measured, find_replay
from .replay_line import replay_line

SAME, DIFFERENT, NO_ANSWER = 0, 1, 3


def run_replay(
    mutant: str,
    entry: str,
    *,
    matrix: Path,
    device: str = "auto",
    problems: Sequence[Path] = (),
    substrates: Path | None = None,
    bank: Path | None = None,
    as_json: bool = False,
) -> int:
    """Body of the command.

    Args:
        mutant, entry: ids in the matrix, or unique beginnings of them.
        matrix: the kill matrix.
        device: `cpu`, `cuda` or `auto`: the one of this machine on which the mutant was measured.
        problems: folders of problems, beside our own.
        substrates: folder beside the package's own substrates.
        bank: of the kernels that a policy wrote; the reward's by default.
        as_json: one object on standard output: `command`, `mutant` (`id`, `operator`, `family`, `line`, `detail`,
            `diff`), `substrate`, `problem`, `entry` (`id`, `recipe`), `device`, `seeds`, `tolerance` (null where the
            entry has none), `cells` (each with `variant`, `stored` and `found`, which have `class`, `draws`, `errs` and
            `margin`, the found one `detail` too and null where there is no answer for the reason `why`; `same`,
            `identical`), `same`, `notes`. What is not finite is text.

    Returns:
        0 where all that the matrix has of this mutant on this entry is the same, 1 where something is not, 3 where the
        sandbox failed.

    Raises:
        InputError: an id is unknown, or something is not there or not the same any more.
        MatrixError, BankError: a file cannot be read now.
    """
    folders = [*problems, *([OWN_PROBLEMS] if OWN_PROBLEMS.is_dir() else [])]
    with open_measured(matrix) as kept:
        place = _device(device, classes_measured(kept, mutant), mutant)
        device_class = place.partition(":")[0]
        replay = find_replay(kept, mutant, entry, device_class, Place(folders, substrates, bank or bank_path()))
    try:
        with Evaluator(place) as evaluator:
            answers = ask(replay, evaluator)
            notes = _notes(replay, environment(evaluator, replay.mutant.backend))
    except ChildFailure as failure:
        print(f"the sandbox failed, and nothing is known: {failure}")
        return NO_ANSWER
    if as_json:
        print(json.dumps(plain(_object(replay, answers, place, matrix, notes))))
    else:
        _print(replay, answers, notes)
    return SAME if all(a.same for a in answers) else DIFFERENT


def _device(device: str, measured: set[str], mutant: str) -> str:
    place = resolve_device(device)
    if device == "auto" and place.partition(":")[0] not in measured and "cpu" in measured:
        place = "cpu"
    if place.partition(":")[0] not in measured:
        raise InputError(f"mutant {mutant} was measured on {' and '.join(sorted(measured))} alone, not on {place}")
    return place


def _seeds(replay: Replay) -> list[int]:
    most = max(cell.seeds for cell, _ in replay.asked)
    return [matrix_seed(replay.problem, Entry.from_dict(replay.entry.recipe), index) for index in range(most)]


def _notes(replay: Replay, here: dict[str, Any]) -> list[str]:
    names = sorted({*here, *replay.environment})
    changed = [n for n in names if here.get(n) != replay.environment.get(n)]
    notes = [f"{n}: measured with {replay.environment.get(n, '-')}, now {here.get(n, '-')}" for n in changed]
    if replay.outdated:
        notes.append("the problem's entries have changed since: another one of this shape may run the race check now")
    return notes


def _object(
    replay: Replay, answers: Sequence[Answer], device: str, matrix: Path, notes: Sequence[str]
) -> dict[str, Any]:
    mutant = replay.mutant
    return {
        "command": replay_line(mutant.id, replay.entry.uid, device.partition(":")[0], matrix),
        "mutant": {
            "id": mutant.id,
            "operator": mutant.operator,
            "family": mutant.family,
            "line": mutant.line,
            "detail": mutant.detail,
            "diff": mutant.diff(replay.substrate.source),
        },
        "substrate": replay.substrate.name,
        "problem": replay.problem.id,
        "entry": {"id": replay.entry.uid, "recipe": dict(replay.entry.recipe)},
        "device": device,
        "seeds": _seeds(replay),
        "tolerance": replay.entry.tolerance,
        "cells": [
            {
                "variant": a.stored.variant,
                "stored": _cell(a.stored.outcome, a.stored.seeds, a.stored.errs, a.stored.margin),
                "found": None
                if a.found is None
                else {**_cell(a.found.cls, a.found.seeds, a.errs, a.margin), "detail": a.found.detail},
                "why": a.why,
                "same": a.same,
                "identical": a.identical,
            }
            for a in answers
        ],
        "same": all(a.same for a in answers),
        "notes": list(notes),
    }


def _cell(outcome: str, draws: int, errs: tuple[float, ...], margin: float) -> dict[str, Any]:
    return {"class": outcome, "draws": draws, "errs": errs, "margin": None if math.isnan(margin) else margin}


def _print(replay: Replay, answers: Sequence[Answer], notes: Sequence[str]) -> None:
    mutant, entry = replay.mutant, replay.entry
    recipe = ", ".join(f"{name} {value}" for name, value in entry.recipe.items())
    print(f"{mutant.id}  {mutant.operator} ({mutant.family}), line {mutant.line}: {mutant.detail}")
    print(f"of {replay.substrate.name}, on {entry.uid} of {replay.problem.id} ({recipe or 'the problem as it is'})")
    print(f"seeds {', '.join(map(str, _seeds(replay)))}\n")
    print(mutant.diff(replay.substrate.source))
    for answer in answers:
        stored, found = answer.stored, answer.found
        held = "" if answer.tolerance is None else f" (tolerance {_numbers(answer.tolerance)})"
        print(f"{stored.variant}, stored: {_line(stored.outcome, stored.seeds, stored.errs, stored.margin)}{held}")
        if found is None:
            print(f"{stored.variant}, now:    {answer.why}")
        else:
            print(f"{stored.variant}, now:    {_line(found.cls, found.seeds, answer.errs, answer.margin)}")
            if found.detail:
                print(f"  {found.detail}")
    for note in notes:
        print(f"note: {note}")
    if all(a.identical for a in answers):
        print("same, to the last digit")
    else:
        print("same" if all(a.same for a in answers) else "different")


def _line(outcome: str, draws: int, errs: tuple[float, ...], margin: float) -> str:
    over = f"{draws} draw" if draws == 1 else f"{draws} draws"
    return f"{outcome} in {over}, error {_numbers(errs) or '-'}, margin {margin:g}"


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
