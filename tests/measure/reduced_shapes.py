"""How well do small shapes predict the official check? Counted from a kill matrix, without running anything.

    python tests/measure/reduced_shapes.py MATRIX [--device cuda] [--json FILE]

The official check draws `get_inputs` at the declared shape. The pool asks the same draw at small, ragged shapes. Both
are read by torch.allclose at 1e-2, over the mutants that are witnessed and decided on both sides: where they agree,
what only the declared shape shows, and what only a small one does.
"""

import argparse
import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from kernelward.mutants.coverage_cells import (
    Close,
    ProblemCells,
    Truth,
    cell_fates,
    protocol_fates,
    read_problems,
    together,
    witnesses,
)
from kernelward.mutants.coverage_report import Share
from kernelward.mutants.matrix_delta import open_measured
from kernelward.suites.protocol import load_protocol
from rich.console import Console
from rich.table import Table

OFFICIAL = 1e-2


def pairs(cells: ProblemCells) -> Iterator[tuple[str, bool, bool]]:
    """(family, shown at the declared shape, shown at small ones) of each mutant that is decided on both sides."""
    small = [
        c
        for c in cells.columns("pool")
        if cells.grid.changed[c]
        and cells.entries[c].recipe["generator"] == "own"
        and not cells.entries[c].recipe.get("params")
    ]
    if not small:
        return
    declared = protocol_fates(cells, load_protocol("kernelbench"))
    reduced = together(cell_fates(cells, Close(OFFICIAL))[:, small])
    decided = (witnesses(cells, Truth()) == 1) & (declared >= 0) & (reduced >= 0)
    for i in np.flatnonzero(decided):
        yield cells.mutants[i].family, bool(declared[i]), bool(reduced[i])


def kappa(counts: Counter[tuple[bool, bool]]) -> float:
    """Cohen's; NaN where both sides say one and the same of everything."""
    n = sum(counts.values())
    same = (counts[True, True] + counts[False, False]) / n
    left, right = (counts[True, True] + counts[True, False]) / n, (counts[True, True] + counts[False, True]) / n
    chance = left * right + (1 - left) * (1 - right)
    return math.nan if chance == 1 else (same - chance) / (1 - chance)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("matrix", type=Path)
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    by_family: dict[str, Counter[tuple[bool, bool]]] = {}
    problems = 0
    with open_measured(options.matrix) as matrix:
        for cells in read_problems(matrix, options.device):
            found = list(pairs(cells))
            problems += bool(found)
            for family, declared, reduced in found:
                for label in (family, "all"):
                    by_family.setdefault(label, Counter())[declared, reduced] += 1
    if not by_family:
        parser.error(f"{options.matrix}: no mutant is decided at the declared shape and at a small one")
    table = Table("family", "n", "agree (95 %)", "kappa", "missed at the declared shape", "missed at small ones",
                  "only the declared shape shows", "only a small one shows", title=f"{problems} problems")  # fmt: skip
    rows = []
    for label in sorted(by_family, key=lambda name: (name == "all", name)):
        counts = by_family[label]
        n = sum(counts.values())
        share = Share(counts[True, True] + counts[False, False], n)
        row = {
            "family": label,
            "n": n,
            "agree": share.to_dict(),
            "kappa": None if math.isnan(kappa(counts)) else round(kappa(counts), 4),
            "missed_declared": counts[False, True] + counts[False, False],
            "missed_small": counts[True, False] + counts[False, False],
            "only_declared": counts[True, False],
            "only_small": counts[False, True],
        }
        rows.append(row)
        low, high = share.interval
        table.add_row(
            label,
            str(n),
            f"{100 * share.share:.1f} % ({100 * low:.1f}-{100 * high:.1f})",
            "-" if row["kappa"] is None else f"{row['kappa']:.2f}",
            *(f"{100 * row[key] / n:.1f} %" for key in ("missed_declared", "missed_small")),
            str(row["only_declared"]),
            str(row["only_small"]),
        )
    Console().print(table)
    if options.json is not None:
        options.json.write_text(json.dumps({"problems": problems, "rows": rows}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
