"""Sources of substrates and mutants, made again: the matrix stores none."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..matrix_schema import MutantRow, SubstrateRow
from ..mutant import Substrate, generate
from ..operators import OPERATORS

_LONG = 12  # changed lines beyond which a mutant's edits are told apart line by line


@dataclass(frozen=True, slots=True)
class Hunk:
    """Lines that a mutant replaces.

    Attributes:
        line: of the first one, from 1; where none is replaced, the line before which the new ones stand.
        removed: how many.
        added: the new ones.
    """

    line: int
    removed: int
    added: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """The characters that a mutant replaces; lines and columns from 1, the end exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int
    replacement: str


@dataclass(frozen=True, slots=True)
class Change:
    """What a mutant does to its substrate's text."""

    hunks: tuple[Hunk, ...]
    span: Span


@dataclass(slots=True)
class Sources:
    """Substrates by hash, and the changes of their mutants by uid; see `collect`."""

    substrates: dict[str, str] = field(default_factory=dict)
    changes: dict[str, Change] = field(default_factory=dict)


def collect(rows: Iterable[tuple[MutantRow, SubstrateRow]], known: Iterable[Substrate]) -> Sources:
    """Make the mutants of a matrix again.

    A substrate whose source changed after it was measured, or that is not at hand, has no source here, and a mutant
    that its operator no longer makes has no change.

    Args:
        rows: mutants and their substrates.
        known: substrates with their sources.
    """
    wanted: dict[str, tuple[set[str], set[str]]] = {}
    for mutant, row in rows:
        uids, names = wanted.setdefault(row.hash, (set(), set()))
        uids.add(mutant.uid)
        names.add(mutant.operator)
    sources = Sources()
    for substrate in known:
        if substrate.hash not in wanted or substrate.hash in sources.substrates:
            continue
        uids, names = wanted[substrate.hash]
        sources.substrates[substrate.hash] = substrate.source
        operators = [OPERATORS[name] for name in OPERATORS if name in names]
        for made in generate(substrate, operators):
            if made.id in uids:
                sources.changes[made.id] = change(substrate.source, made.source)
    return sources


def change(before: str, after: str) -> Change:
    """The difference between two texts."""
    old, new = before.split("\n"), after.split("\n")  # as a reader of the report splits them
    start, end = _common(old, new)
    old, new = old[start : len(old) - end], new[start : len(new) - end]
    return Change(_hunks(start, old, new), _span(start, old, new))


def _hunks(start: int, old: list[str], new: list[str]) -> tuple[Hunk, ...]:
    """The lines that differ, in order, where the first is that after `start`."""
    if max(len(old), len(new)) <= _LONG:
        return (Hunk(start + 1, len(old), tuple(new)),) if old or new else ()
    blocks = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return tuple(Hunk(start + i + 1, j - i, tuple(new[k:m])) for tag, i, j, k, m in blocks if tag != "equal")


def _span(start: int, old: list[str], new: list[str]) -> Span:
    """From the first to the last character that differs."""
    line = start + 1
    if not old or not new:  # whole lines, each with its end
        return Span(line, 1, line + len(old), 1, "".join(f"{text}\n" for text in new))
    before, after = "\n".join(old), "\n".join(new)
    head, tail = _common(before, after)
    stop = len(before) - tail
    return Span(*_place(line, before, head), *_place(line, before, stop), after[head : len(after) - tail])


def _common(before: str | list[str], after: str | list[str]) -> tuple[int, int]:
    """Lengths of the common beginning and of the common end, which do not overlap."""
    most = min(len(before), len(after))
    start = next((i for i in range(most) if before[i] != after[i]), most)
    end = next((i for i in range(most - start) if before[-1 - i] != after[-1 - i]), most - start)
    return start, end


def _place(line: int, text: str, offset: int) -> tuple[int, int]:
    return line + text.count("\n", 0, offset), offset - text.rfind("\n", 0, offset)


def summaries(names: Iterable[str]) -> Mapping[str, tuple[str, str]]:
    """What operators change and why a checker misses it; those that there are no longer are left out."""
    return {name: (OPERATORS[name].summary, OPERATORS[name].escapes) for name in names if name in OPERATORS}
