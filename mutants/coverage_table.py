"""The coverage report as tables, for a terminal and as Markdown, from the same rows."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from .coverage_report import ProtocolCoverage, Report, Share

_FEW = 0.05  # share of unknown mutants up to which a share of the known ones stands for all


@dataclass(frozen=True, slots=True)
class Rows:
    """A table of texts; the first column is a name, the others are numbers."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def percent(share: Share | None, interval: bool = False) -> str:
    """`98.12 % (97.0-98.9)`; a dash of nothing."""
    if share is None or not share.of:
        return "-"
    text = f"{100 * share.share:.2f} %"
    if interval:
        low, high = share.interval
        text += f" ({100 * low:.1f}-{100 * high:.1f})"
    return text


def bounds(share: Share) -> str:
    """`98.12 % (97.0-98.9)`, or where unknown ones could move it, from where to where: `61.1 to 100.0 %`."""
    if share.unknown <= _FEW * (share.of + share.unknown):
        return percent(share, True)
    at_most = (share.detected + share.unknown) / (share.of + share.unknown)
    return f"{100 * share.at_least:.1f} to {100 * at_most:.1f} %"


def summary(report: Report) -> tuple[str, ...]:
    """The lines above the tables: what was counted, and how complete it is."""
    present, total = report.cells
    lines = [
        f"{report.matrix}: {report.problems} problems on {report.device_class}",
        "mutants: " + _counts(report.states) + "; substrates: " + _counts(report.substrates),
    ]
    for name, what in (("ours", "our tolerances"), ("official", "1e-2")):
        counts = report.witnessed[name]
        decided = counts["yes"] + counts["no"]
        share = f"{100 * counts['no'] / decided:.1f} % unwitnessed" if decided else "none decided"
        lines.append(f"witnessed at {what}: {counts['yes']} of {decided} ({share}; {counts['undecided']} undecided)")
    lines.append("how they show: " + _counts(report.classes))
    lines.append(f"cells: {present} of {total} ({100 * present / max(total, 1):.1f} %)")
    if report.inexact:
        lines.append(f"{report.inexact} suites were chosen by the greedy fallback")
    return tuple(lines)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {name}" for name, n in counts.items()) or "none"


def tables(report: Report) -> Iterator[Rows]:
    """All tables of the report, in order."""
    yield Rows(
        "Detected of the witnessed mutants",
        ("protocol", "n", "detected", "problems resampled", "families alike", "witnessed at 1e-2", "unknown"),
        tuple(_protocol_row(line) for line in report.protocols),
    )
    suites = [line for line in report.protocols if line.selected is not None]
    if suites:
        yield Rows(
            "Suites: chosen on one half of the mutants, scored on the other",
            ("suite", "selected half", "held-out half", "chosen on all, scored on all", "refusing changed shapes",
             "chosen and judged at 1e-2", "held-out at 1e-2"),
            tuple(_suite_row(line) for line in suites),
        )  # fmt: skip
    labels = sorted({label for line in report.protocols for label in line.groups})
    yield Rows(
        f"By {report.by}",
        (report.by, "n", *(line.name.replace("-", "- ").replace("@", " @") for line in report.protocols)),
        tuple(
            (
                label,
                str(max(line.groups[label].of for line in report.protocols)),
                *(percent(line.groups[label]) for line in report.protocols),
            )
            for label in labels
        ),
    )
    yield Rows(
        "What inputs, tolerance and engine add",
        ("inputs", "tolerance", "engine", "n", "unknown", "detected"),
        tuple(
            (e.inputs, e.tolerance, e.engine, str(e.share.of), _unknown(e.share), bounds(e.share))
            for e in report.effects
        ),
    )


def _protocol_row(line: ProtocolCoverage) -> tuple[str, ...]:
    resampled = "-" if line.bootstrap is None else f"{100 * line.bootstrap[0]:.1f}-{100 * line.bootstrap[1]:.1f}"
    alike = "-" if math.isnan(line.balanced) else f"{100 * line.balanced:.2f} %"
    shares = (percent(line.ours, True), resampled, alike, percent(line.official, True), _unknown(line.ours))
    return (line.name, str(line.ours.of), *shares)


def _unknown(share: Share) -> str:
    witnessed = share.of + share.unknown
    return f"{100 * share.unknown / witnessed:.1f} %" if witnessed else "-"


def _suite_row(line: ProtocolCoverage) -> tuple[str, ...]:
    return (
        line.name,
        percent(line.selected),
        percent(line.held_out, True),
        percent(line.whole),
        percent(line.refusal),
        percent(line.at_official),
        percent(line.held_out_at_official),
    )


def print_report(report: Report, console: Console) -> None:
    """To a terminal."""
    for line in summary(report):
        console.print(line, highlight=False, markup=False)
    for rows in tables(report):
        print_rows(rows, console)


def print_rows(rows: Rows, console: Console) -> None:
    """One table to a terminal."""
    table = Table(*rows.header, title=rows.title, title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    table.columns[0].no_wrap = True
    for row in rows.rows:
        table.add_row(*row)
    console.print(table)


def markdown(report: Report) -> str:
    """The same as Markdown."""
    summed = "\n".join(f"- {line}" for line in summary(report))
    return "\n\n".join([summed, *(markdown_rows(rows) for rows in tables(report))])


def markdown_rows(rows: Rows) -> str:
    """One table as Markdown."""
    lines = [f"**{rows.title}**", "", _cells(rows.header), _cells(["---", *["---:"] * (len(rows.header) - 1)])]
    return "\n".join([*lines, *(_cells(row) for row in rows.rows)])


def _cells(texts: tuple[str, ...] | list[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"
