"""A matrix as a mutation testing report in Stryker's JSON (schema version 2), for the viewers that read it.

One checker is reported: its entries are the tests. States:

| Stryker      | here |
| ------------ | ---- |
| Killed       | witnessed, and the checker detects it |
| Timeout      | the same, and it shows by a hang alone |
| Survived     | witnessed, and the checker misses it |
| NoCoverage   | unwitnessed: no admitted entry shows it, so no choice of entries would detect it |
| Pending      | undecided: cells are missing |
| CompileError | it does not compile |
| RuntimeError | the engine cannot run it at all |
| Ignored      | duplicate, equivalent, left out by a rule, or its substrate is not admitted |

So Stryker's "score of covered code" is the coverage that `kernelward coverage` prints. `coveredBy` names all entries
that show the mutant wrong, `killedBy` those of them that the checker asks.
"""

from collections.abc import Iterator
from typing import Any

from ...suites.version import version
from ..matrix_schema import MutantRow, SubstrateRow
from .facts import Facts, ProblemFacts, entry_label
from .sources import Change, Sources
from .visible import visible

SCHEMA = "2.0.0"
_STATES = {"compile-error": "CompileError", "generated": "Pending"}
_MISSING = "# The source of this substrate is not at hand: it changed after it was measured, or it is not among ours."


def stryker_report(facts: Facts, sources: Sources, checker: str) -> dict[str, Any]:
    """The report as a JSON-able object.

    Args:
        checker: name of the protocol that is reported.
    """
    files: dict[str, dict[str, Any]] = {}
    problems = {p.cells.id: p for p in facts.problems}
    for row, substrate, fate in _rows(facts, checker):
        owner = problems.get(substrate.problem)
        name = f"{owner.name if owner else substrate.problem}/{substrate.name}.py"
        change = sources.changes.get(row.uid)
        source = sources.substrates.get(substrate.hash)
        file = files.setdefault(name, {"language": "python", "source": source, "mutants": []})
        file["mutants"].append(_mutant(row, change) | fate)
    for file in files.values():
        if file["source"] is None:  # the viewers mark lines of it
            last = max(m["location"]["end"]["line"] for m in file["mutants"])
            file["source"] = _MISSING + "\n" * last
    return {
        "schemaVersion": SCHEMA,
        "thresholds": {"high": 98, "low": 90},
        "framework": {"name": "kernelward", "version": version()},
        "config": {"checker": checker, "matrix": facts.report.matrix, "device": facts.report.device_class},
        "files": dict(sorted(files.items())),
        "testFiles": {p.name: {"tests": _tests(p)} for p in facts.problems},
    }


def _rows(facts: Facts, checker: str) -> Iterator[tuple[MutantRow, SubstrateRow, dict[str, Any]]]:
    for p in facts.problems:
        for i, mutant in enumerate(p.cells.mutants):
            yield mutant, p.substrates[mutant.substrate], _fate(p, i, checker)
    for mutant, substrate in facts.others:
        yield mutant, substrate, _other(mutant, substrate)


def _fate(p: ProblemFacts, i: int, checker: str) -> dict[str, Any]:
    asked = p.checkers[checker]
    fate, witnessed = int(asked.fates[i]), int(p.witnessed[i])
    showing = [c for c in range(len(p.cells.entries)) if p.shown[i, c]]
    closest = p.closest(i) if witnessed != 1 else asked.closest(i)
    near = "" if closest is None else f"closest: {entry_label(p.cells.entries[closest[0]])}, {closest[1]:.3g}"
    if witnessed == 1 and fate == 1:
        status = "Timeout" if p.shows[i] == "hang" else "Killed"
        killing = [c for c in showing if c in asked.columns]
        return {
            "status": status,
            "statusReason": f"shows by {p.shows[i]}",
            "coveredBy": [_test_id(p, c) for c in showing],
            "killedBy": [_test_id(p, c) for c in killing],
        }
    if witnessed == 1 and fate == 0:
        return {"status": "Survived", "statusReason": near, "coveredBy": [_test_id(p, c) for c in showing]}
    if witnessed == 0:
        return {"status": "NoCoverage", "statusReason": f"no admitted entry shows it; {near}".rstrip("; ")}
    return {"status": "Pending", "statusReason": "cells of the kill matrix are missing"}


def _other(mutant: MutantRow, substrate: SubstrateRow) -> dict[str, Any]:
    if mutant.state == "ready":
        reason = (
            f"its substrate is {substrate.status}" if substrate.status != "admitted" else "not on this device class"
        )
        return {"status": "Ignored", "statusReason": reason}
    if mutant.state == "excluded" and mutant.how == "engine":
        return {"status": "RuntimeError", "statusReason": "the engine cannot run it"}
    return {"status": _STATES.get(mutant.state, "Ignored"), "statusReason": mutant.state}


def _mutant(row: MutantRow, change: Change | None) -> dict[str, Any]:
    found = {"id": row.uid, "mutatorName": row.operator, "description": visible(f"{row.family}: {row.detail}")}
    if change is None:
        line = max(1, row.line)
        return found | {"location": _location(line, 1, line + 1, 1)}
    s = change.span
    return found | {
        "location": _location(s.line, s.column, s.end_line, s.end_column),
        "replacement": s.replacement,
    }


def _location(line: int, column: int, end_line: int, end_column: int) -> dict[str, Any]:
    return {"start": {"line": line, "column": column}, "end": {"line": end_line, "column": end_column}}


def _tests(p: ProblemFacts) -> list[dict[str, str]]:
    used = [c for c, e in enumerate(p.cells.entries) if e.admitted or any(c in k.columns for k in p.checkers.values())]
    return [{"id": _test_id(p, c), "name": entry_label(p.cells.entries[c])} for c in used]


def _test_id(p: ProblemFacts, column: int) -> str:
    return f"{p.name}/{p.cells.entries[column].uid}"
