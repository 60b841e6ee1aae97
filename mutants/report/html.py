"""The HTML file: everything in it, nothing fetched.

What a reader looks for first (what is missed, by family, by input and tolerance, the evidence about correct kernels) is
plain HTML and needs no script. Survivors, heat maps and mutants are compressed blocks that a small script unpacks.
"""

import base64
import hashlib
import importlib.resources
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...suites.errors import InputError
from ...suites.version import version
from ..clean_run import closest_of
from ..coverage_report import OURS, Effect, Share
from ..coverage_table import bounds, percent, summary
from .catch import Catch
from .chart import HEIGHT, WIDTH, charts
from .facts import HEAD, Facts, entry_label
from .history import History
from .pack import DECADES, FLOOR, STATES, STEPS, block, index_block, problem_block
from .scored import Scored
from .sources import Sources
from .visible import visible

_CLEAN_RUN = "clean-run"  # reason of entries that the gate admitted and correct kernels did not bear out


@dataclass(frozen=True, slots=True)
class Missing:
    """What one checker misses, and what would catch it."""

    name: str
    missed: int
    share: Share
    unknown: int
    catches: tuple[Catch, ...]

    @property
    def without(self) -> str:
        """What is said where no input would catch anything."""
        if not self.share.of:
            return "unknown: cells are missing"
        return "no single input" if self.missed else "nothing is missed"


def render(facts: Facts | None, sources: Sources, scored: Scored | None = None, history: History | None = None) -> str:
    """The whole file.

    Args:
        facts: what the matrix says; None = there is none, only scored generations.
        sources: of the substrates, for diffs.

    Raises:
        InputError: jinja2 is not installed.
    """
    try:
        import jinja2
        from markupsafe import Markup
    except ImportError as error:
        raise InputError("an HTML report needs jinja2: pip install 'kernelward[report]'") from error
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_template),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.filters["percent"] = percent
    environment.filters["bounds"] = bounds
    style, script = _template("report.css"), _template("report.js")
    blocks: dict[str, str] = {}
    if facts is not None:
        blocks["index"] = block(index_block(facts))
        blocks |= {f"p{i}": block(problem_block(p, sources)) for i, p in enumerate(facts.problems)}
    settings = {"states": STATES, "floor": FLOOR, "decades": DECADES, "steps": STEPS, "head": HEAD}
    return environment.get_template("report.html.j2").render(
        style=Markup(style),
        script=Markup(script),
        policy=_policy(style, script),
        version=version(),
        blocks={name: Markup(text) for name, text in blocks.items()},
        settings=Markup(json.dumps(settings)),
        settings_head=HEAD,
        coverage_of=lambda name: _coverage_of(facts, name),
        facts=facts,
        view=None if facts is None else _view(facts),
        scored=None if scored is None else _scored(scored),
        charts=() if history is None else charts(history),
        history=history,
        chart_size=(WIDTH, HEIGHT),
    )


def _template(name: str) -> str:
    return (importlib.resources.files(__package__) / "templates" / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """The page may run this script and use this style, and fetch nothing: whatever a text in it contains."""

    def digest(text: str) -> str:
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    return (
        f"default-src 'none'; script-src 'sha256-{digest(script)}'; style-src 'sha256-{digest(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _coverage_of(facts: Facts | None, protocol: str) -> str:
    """The coverage of a protocol that generations were scored by: a pass rate without it says little."""
    lines = () if facts is None else facts.report.protocols
    wanted = HEAD[1] if protocol == OURS else protocol
    return next((percent(line.ours, True) for line in lines if line.name == wanted), "uncalibrated")


def _view(facts: Facts) -> dict[str, Any]:
    report = facts.report
    shown = [line for line in report.protocols if line.selected is None or line.name in HEAD]
    witnessed = report.witnessed["ours"]
    return {
        "summary": summary(report),
        "environments": [json.dumps(e, sort_keys=True) for e in facts.environments],
        "witnessed": witnessed,
        "missing": missing(facts),
        "protocols": shown,
        "suites": [line for line in report.protocols if line.selected is not None],
        "groups": sorted({label for line in report.protocols for label in line.groups}),
        "effects": _effects(report.effects),
        "problems": _problems(facts),
        "alone": _alone(facts),
        "correct": _correct(facts),
    }


def missing(facts: Facts) -> tuple[Missing, ...]:
    """What the official checkers and ours miss, in the order of the report."""
    lines = [line for line in facts.report.protocols if line.selected is None or line.name in HEAD]
    return tuple(
        Missing(
            line.name,
            line.ours.of - line.ours.detected,
            Share(line.ours.of - line.ours.detected, line.ours.of),
            line.ours.unknown,
            facts.catches(line.name),
        )
        for line in lines
    )


def _effects(effects: tuple[Effect, ...]) -> Mapping[tuple[str, str], list[Effect]]:
    found: dict[tuple[str, str], list[Effect]] = {}
    for effect in effects:
        found.setdefault((effect.inputs, effect.tolerance), []).append(effect)
    return found


def _problems(facts: Facts) -> list[dict[str, Any]]:
    """One line per problem, those with the most misses first."""
    found = [
        {
            "at": at,
            "name": p.name,
            "mutants": len(p.cells.mutants),
            "witnessed": int((p.witnessed == 1).sum()),
            "unwitnessed": int((p.witnessed == 0).sum()),
            "undecided": int((p.witnessed < 0).sum()),
            "missed": [int(p.missed(name).sum()) for name in HEAD],
            "entries": len(p.cells.columns("pool")),
            "words": Counter(w.word for w in p.worths if w is not None),
        }
        for at, p in enumerate(facts.problems)
    ]
    return sorted(found, key=lambda line: (-line["missed"][1], -line["missed"][0], line["name"]))


def _alone(facts: Facts) -> list[dict[str, Any]]:
    """Entries that show what no other entry shows, the most telling first."""
    found = [
        {"at": at, "problem": p.name, "entry": entry_label(entry), "kills": worth.kills, "alone": worth.alone}
        for at, p in enumerate(facts.problems)
        for entry, worth in zip(p.cells.entries, p.worths, strict=True)
        if worth is not None and worth.alone
    ]
    return sorted(found, key=lambda line: (-line["alone"], line["problem"], line["entry"]))


def _correct(facts: Facts) -> dict[str, Any]:
    """The evidence that correct kernels pass: substrates, and entries that were kept from judging."""
    substrates = [(p, row) for p in facts.problems for row in p.substrates.values()]
    near = sorted(
        ((found, row) for _, row in substrates if row.status == "admitted" and (found := closest_of(row.detail))),
        key=lambda item: (-item[0][0], item[1].name),
    )
    refused = [(p, e) for p in facts.problems for e in p.cells.entries if e.role == "pool" and not e.admitted]
    return {
        "substrates": Counter(row.status for _, row in substrates),
        "near": [(row.name, ratio, _label_of(facts, uid, row.problem)) for (ratio, uid), row in near],
        "quarantined": [(row.name, p.name, row.detail) for p, row in substrates if row.status == "quarantined"],
        "admitted": sum(len(p.cells.columns("pool")) for p in facts.problems),
        "refused": Counter(e.reason for _, e in refused if e.reason != _CLEAN_RUN),
        "dropped": [(p.name, entry_label(e), e.detail) for p, e in refused if e.reason == _CLEAN_RUN],
    }


def _label_of(facts: Facts, uid: str, problem: int) -> str:
    for p in facts.problems:
        at = p.cells.by_uid(uid) if p.cells.id == problem else -1
        if at >= 0:
            return entry_label(p.cells.entries[at])
    return uid


def _scored(scored: Scored) -> dict[str, Any]:
    kinds = sorted({kind for counts in scored.reasons.values() for kind in counts})
    return {
        "path": scored.path,
        "summary": scored.summary,
        "unread": scored.unread,
        "protocols": list(scored.reasons),
        "kinds": [(kind, [counts.get(kind, 0) for counts in scored.reasons.values()]) for kind in kinds],
        "disputed": scored.disputed,
    }
