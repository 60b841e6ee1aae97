"""Two calibrations from scratch, compared: mutants, what the gate said, every cell, and the bytes of the suites.

    python tests/measure/determinism.py [--problem ID ...] [--per-substrate 20] [--device cpu] [--json FILE]

Each is a process of its own with an empty folder. What may differ, and is not compared: row ids, seconds, the order in
which rows were written, and a compiler's messages. On a GPU a kernel that adds with atomics gives other last digits
every time, so there cells whose class is the same are counted apart from cells whose class is not, and only the latter
count as a difference; so are substrates whose largest error in the clean run is another one. Exit code 0 where nothing
differs, else 1.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelward.mutants.matrix import Matrix

PROBLEMS = Path(__file__).resolve().parents[2] / "examples" / "problems"
QUERIES = {
    "substrates": "SELECT s.hash, s.name, s.status, s.detail FROM substrates s",
    "entries": "SELECT p.hash, e.uid, e.device_class, e.recipe, e.role, e.admitted, e.reason, e.detail, e.measured, "
    "e.bytes FROM entries e JOIN problems p ON p.id = e.problem",
    "mutants": "SELECT m.uid, s.hash, m.operator, m.family, m.line, m.detail, m.state, m.code_hash, m.how, m.origin "
    "FROM mutants m JOIN substrates s ON s.id = m.substrate",
    "environments": "SELECT hash, json FROM environments",
    "cells": "SELECT m.uid, e.uid, e.device_class, v.hash, c.variant, c.class, c.seeds, c.errs, c.margin FROM cells c "
    "JOIN mutants m ON m.id = c.mutant JOIN entries e ON e.id = c.entry JOIN environments v ON v.id = c.environment",
}
KEYS = {"substrates": 1, "entries": 3, "mutants": 1, "environments": 1, "cells": 5}
"""How many of the columns name a row."""
FIXED = {"cells": 1, "substrates": 2}
"""How many of the other columns, class or name and status, atomics leave alone."""

Rows = Mapping[tuple[Any, ...], tuple[Any, ...]]


def calibrate(folder: Path, options: argparse.Namespace) -> None:
    """One calibration of the problems, from nothing."""
    named = [word for id in (str(PROBLEMS), *options.problem) for word in ("--problems", id)]
    how = ["--device", options.device, "--per-substrate", str(options.per_substrate), "--budget", options.budget]
    how += ["--workers", str(options.workers), "--backend", "cuda", "--out", str(folder), "--json"]
    command = [sys.executable, "-c", "from kernelward.mutants.cli import main; main()", "calibrate", *named, *how]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    tally = json.loads(done.stdout)["tally"]
    if tally["out_of_time"] or tally["faults"]:
        raise SystemExit(f"the calibration is not whole: {tally['mutants_waiting']} mutants wait; {tally['faults']}")


def contents(folder: Path) -> dict[str, Rows]:
    """What a calibration left, by table and key, and its suites by path."""
    with Matrix(folder / "matrix.sqlite", create=False) as matrix:
        found: dict[str, Rows] = {
            name: {row[: KEYS[name]]: row[KEYS[name] :] for row in matrix.query(query)}
            for name, query in QUERIES.items()
        }
    suites = folder / "suites"
    files = sorted(suites.rglob("*.yaml"))
    return {**found, "suites": {(str(f.relative_to(suites)),): (f.read_bytes(),) for f in files}}


def difference(one: Rows, other: Rows) -> list[tuple[Any, ...]]:
    """Keys of the rows that are not in both, or not the same."""
    return sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))


def begun(rows: Rows, columns: int) -> Rows:
    """Rows without their last columns."""
    return {key: values[:columns] for key, values in rows.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", action="append", help="id of one of our problems; repeat")
    parser.add_argument("--per-substrate", type=int, default=20, help="a suite needs ten witnessed mutants")
    parser.add_argument("--budget", default="1h")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.problem = options.problem or ["relu", "mse_loss"]
    with tempfile.TemporaryDirectory() as folder:
        runs = [Path(folder) / name for name in ("first", "second")]
        for run in runs:
            calibrate(run, options)
        first, second = map(contents, runs)
    found = {name: (len(first[name]), difference(first[name], second[name])) for name in first}
    wrong = {name: rows for name, (_, rows) in found.items() if rows}
    for name, columns in FIXED.items() if options.device != "cpu" else ():
        moved = len(wrong.pop(name, ()))
        rows = difference(begun(first[name], columns), begun(second[name], columns))
        wrong |= {name: rows} if rows else {}
        print(f"{name}: {moved} differ, {len(rows)} of them in more than an error")
    for name, (count, rows) in found.items():
        print(f"{name}: {count}, {len(rows)} differ")
        for key in rows[:10]:
            print(f"  {key}: {first[name].get(key)} / {second[name].get(key)}")
    if options.json:
        shown = {name: {"rows": count, "differ": len(rows)} for name, (count, rows) in found.items()}
        options.json.write_text(json.dumps({"problems": options.problem, "same": not wrong, **shown}, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
