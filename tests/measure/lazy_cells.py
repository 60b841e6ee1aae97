"""How often what a calibration leaves out would have said something else, from matrices that asked it.

    python tests/measure/lazy_cells.py MATRIX.sqlite ...

Draws: of the strict cells whose first draw killed and that went on to a second, how many did not hold in all. Entries:
of mutants that crashed in all draws of some entry, at shapes where a dense entry crashed them, how many of the others
that were asked did as well. Give matrices that do not share cells.
"""

import json
import sqlite3
import sys
from collections import defaultdict

from kernelward.mutants.cell import SEEDS
from kernelward.suites.select import DENSE


def counts(path: str) -> tuple[int, int, int, int]:
    """(kills followed, of these not held, cells beside a dense crash, of these crashes)."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
        shapes = {}
        for id, text in db.execute("SELECT id, recipe FROM entries WHERE role = 'pool'"):
            recipe = json.loads(text)
            shapes[id] = json.dumps(recipe.get("constants", {}), sort_keys=True), recipe["generator"] in DENSE
        followed = lost = beside = crashes = 0
        rows: dict[tuple[int, int], list[tuple[str, bool, int, str]]] = defaultdict(list)
        find = "SELECT mutant, environment, entry, seeds, class FROM cells WHERE variant = 'strict'"
        for mutant, environment, entry, seeds, outcome in db.execute(find):
            followed, lost = followed + (seeds > 1), lost + (seeds > 1 and outcome == "pass")
            if entry in shapes:
                rows[mutant, environment].append((*shapes[entry], seeds, outcome))
    for row in rows.values():
        if not any(seeds == SEEDS and outcome == "crash" for _, _, seeds, outcome in row):
            continue
        for shape in {shape for shape, dense, _, outcome in row if dense and outcome == "crash"}:
            outcomes = [outcome for at, _, _, outcome in row if at == shape]
            beside, crashes = beside + len(outcomes) - 1, crashes + outcomes.count("crash") - 1
    return followed, lost, beside, crashes


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    followed, lost, beside, crashes = map(sum, zip(*map(counts, sys.argv[1:]), strict=True))
    print(f"first draws that killed: {followed}, not held in all draws: {lost}")
    print(f"of mutants that crash, cells beside a dense crash at the same shape: {beside}, crashes: {crashes}")


if __name__ == "__main__":
    main()
