"""The report as Markdown for a pull request: what is missed and by what it would be caught, then all counts."""

import re
from collections.abc import Sequence

from ..coverage_table import markdown as counts
from ..coverage_table import percent
from ..replay_line import replay_line
from .facts import HEAD, Facts, ProblemFacts, entry_label
from .history import History
from .html import missing
from .scored import Scored
from .sources import Sources
from .visible import one_line, visible

_SURVIVORS, _DIFFS = 20, 5
_CONTEXT = 2
_SPECIAL = re.compile(r"[\\|`*<>\[\]#@~&]|(?<=[a-z]):(?=//)|(?<=www)\.")


def escape(text: str, most: int = 160) -> str:
    """A text that Markdown shows as it is: no links, no mentions, no HTML, no cell of its own."""
    return _SPECIAL.sub(lambda match: f"&#{ord(match[0])};", one_line(text, most))


def render_markdown(
    facts: Facts | None, sources: Sources, scored: Scored | None = None, history: History | None = None
) -> str:
    """The whole text."""
    parts = ["## kernelward report"]
    if facts is not None:
        parts += [_missing(facts), *_survivors(facts, sources)]
        parts.append(f"<details><summary>All counts</summary>\n\n{counts(facts.report)}\n\n</details>")
    if history is not None and history.points:
        parts.append(_history(history))
    if scored is not None:
        parts.append(_scored(scored))
    return "\n\n".join(parts) + "\n"


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _missing(facts: Facts) -> str:
    rows = []
    for line in missing(facts):
        inputs = [
            f"{escape(c.name)} ({c.alone})" if not n else f"with {escape(c.name)} ({c.together})"
            for n, c in enumerate(line.catches)
        ]
        share = percent(line.share, True)
        rows.append((line.name, f"{line.missed} of {line.share.of}", share, ", ".join(inputs) or line.without))
    return _table(("checker", "misses", "share (95 %)", "inputs that would catch it"), rows)


def _survivors(facts: Facts, sources: Sources) -> list[str]:
    """The first survivors as a table, and the diffs of the very first."""
    found = [
        (p, i, [name for name in (HEAD[1], HEAD[0]) if p.missed(name)[i]])
        for p in facts.problems
        for i in (p.missed(HEAD[1]) | p.missed(HEAD[0])).nonzero()[0].tolist()
    ]
    if not found:
        return [f"No witnessed mutant survives {HEAD[0]} or {HEAD[1]}."]
    found.sort(key=lambda item: item[2] != [HEAD[1], HEAD[0]] and HEAD[1] not in item[2])
    rows = [_row(p, i, missed) for p, i, missed in found[:_SURVIVORS]]
    title = f"**Survivors** ({min(len(found), _SURVIVORS)} of {len(found)})"
    header = ("mutant", "kernel", "missed by", "came closest", "would be caught by")
    diffs = [text for p, i, _ in found[:_DIFFS] if (text := _diff(p, i, sources))]
    commands = [line for p, i, missed in found[:_SURVIVORS] if (line := _replay(facts, p, i, missed))]
    parts = [f"{title}\n\n{_table(header, rows)}"]
    if commands:
        text = visible("\n".join(commands))
        fence = _fence(text)
        parts.append(
            f"<details><summary>Commands that reproduce them</summary>\n\n{fence}\n{text}\n{fence}\n\n</details>"
        )
    if diffs:
        parts.append("<details><summary>Diffs of the first</summary>\n\n" + "\n\n".join(diffs) + "\n\n</details>")
    return parts


def _row(p: ProblemFacts, i: int, missed: list[str]) -> tuple[str, ...]:
    mutant = p.cells.mutants[i]
    entries = p.cells.entries
    closest = p.checkers[missed[0]].closest(i)
    near = "-" if closest is None else f"{closest[1]:.3g} x allowed: {escape(entry_label(entries[closest[0]]))}"
    catchers = [c for c in p.cells.columns("pool") if p.shown[i, c]]
    cheapest = min(catchers, key=lambda c: entries[c].bytes, default=None)
    caught = "-" if cheapest is None else escape(entry_label(entries[cheapest]))
    if len(catchers) > 1:
        caught += f" (and {len(catchers) - 1} more)"
    name = f"{escape(mutant.operator)} ({escape(mutant.family)}): {escape(mutant.detail)}"
    place = f"{escape(p.name)}, {escape(p.substrates[mutant.substrate].name)}:{mutant.line}"
    return name, place, ", ".join(missed), near, caught


def _diff(p: ProblemFacts, i: int, sources: Sources) -> str:
    mutant = p.cells.mutants[i]
    row = p.substrates[mutant.substrate]
    source, change = sources.substrates.get(row.hash), sources.changes.get(mutant.uid)
    if source is None or change is None:
        return ""
    before = source.split("\n")
    lines = []
    for hunk in change.hunks:
        start = hunk.line - 1
        lines += [f"  {text}" for text in before[max(0, start - _CONTEXT) : start]]
        lines += [f"- {text}" for text in before[start : start + hunk.removed]]
        lines += [f"+ {text}" for text in hunk.added]
        lines += [f"  {text}" for text in before[start + hunk.removed : start + hunk.removed + _CONTEXT]]
    text = visible("\n".join(lines))
    fence = _fence(text)
    return f"{escape(row.name)}, line {mutant.line} ({mutant.uid})\n\n{fence}diff\n{text}\n{fence}"


def _fence(text: str) -> str:
    """Longer than whatever looks like one in the text."""
    return "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))


def _replay(facts: Facts, p: ProblemFacts, i: int, missed: list[str]) -> str:
    """The command for the cell that catches a survivor at the least cost, or that came closest; "" of none."""
    catchers = [c for c in p.cells.columns("pool") if p.shown[i, c]]
    closest = p.checkers[missed[0]].closest(i)
    column = min(catchers, key=lambda c: p.cells.entries[c].bytes, default=None if closest is None else closest[0])
    if column is None:
        return ""
    report = facts.report
    return replay_line(p.cells.mutants[i].uid, p.cells.entries[column].uid, report.device_class, report.matrix)


def _history(history: History) -> str:
    last = history.points[-1]
    detected, witnessed = last.overall
    at = f"step {last.step}" if last.step is not None else "the last point"
    share = f"{100 * detected / witnessed:.2f} %" if witnessed else "-"
    return f"Coverage at {at}: {share} ({detected} of {witnessed}), {len(history.points)} points in all."


def _scored(scored: Scored) -> str:
    rows = [
        (
            escape(line.protocol),
            f"{line.accepted} of {line.judged}",
            f"{100 * line.low:.1f}-{100 * line.high:.1f} %" if line.judged else "-",
            ", ".join(f"{n} {escape(word)}" for word, n in sorted(line.outcomes.items()) if word != "correct") or "-",
        )
        for line in scored.summary.protocols
    ]
    text = f"**Scored generations** ({scored.summary.rows} rows)\n\n"
    return text + _table(("protocol", "accepted", "95 % interval", "other verdicts"), rows)
