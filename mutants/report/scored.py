"""Verdicts of scored generations, counted from the output of `kernelward score`."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...reward.score_summary import Summary, summarise
from ...reward.verdict import Outcome
from ...suites.errors import InputError

_FIELDS = {"id": str, "row": int, "where": str}
_SHOWN = 200  # rows on which protocols disagree that are listed


@dataclass(frozen=True, slots=True)
class Disputed:
    """A row that some protocol accepts and another does not.

    Attributes:
        where: the line or file.
        problem: its id.
        verdicts: protocol -> verdict and reason.
        entry: the entry that shows it wrong, with err and tolerance, as text; "" where none does.
    """

    where: str
    problem: str
    verdicts: Mapping[str, str]
    entry: str


@dataclass(frozen=True, slots=True)
class Scored:
    """A scored file.

    Attributes:
        path: as the user gave it.
        summary: pass rates and disagreements.
        reasons: protocol -> (verdict, reason) -> rows.
        disputed: at most 200 of them.
        unread: lines that are none of `kernelward score`.
    """

    path: str
    summary: Summary
    reasons: Mapping[str, Mapping[tuple[str, str], int]]
    disputed: tuple[Disputed, ...]
    unread: int


def read_scored(path: Path) -> Scored:
    """Read an output of `kernelward score`; of several lines with one identity the last one counts.

    Raises:
        InputError: it cannot be read, or no line is one of `kernelward score`.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"--scored {path}: cannot read it: {error.strerror or error}") from error
    records: dict[str, Mapping[str, Any]] = {}
    unread = 0
    for line in lines:
        if line.strip():
            record = _record(line)
            if record is None:
                unread += 1
            else:
                records[record["id"]] = record
    if not records:
        raise InputError(f"--scored {path}: no line is one of `kernelward score`; give the file of its --out")
    judged = [r for r in records.values() if not r.get("error")]
    protocols = sorted({str(r["protocol"]) for r in judged})
    reasons: dict[str, Counter[tuple[str, str]]] = {name: Counter() for name in protocols}
    for record in judged:
        reasons[record["protocol"]][str(record["verdict"]), str(record.get("reason") or "")] += 1
    return Scored(str(path), summarise(records.values(), protocols, {}), reasons, _disputed(judged, protocols), unread)


def _record(line: bytes) -> Mapping[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not all(isinstance(record.get(k), t) for k, t in _FIELDS.items()):
        return None
    recorded = record.get("recorded")
    if recorded is not None and not (isinstance(recorded, dict) and isinstance(recorded.get("outcome"), str)):
        return None
    if record.get("error"):
        return record if isinstance(record["error"], str) else None
    return record if isinstance(record.get("protocol"), str) and record.get("verdict") in set(Outcome) else None


def _disputed(judged: Sequence[Mapping[str, Any]], protocols: Sequence[str]) -> tuple[Disputed, ...]:
    by_row: dict[int, dict[str, Mapping[str, Any]]] = {}
    for record in judged:
        by_row.setdefault(record["row"], {})[record["protocol"]] = record
    found: list[Disputed] = []
    for _, own in sorted(by_row.items()):
        accepts = {r["verdict"] == Outcome.CORRECT for r in own.values() if Outcome(r["verdict"]).decided}
        if len(accepts) == 2 and len(found) < _SHOWN:
            one = next(iter(own.values()))
            against = next((r for r in own.values() if r.get("entry") and r["verdict"] != Outcome.CORRECT), {})
            found.append(
                Disputed(
                    str(one["where"]),
                    str(one.get("problem") or ""),
                    {name: _words(own[name]) for name in protocols if name in own},
                    _shown_by(against),
                )
            )
    return tuple(found)


def _words(record: Mapping[str, Any]) -> str:
    reason = record.get("reason")
    return f"{record['verdict']} ({reason})" if reason else str(record["verdict"])


def _shown_by(record: Mapping[str, Any]) -> str:
    if not record:
        return ""
    text = str(record["entry"])
    err, tolerance = record.get("err"), record.get("tolerance")
    if isinstance(err, (int, float)) and isinstance(tolerance, (int, float)):
        text += f": error {err:.3g}, tolerance {tolerance:.3g}"
    elif err is not None:
        text += f": error {err}"
    return text
