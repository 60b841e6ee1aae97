"""How often what a calibration leaves out would have said something else, from matrices that asked it.

    python tests/measure/lazy_cells.py MATRIX.sqlite ...

Draws: of the strict cells whose first draw killed and that went on to a second, how many did not hold in all. Entries:
at shapes where all dense entries of the pool ended a mutant, how many of the others that were asked did as well. Give
matrices that do not share cells.
"""

import json
import sqlite3
import sys
from collections import defaultdict

from kernelward.suites.select import DENSE


def counts(path: str) -> tuple[int, int, int, int]:
    """(kills followed, of these not held, cells beside dense crashes, of these crashes)."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
        shapes = {}
        for id, text in db.execute("SELECT id, recipe FROM entries WHERE role = 'pool'"):
            recipe = json.loads(text)
            shapes[id] = json.dumps(recipe.get("constants", {}), sort_keys=True), recipe["generator"] in DENSE
        followed = lost = beside = crashes = 0
        rows: dict[tuple[int, int, str], tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
        find = "SELECT mutant, environment, entry, seeds, class FROM cells WHERE variant = 'strict'"
        for mutant, environment, entry, seeds, outcome in db.execute(find):
            followed, lost = followed + (seeds > 1), lost + (seeds > 1 and outcome == "pass")
            if entry in shapes:
                shape, dense = shapes[entry]
                rows[mutant, environment, shape][0 if dense else 1].append(outcome)
    for dense_ones, others in rows.values():
        if dense_ones and set(dense_ones) == {"crash"}:
            beside, crashes = beside + len(others), crashes + others.count("crash")
    return followed, lost, beside, crashes


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    followed, lost, beside, crashes = map(sum, zip(*map(counts, sys.argv[1:]), strict=True))
    print(f"first draws that killed: {followed}, not held in all draws: {lost}")
    print(f"cells at shapes whose dense entries all crash: {beside}, crashes: {crashes}")


if __name__ == "__main__":
    main()
