"""What uncalibrated default suites detect beside chosen ones. Counted from a kill matrix, without running anything.

    python tests/measure/default_suites.py MATRIX PROBLEMS [--device cpu]

A default suite takes the first admitted alternative of each of its slots (`suites.defaults`); here those are looked up
in the problem's pool. Entries that are only added where something is left unseen are not counted, so this is the least
that a default suite detects. Problems with ten witnessed mutants or more.
"""

import argparse
from pathlib import Path

from kernelward.mutants.calibrate_suites import LEAST_WITNESSED
from kernelward.mutants.coverage import select_suite
from kernelward.mutants.coverage_cells import ProblemCells, Truth, cell_fates, read_problems, together, witnesses
from kernelward.mutants.coverage_report import SUITE_K, Share
from kernelward.mutants.coverage_table import percent
from kernelward.mutants.matrix_delta import open_measured
from kernelward.suites.defaults import _SMALL, _slots
from kernelward.suites.problem import find_problem
from kernelward.suites.shapes import ragged_variants
from kernelward.suites.traits import inspect_problem
from rich.console import Console
from rich.table import Table


def default_columns(cells: ProblemCells, problems: Path) -> list[int]:
    """The columns of a problem's default suite."""
    problem = find_problem(cells.name, problems)
    traits = inspect_problem(problem)
    found = (ragged_variants(problem, traits, max_bytes=size) for size in _SMALL)
    shapes = next((variants for variants in found if variants), [])
    admitted = {cells.entries[c].uid: c for c in cells.columns("pool")}
    slots = [[admitted[e.id] for e in slot if e.id in admitted] for slot in _slots(traits, shapes)]
    return list(dict.fromkeys(slot[0] for slot in slots if slot))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("matrix", type=Path)
    parser.add_argument("problems", type=Path, help="folder of the matrix's problems")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    options = parser.parse_args()
    table = Table(
        "problem", "witnessed", "entries by default", "default", "unknown", f"chosen on all, {SUITE_K} entries"
    )
    total = [0, 0, 0, 0]
    with open_measured(options.matrix) as matrix:
        for cells in read_problems(matrix, options.device):
            seen = witnesses(cells, Truth()) == 1
            if seen.sum() < LEAST_WITNESSED:
                continue
            fates, own = cell_fates(cells, Truth()), default_columns(cells, options.problems)
            default = together(fates[:, own])[seen]
            chosen = together(fates[:, select_suite(cells, SUITE_K, half=False)[1]])[seen]
            row = [int(seen.sum()), int((default == 1).sum()), int((default < 0).sum()), int((chosen == 1).sum())]
            table.add_row(cells.name, str(row[0]), str(len(own)), *map(str, row[1:]))
            total = [a + b for a, b in zip(total, row, strict=True)]
    console = Console()
    console.print(table)
    default_share = Share(total[1], total[0] - total[2], total[2])
    chosen_share = Share(total[3], total[0])
    console.print(f"default {percent(default_share, True)} of {default_share.of}; chosen {percent(chosen_share, True)}")


if __name__ == "__main__":
    main()
