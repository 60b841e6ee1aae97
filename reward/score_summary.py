"""What a scored file says: who accepts how much, who disagrees with whom, and how far each protocol can be trusted."""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from scipy.stats import binomtest

from .verdict import Outcome

_EXAMPLES = 3
Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Coverage:
    """Mutants of the scored problems that a protocol detects, as calibrations measured it.

    Attributes:
        detected, witnessed: summed over the problems that have a calibrated suite.
        problems, of: how many of the scored problems those are.
    """

    detected: int
    witnessed: int
    problems: int
    of: int


@dataclass(frozen=True, slots=True)
class ProtocolSummary:
    """One protocol's line.

    Attributes:
        accepted, judged: verdicts `correct`, and verdicts at all; the interval is Wilson's at 95 %.
        no_verdict: rows with `infra_error` or `unrefereeable`, by verdict.
        outcomes: rows by verdict.
        coverage: measured coverage on these problems; None = uncalibrated.
    """

    protocol: str
    accepted: int
    judged: int
    low: float
    high: float
    no_verdict: Mapping[str, int]
    outcomes: Mapping[str, int]
    coverage: Coverage | None


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Rows that one judge accepts and the other does not; `recorded` stands for a runs folder's own results."""

    accepts: str
    refuses: str
    rows: int
    both_decided: int
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """The summary of a scored file.

    Attributes:
        rows: rows of the input; bad_rows: those that could not be judged, as (where, why).
        recorded: what a runs folder had recorded, by outcome (empty for JSONL).
    """

    rows: int
    bad_rows: tuple[tuple[str, str], ...]
    protocols: tuple[ProtocolSummary, ...]
    disagreements: tuple[Disagreement, ...]
    recorded: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """JSON-able mapping with the attributes' names."""
        return asdict(self)


def wilson(accepted: int, judged: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share; (0, 1) where nothing was judged."""
    if judged == 0:
        return 0.0, 1.0
    interval = binomtest(accepted, judged).proportion_ci(confidence_level=0.95, method="wilson")
    return float(interval.low), float(interval.high)


def summarise(records: Iterable[Record], protocols: Sequence[str], coverage: Mapping[str, Coverage | None]) -> Summary:
    """Summarise the lines of a scored file.

    Args:
        records: lines with `row`, `where`, and either `error`, or `protocol`, `verdict` and perhaps `recorded`.
        protocols: names, in the order of the table.
        coverage: measured coverage by protocol.
    """
    verdicts: dict[str, dict[int, Outcome]] = {name: {} for name in protocols}
    where: dict[int, str] = {}
    recorded: dict[int, str] = {}
    bad: dict[int, tuple[str, str]] = {}
    for record in records:
        row = record["row"]
        where[row] = record["where"]
        if record.get("error"):
            bad[row] = (record["where"], record["error"])
        elif record["protocol"] in verdicts:
            verdicts[record["protocol"]][row] = Outcome(record["verdict"])
        if record.get("recorded"):
            recorded[row] = record["recorded"]["outcome"]
    opinions = {
        name: {row: o is Outcome.CORRECT for row, o in by.items() if o.decided} for name, by in verdicts.items()
    }
    if recorded:
        undecided = ("out_of_memory", "infrastructure")
        opinions["recorded"] = {row: o == "correct" for row, o in recorded.items() if o not in undecided}
    return Summary(
        rows=len(where),
        bad_rows=tuple(bad[row] for row in sorted(bad)),
        protocols=tuple(_protocol_summary(name, verdicts[name].values(), coverage.get(name)) for name in protocols),
        disagreements=tuple(_disagreements(opinions, where)),
        recorded=dict(Counter(recorded.values())),
    )


def _protocol_summary(name: str, outcomes: Iterable[Outcome], coverage: Coverage | None) -> ProtocolSummary:
    counts = Counter(outcomes)
    judged = sum(n for outcome, n in counts.items() if outcome.decided)
    accepted = counts[Outcome.CORRECT]
    return ProtocolSummary(
        protocol=name,
        accepted=accepted,
        judged=judged,
        low=wilson(accepted, judged)[0],
        high=wilson(accepted, judged)[1],
        no_verdict={str(outcome): n for outcome, n in counts.items() if not outcome.decided},
        outcomes={str(outcome): n for outcome, n in counts.items()},
        coverage=coverage,
    )


def _disagreements(opinions: Mapping[str, Mapping[int, bool]], where: Mapping[int, str]) -> Iterable[Disagreement]:
    for accepts, refuses in itertools.permutations(opinions, 2):
        both = opinions[accepts].keys() & opinions[refuses].keys()
        rows = sorted(row for row in both if opinions[accepts][row] and not opinions[refuses][row])
        if both:
            yield Disagreement(accepts, refuses, len(rows), len(both), tuple(where[row] for row in rows[:_EXAMPLES]))


def print_summary(summary: Summary, console: Console) -> None:
    """The summary as tables for people."""
    table = Table(title=f"{summary.rows} rows", box=None, pad_edge=False, title_justify="left")
    for name in ("protocol", "accepted", "95 % interval", "not accepted", "no verdict", "coverage"):
        table.add_column(name, no_wrap=name in ("protocol", "accepted", "95 % interval"))
    for line in summary.protocols:
        share = f" = {line.accepted / line.judged:.1%}" if line.judged else ""
        refused = {name: n for name, n in line.outcomes.items() if name != "correct" and name not in line.no_verdict}
        table.add_row(
            line.protocol,
            f"{line.accepted}/{line.judged}{share}",
            f"{line.low:.1%} - {line.high:.1%}",
            _counts(refused),
            _counts(line.no_verdict),
            coverage_text(line.coverage),
        )
    console.print(table)
    if any(line.coverage is None for line in summary.protocols):
        console.print("uncalibrated: how many wrong kernels such a check lets pass was not measured on these problems")
    if summary.recorded:
        console.print(f"recorded in the folder: {_counts(summary.recorded, ', ')}")
    differing = [d for d in summary.disagreements if d.rows]
    if differing:
        table = Table(title="\nwho disagrees with whom", box=None, pad_edge=False, title_justify="left")
        for name in ("accepted by", "refused by", "rows", "for example"):
            table.add_column(name, no_wrap=name != "for example")
        for d in differing:
            table.add_row(d.accepts, d.refuses, f"{d.rows} of {d.both_decided}", "\n".join(d.examples))
        console.print(table)
    elif summary.disagreements:
        console.print("all agree on every row that they decided")
    for place, error in summary.bad_rows[:10]:
        console.print(f"not judged: {place}: {error}", markup=False, soft_wrap=True)
    if len(summary.bad_rows) > 10:
        console.print(f"not judged: {len(summary.bad_rows) - 10} more rows; their lines say why")


def _counts(counts: Mapping[str, int], between: str = "\n") -> str:
    return between.join(f"{n} {name}" for name, n in sorted(counts.items())) or "-"


def coverage_text(coverage: Coverage | None) -> str:
    """`99.1 % of 230 mutants (8 of 10 problems)`, or `uncalibrated`."""
    if coverage is None or coverage.witnessed == 0:
        return "uncalibrated"
    share = coverage.detected / coverage.witnessed
    return f"{share:.1%} of {coverage.witnessed} mutants ({coverage.problems} of {coverage.of} problems)"
