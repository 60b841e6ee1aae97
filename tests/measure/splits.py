"""How much does the held-out figure depend on the split? Counted from a kill matrix, without running anything.

    python tests/measure/splits.py MATRIX [--device cpu] [--splits 12]

`kernelward coverage` splits the mutants by one hash of operator and site. Here the same is done with other hashes:
suites are chosen on one half and scored on the other, over all problems. Printed are the mean over the splits, the
least and the largest, and the split of `coverage`.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from kernelward.mutants.coverage import select_suite
from kernelward.mutants.coverage_cells import ProblemCells, Truth, cell_fates, read_problems, together, witnesses
from kernelward.mutants.matrix_delta import open_measured
from kernelward.suites.hashing import stable_hash
from kernelward.suites.select import site_key
from rich.console import Console
from rich.table import Table


def split(cells: ProblemCells, number: int) -> ProblemCells:
    """The same cells with another half held out; number 0 is the split of `coverage`."""
    if not number:
        return cells
    keys = [[number, m.operator, site_key(cells.hash, m.detail)] for m in cells.mutants]
    return replace(cells, held=np.array([int(stable_hash(key)[:8], 16) % 2 == 1 for key in keys], np.bool_))


def held_out(problems: list[ProblemCells], k: int) -> tuple[int, int]:
    """(detected, of) over the held-out halves."""
    detected = of = 0
    for cells in problems:
        fates = together(cell_fates(cells, Truth())[:, select_suite(cells, k)[1]])
        counted = (witnesses(cells, Truth()) == 1) & cells.held & (fates >= 0)
        detected, of = detected + int((fates[counted] == 1).sum()), of + int(counted.sum())
    return detected, of


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("matrix", type=Path)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--splits", type=int, default=12)
    options = parser.parse_args()
    with open_measured(options.matrix) as matrix:
        problems = [cells for cells in read_problems(matrix, options.device) if cells.mutants]
    table = Table("entries", "mean", "least", "largest", "of coverage", "n there")
    for k in (1, 2, 3):
        found = [held_out([split(cells, i) for cells in problems], k) for i in range(options.splits)]
        shares = [100 * detected / max(1, of) for detected, of in found]
        row = (sum(shares) / len(shares), min(shares), max(shares), shares[0])
        table.add_row(str(k), *(f"{share:.2f} %" for share in row), str(found[0][1]))
    Console().print(table)


if __name__ == "__main__":
    main()
