"""The facts as compressed blocks that the page unpacks when it shows them.

A block is JSON, gzip and base64. One, the index, holds what the list of survivors needs; one per problem holds its
cells, its mutants and the sources of its substrates, so that a page of 10,000 mutants parses little at the start.
"""

import base64
import gzip
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..coverage_cells import ProblemCells
from ..matrix_schema import CODES
from ..replay_line import replay_line
from .facts import Facts, ProblemFacts, entry_label
from .sources import Sources, summaries

# Cells are 16-bit codes. The first seven are states, the others the ratio on a logarithmic scale.
STATES = ("missing", "pass", "refused", "crash", "hang", "race", "value")
"""`missing` = not measured, `pass` = no error at all, `value` = an infinite error."""
FLOOR, DECADES, STEPS = -6.0, 12.0, 60_000
_FIRST = 16
_ONE = _FIRST + STEPS // 2  # a ratio of 1: the largest code that is no kill


def block(value: Any) -> str:
    """A JSON-able value as a compressed block; the same value always gives the same text."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode("utf-8", "surrogatepass"), 9, mtime=0)).decode()


def cell_codes(facts: ProblemFacts) -> NDArray[np.uint16]:
    """[mutants, entries]: what every cell showed."""
    ratio, cells = facts.ratio.astype(np.float64), facts.cells
    with np.errstate(divide="ignore", invalid="ignore"):
        place = (np.log10(ratio) - FLOOR) / DECADES * STEPS
    place = np.nan_to_num(np.clip(place, 0, STEPS), nan=0.0)
    codes = _FIRST + np.rint(place).astype(np.int64)
    codes = np.where(ratio > 1, np.maximum(codes, _ONE + 1), np.minimum(codes, _ONE))
    codes = np.where(np.isinf(ratio), STATES.index("value"), codes)
    codes = np.where(ratio == 0, STATES.index("pass"), codes)
    classes = cells.grid.classes
    blank = np.isnan(ratio)
    codes = np.where(blank, np.where((classes == CODES["pass"]).any(axis=2), STATES.index("pass"), 0), codes)
    for name in ("refused", "race", "hang", "crash"):
        codes = np.where((classes == CODES[name]).any(axis=2), STATES.index(name), codes)
    return codes.astype(np.uint16)


def number(value: float | None) -> float | str | None:
    """A number as JSON carries it: three significant digits, and "inf"."""
    if value is None or math.isnan(value):
        return None
    return "inf" if math.isinf(value) else float(f"{value:.3g}")


def index_block(facts: Facts) -> dict[str, Any]:
    """What the list of survivors needs: mutants that some checker misses, and unwitnessed ones."""
    names = facts.checkers
    operators: dict[str, int] = {}
    families: dict[str, int] = {}
    rows = [
        _survivor(p, at, i, names, operators, families)
        for at, p in enumerate(facts.problems)
        for i in _survivors(p, names)
    ]
    about = summaries(operators)
    head, _, tail = replay_line("MUTANT", "ENTRY", facts.report.device_class, facts.report.matrix).partition(
        "MUTANT ENTRY"
    )
    return {
        "replay": [head.strip(), tail.strip()],
        "checkers": list(names),
        "families": list(families),
        "operators": [[name, *about.get(name, ("", ""))] for name in operators],
        "problems": [p.name for p in facts.problems],
        "entries": [_entry_names(p.cells) for p in facts.problems],
        "survivors": rows,
    }


def _survivors(p: ProblemFacts, names: Sequence[str]) -> list[int]:
    missed = np.zeros(len(p.cells.mutants), np.bool_)
    for name in names:
        missed |= p.missed(name)
    return [int(i) for i in np.flatnonzero(missed | (p.witnessed == 0))]


def _entry_names(cells: ProblemCells) -> list[list[str]]:
    return [[entry.uid, entry_label(entry)] for entry in cells.entries]


def _survivor(
    p: ProblemFacts,
    at: int,
    i: int,
    names: Sequence[str],
    operators: dict[str, int],
    families: dict[str, int],
) -> list[Any]:
    """[problem, mutant, uid, operator, family, substrate, line, detail, shows, checkers that miss it (bits), closest
    per checker that misses it, closest of the pool, strongest entry that shows it, how many show it]."""
    mutant = p.cells.mutants[i]
    missing = [n for n, name in enumerate(names) if p.witnessed[i] == 1 and p.checkers[name].fates[i] == 0]
    near = [_near(p.checkers[names[n]].closest(i)) for n in missing]
    pool = p.cells.columns("pool")
    catchers = [c for c in pool if p.shown[i, c]]
    best = max(catchers, key=lambda c: (_strength(p.ratio[i, c]), -p.cells.entries[c].bytes), default=None)
    return [
        at,
        i,
        mutant.uid,
        operators.setdefault(mutant.operator, len(operators)),
        families.setdefault(mutant.family, len(families)),
        p.substrates[mutant.substrate].name,
        mutant.line,
        mutant.detail,
        p.shows[i],
        sum(1 << n for n in missing),
        near,
        _near(p.closest(i)),
        None if best is None else [best, number(float(p.ratio[i, best]))],
        len(catchers),
    ]


def _near(found: tuple[int, float] | None) -> list[Any] | None:
    return None if found is None else [found[0], number(found[1])]


def _strength(value: float) -> float:
    return -1.0 if math.isnan(value) else float(value)


def problem_block(p: ProblemFacts, sources: Sources) -> dict[str, Any]:
    """Everything about one problem."""
    codes = cell_codes(p)
    planes = np.stack([codes >> 8, codes & 255]).astype(np.uint8)  # high bytes together compress better
    cells = p.cells
    substrates = {id: at for at, id in enumerate(p.substrates)}
    rows = list(p.substrates.values())
    changes = [sources.changes.get(m.uid) for m in cells.mutants]
    by = p.shown[:, cells.columns("pool")]
    return {
        "name": p.name,
        "hash": cells.hash,
        "shape": list(codes.shape),
        "codes": base64.b64encode(planes.tobytes()).decode(),
        "entries": [
            {
                "uid": entry.uid,
                "label": entry_label(entry),
                "role": entry.role,
                "admitted": entry.admitted,
                "reason": entry.reason,
                "detail": entry.detail,
                "tolerance": None if entry.tolerance is None else [number(t) for t in entry.tolerance],
                "bytes": entry.bytes,
                "kills": int(p.shown[p.witnessed == 1, c].sum()),
                "worth": None if worth is None else [worth.word, worth.alone, worth.within],
                "in": [n for n, checker in enumerate(p.checkers.values()) if c in checker.columns],
            }
            for c, (entry, worth) in enumerate(zip(cells.entries, p.worths, strict=True))
        ],
        "substrates": [[s.name, s.backend, s.style, s.status, s.detail] for s in rows],
        "sources": [_lines(sources.substrates.get(s.hash)) for s in rows],
        "mutants": {
            "uid": [m.uid for m in cells.mutants],
            "operator": [m.operator for m in cells.mutants],
            "family": [m.family for m in cells.mutants],
            "substrate": [substrates[m.substrate] for m in cells.mutants],
            "line": [m.line for m in cells.mutants],
            "detail": [m.detail for m in cells.mutants],
            "shows": list(p.shows),
            "witnessed": [int(w) for w in p.witnessed],
            "held": [int(h) for h in cells.held],
            "by": [int(n) for n in by.sum(axis=1)],
            "only": [cells.columns("pool")[int(row.argmax())] if row.sum() == 1 else -1 for row in by],
            "hunks": [None if c is None else [[h.line, h.removed, list(h.added)] for h in c.hunks] for c in changes],
        },
        "fates": {name: [int(f) for f in checker.fates] for name, checker in p.checkers.items()},
    }


def _lines(source: str | None) -> list[str] | None:
    return None if source is None else source.split("\n")
