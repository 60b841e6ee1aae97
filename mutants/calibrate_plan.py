"""What a calibration works on: problems with their substrates, the questions of each, and the order of the mutants."""

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from ..suites.draw import entry_bytes
from ..suites.entry import Entry
from ..suites.errors import InputError
from ..suites.hashing import sha256_text, short, stable_hash
from ..suites.problem import Problem, find_problem
from ..suites.protocol import load_protocol
from ..suites.select import DENSE
from ..suites.validity import Admission, Measured
from .cell import Question
from .coverage import OFFICIAL_PROTOCOLS
from .matrix import Matrix
from .matrix_schema import EntryRow
from .measure import Asked, Official
from .mutant import FAMILIES, Mutant, Substrate
from .pool import Pool, declared_too_large
from .substrates import list_substrates

COSTLY = 32 << 20  # bytes of inputs, outputs and parameters from which a GPU puts only a sample of mutants to an entry


@dataclass(frozen=True, slots=True)
class Target:
    """A problem and the substrates that solve it, by name.

    Attributes:
        extra: entries beside the pool's own, such as those of a suite in use.
        guests: kernels that a policy wrote (`banked`): none of them votes on anything.
    """

    problem: Problem
    substrates: tuple[Substrate, ...]
    extra: tuple[Entry, ...] = ()
    guests: tuple[Substrate, ...] = ()


def find_targets(folders: Sequence[Path], ids: Sequence[str] = (), substrates: Path | None = None) -> list[Target]:
    """The problems for which there is a substrate, by id.

    Args:
        folders: in which problems are looked up, the first that has one wins.
        ids: only these problems; () = all.
        substrates: folder of substrates; the package's own by default.

    Raises:
        InputError: an id that is no problem, or has no substrate; nothing to calibrate at all.
    """
    known = list_substrates(substrates)
    found: dict[str, tuple[Problem, list[Substrate]]] = {}
    for substrate in known:
        with contextlib.suppress(InputError):
            problem = find_in(substrate.problem, folders)
            found.setdefault(problem.hash, (problem, []))[1].append(substrate)
    targets = [Target(p, tuple(own)) for p, own in sorted(found.values(), key=lambda item: item[0].id)]
    if ids:
        wanted = {find_in(name, folders).hash: name for name in ids}
        lacking = [name for digest, name in wanted.items() if digest not in found]
        if lacking:
            raise InputError(f"no substrate solves {', '.join(lacking)}: put one into mutants/substrates")
        targets = [t for t in targets if t.problem.hash in wanted]
    if not targets:
        where = ", ".join(map(str, folders)) or "no folder"
        raise InputError(f"nothing to calibrate: none of the {len(known)} substrates solves a problem in {where}")
    return targets


def find_in(name: str, folders: Sequence[Path]) -> Problem:
    """`find_problem` in several folders, of which the first that has one wins.

    Raises:
        InputError: what the last of them said.
    """
    for folder in folders[:-1]:
        with contextlib.suppress(InputError):
            return find_problem(name, folder)
    return find_problem(name, folders[-1] if folders else None)


@dataclass(frozen=True, slots=True)
class Questions:
    """The questions of one problem.

    Attributes:
        pool: strict ones, grouped by shape, the cheapest shape first.
        official: groups of plain ones.
    """

    pool: tuple[Asked, ...]
    official: tuple[Official, ...]

    @property
    def cheap(self) -> Self:
        """Those that every mutant is put to, and first of all."""
        pool = tuple(a for a in self.pool if not a.costly)
        return replace(self, pool=pool, official=tuple(g for g in self.official if not g.costly))


def questions_hash(questions: Questions) -> str:
    """Names a set of questions; what an answer depends on beside them is in the environment."""
    pool = [[a.id, a.question.races] for a in questions.pool]
    return short(stable_hash([pool, [[a.id for a in group.asked] for group in questions.official]]))


def _costly(device_class: str, size: int) -> bool:
    return device_class == "cuda" and size >= COSTLY


def pool_questions(pool: Pool, ids: dict[str, int]) -> tuple[Asked, ...]:
    """Every admitted entry, the cheapest shape first; the first dense one of a shape asks for the race check.

    Args:
        ids: matrix ids by entry id.
    """
    by_shape: dict[tuple[object, ...], list[Admission]] = defaultdict(list)
    for admission in pool.admitted:
        by_shape[admission.entry.constants].append(admission)
    asked = []
    for admissions in by_shape.values():  # pool.admitted is sorted by cost
        dense = next((a.entry.id for a in admissions if a.entry.generator in DENSE), admissions[0].entry.id)
        for a in admissions:
            question = Question(a.entry, a.measured, "strict", races=a.entry.id == dense)
            asked.append(
                Asked(
                    ids[a.entry.id], question, a.measured is not None and _costly(pool.device_class, a.measured.bytes)
                )
            )
    return tuple(asked)


def protocol_rows(problem: Problem, pool: Pool) -> list[EntryRow]:
    """Rows (without a problem id) for the entries of the official protocols; none where they do not fit the device.

    The plain draws of `get_inputs` have the tolerances that the pool's own entry of that shape was measured with, so
    that official inputs can be held against ours. The others have none and witness nothing.
    """
    if declared_too_large(problem, pool.device_class):
        return []
    own = next((a for a in pool.admitted if a.entry == Entry.make()), None)
    measured = None if own is None or own.measured is None else own.measured.to_dict()
    rows = []
    for uid, entry in sorted(protocol_entries().items()):
        plain = measured is not None and entry.generator == "own" and entry.scale == 1.0
        rows.append(
            EntryRow(
                0,
                uid,
                pool.device_class,
                entry.to_dict(),
                "protocol",
                admitted=plain,
                reason="" if plain else "not-measured",
                measured=measured if plain else None,
                bytes=entry_bytes(problem, entry),
            )
        )
    return rows


def protocol_entries() -> dict[str, Entry]:
    """The entries of the official protocols, by id."""
    specs = [load_protocol(name) for name in OFFICIAL_PROTOCOLS]
    return {entry.id: entry for spec in specs if spec.entries != "suite" for entry in spec.entries}


def official_questions(rows: Mapping[int, EntryRow]) -> tuple[Official, ...]:
    """The official protocols' entries in groups that share their draws, each with its loosest tolerance.

    Args:
        rows: a problem's entries by matrix id; none of a protocol where the declared shape does not fit the device.
    """
    by_uid = {row.uid: (id, row) for id, row in rows.items()}
    groups: dict[tuple[str, ...], Official] = {}
    for name in OFFICIAL_PROTOCOLS:
        spec = load_protocol(name)
        assert spec.entries != "suite"
        assert spec.comparison != "truth"
        uids = tuple(e.id for e in spec.entries)
        if not all(uid in by_uid for uid in uids):
            continue
        asked = []
        for entry in spec.entries:
            id, row = by_uid[entry.id]
            measured = None if row.measured is None else Measured.from_dict(dict(row.measured))
            asked.append(Asked(id, Question(entry, measured, "plain"), _costly(row.device_class, row.bytes)))
        before = groups[uids].loosest if uids in groups else 0.0
        groups[uids] = Official(tuple(asked), max(before, spec.comparison.atol))
    return tuple(groups.values())


def ordered(mutants: Sequence[Mutant]) -> list[Mutant]:
    """An order in which any beginning is a fair sample: families take turns, and operators within a family.

    Which mutant of an operator comes first is a matter of its id's hash, so neighbours in the source do not.
    """
    by_family: dict[str, dict[str, list[Mutant]]] = {family: defaultdict(list) for family in FAMILIES}
    for mutant in sorted(mutants, key=lambda m: sha256_text(m.id)):
        by_family[mutant.family][mutant.operator].append(mutant)
    turns = [_in_turns([own for _, own in sorted(operators.items())]) for operators in by_family.values()]
    return list(_in_turns([list(t) for t in turns]))


def _in_turns(queues: Sequence[Sequence[Mutant]]) -> Iterator[Mutant]:
    for row in itertools.zip_longest(*queues):
        yield from (mutant for mutant in row if mutant is not None)


def entry_ids(matrix: Matrix, problem: int, device_class: str) -> dict[str, int]:
    """Matrix ids of a problem's entries on a device class, by entry id."""
    return {row.uid: id for id, row in matrix.entries(problem, device_class=device_class).items()}
