"""The tables of a kill matrix and the rows that go into them.

    problems(id, name, hash UNIQUE)
    substrates(id, hash UNIQUE, name, backend, style, problem, status, detail)
    mutants(id, uid UNIQUE, substrate, operator, family, line, detail, state, code_hash, how, origin)
    entries(id, problem, uid, device_class, recipe, role, admitted, reason, detail, measured, bytes,
            UNIQUE (problem, uid, device_class))                    -- recipe, measured: JSON; measured may be null
    environments(id, hash UNIQUE, json)                             -- engine, device class, versions
    cells(mutant, entry, environment, variant, seeds, class, errs, margin, seconds,
          PRIMARY KEY (mutant, entry, environment, variant)) WITHOUT ROWID
    rows(mutant, environment, asked, PRIMARY KEY (mutant, environment)) WITHOUT ROWID

A row says that a mutant was put to a set of questions (`asked` is their hash), also where some cells are missing: a
mutant that ends every process it runs in is given up.

`errs` is a JSON list of normalised errors against truth, one per output, in which "inf" is allowed. A cell over several
seeds keeps the smallest error of each output and the smallest margin, so whatever it kills, it kills under every seed.
`margin` is `max |reference - y| / (1 + |y|)` (NaN counted as infinite; null where nothing was compared).
Numbers are kept to six significant digits (seconds to three): more than any decision needs, and exports stay small.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

if TYPE_CHECKING:
    from ..suites.validity import Admission

VERSION = 1
APPLICATION_ID = 0x6B776D78  # "kwmx": tells our file from other SQLite files

Variant = Literal["plain", "strict"]
Outcome = Literal["pass", "value", "crash", "hang", "race", "refused"]
MutantState = Literal["generated", "ready", "compile-error", "duplicate", "equivalent", "excluded"]
SubstrateStatus = Literal["pending", "admitted", "rejected", "quarantined"]
Role = Literal["pool", "protocol"]
Origin = Literal["substrate", "bank"]

VARIANTS: tuple[Variant, ...] = get_args(Variant)
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
STATES: tuple[MutantState, ...] = get_args(MutantState)
STATUSES: tuple[SubstrateStatus, ...] = get_args(SubstrateStatus)
ROLES: tuple[Role, ...] = get_args(Role)
CODES: Mapping[str, int] = {name: code for code, name in enumerate(OUTCOMES)}
"""Class -> its code in the arrays of a `Grid`; -1 stands for a missing cell."""


def _words(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


TABLES = f"""
CREATE TABLE IF NOT EXISTS problems (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, hash TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS substrates (
    id INTEGER PRIMARY KEY, hash TEXT NOT NULL UNIQUE, name TEXT NOT NULL, backend TEXT NOT NULL, style TEXT NOT NULL,
    problem INTEGER NOT NULL REFERENCES problems(id),
    status TEXT NOT NULL CHECK (status IN ({_words(STATUSES)})), detail TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS mutants (
    id INTEGER PRIMARY KEY, uid TEXT NOT NULL UNIQUE, substrate INTEGER NOT NULL REFERENCES substrates(id),
    operator TEXT NOT NULL, family TEXT NOT NULL, line INTEGER NOT NULL, detail TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ({_words(STATES)})), code_hash TEXT NOT NULL, how TEXT NOT NULL,
    origin TEXT NOT NULL CHECK (origin IN ('substrate', 'bank')));
CREATE TABLE IF NOT EXISTS entries (
    id INTEGER PRIMARY KEY, problem INTEGER NOT NULL REFERENCES problems(id), uid TEXT NOT NULL,
    device_class TEXT NOT NULL, recipe TEXT NOT NULL, role TEXT NOT NULL CHECK (role IN ({_words(ROLES)})),
    admitted INTEGER NOT NULL, reason TEXT NOT NULL, detail TEXT NOT NULL, measured TEXT, bytes INTEGER NOT NULL,
    UNIQUE (problem, uid, device_class));
CREATE TABLE IF NOT EXISTS environments (
    id INTEGER PRIMARY KEY, hash TEXT NOT NULL UNIQUE, json TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS cells (
    mutant INTEGER NOT NULL REFERENCES mutants(id), entry INTEGER NOT NULL REFERENCES entries(id),
    environment INTEGER NOT NULL REFERENCES environments(id),
    variant TEXT NOT NULL CHECK (variant IN ({_words(VARIANTS)})), seeds INTEGER NOT NULL CHECK (seeds > 0),
    class TEXT NOT NULL CHECK (class IN ({_words(OUTCOMES)})), errs TEXT NOT NULL, margin REAL, seconds REAL NOT NULL,
    PRIMARY KEY (mutant, entry, environment, variant)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rows (
    mutant INTEGER NOT NULL REFERENCES mutants(id), environment INTEGER NOT NULL REFERENCES environments(id),
    asked TEXT NOT NULL, PRIMARY KEY (mutant, environment)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS substrates_by_problem ON substrates(problem);
CREATE INDEX IF NOT EXISTS mutants_by_substrate ON mutants(substrate);
"""


class MatrixError(RuntimeError):
    """The matrix cannot be written or read now (full disk, a lock that is held, a damaged file). Never a verdict."""


@dataclass(frozen=True, slots=True)
class SubstrateRow:
    """A correct kernel; `problem` is the row id of its problem."""

    hash: str
    name: str
    backend: str
    style: str
    problem: int
    status: SubstrateStatus = "pending"
    detail: str = ""


@dataclass(frozen=True, slots=True)
class MutantRow:
    """A mutant; `substrate` is a row id. Only mutants whose state is `ready` are counted anywhere.

    Attributes:
        uid: its content id (16 hexadecimal digits).
        state: `generated` until screened; `excluded` = screened but left out by a stated rule (an interaction one
            of whose members is caught alone).
        code_hash, how: the screen's hash of the compiled code, and by which means it was made.
        origin: `substrate`, or `bank` for one made from a kernel that a policy wrote.
    """

    uid: str
    substrate: int
    operator: str
    family: str
    line: int
    detail: str
    state: MutantState = "generated"
    code_hash: str = ""
    how: str = ""
    origin: Origin = "substrate"


@dataclass(frozen=True, slots=True)
class EntryRow:
    """An entry of one problem on one device class; `problem` is a row id.

    Attributes:
        uid: `Entry.id`.
        recipe: `Entry.to_dict()`.
        role: `pool` (may be selected) or `protocol` (belongs to an official protocol).
        admitted, reason, detail, measured: what the validity gate said; `measured` is `Measured.to_dict()`.
        bytes: inputs, outputs and parameters of one draw; breaks ties between equally good suites.
    """

    problem: int
    uid: str
    device_class: str
    recipe: Mapping[str, Any]
    role: Role = "pool"
    admitted: bool = True
    reason: str = ""
    detail: str = ""
    measured: Mapping[str, Any] | None = None
    bytes: int = 0

    @classmethod
    def of(cls, problem: int, admission: "Admission", device_class: str, role: Role = "pool") -> Self:
        """The row for what the validity gate said about an entry."""
        measured = admission.measured
        return cls(
            problem=problem,
            uid=admission.entry.id,
            device_class=device_class,
            recipe=admission.entry.to_dict(),
            role=role,
            admitted=admission.admitted,
            reason=admission.reason,
            detail=admission.detail,
            measured=None if measured is None else measured.to_dict(),
            bytes=0 if measured is None else measured.bytes,
        )

    @property
    def declared_shape(self) -> bool:
        """Whether the problem's module constants are left as they are."""
        return not self.recipe.get("constants")

    @property
    def tolerance(self) -> tuple[float, ...] | None:
        """One tolerance per output; None where the entry was not measured."""
        return None if self.measured is None else tuple(float(t) for t in self.measured["tolerance"])


@dataclass(frozen=True, slots=True)
class Cell:
    """What one mutant did on one entry; the first three fields are row ids.

    Attributes:
        variant: `plain` (as a GPU runs it) or `strict` (several schedules, poison, guard pages).
        seeds: over how many seeds.
        outcome: the column `class`: at the tolerances of the time; `pass` and `value` are re-evaluated from the errors.
        errs: per output the smallest normalised error over the seeds; empty where nothing was compared.
        margin: the smallest allclose margin over the seeds; NaN where nothing was compared.
        seconds: time that the evaluation took.
    """

    mutant: int
    entry: int
    environment: int
    variant: Variant
    seeds: int
    outcome: Outcome
    errs: tuple[float, ...] = ()
    margin: float = math.nan
    seconds: float = 0.0


def rounded(value: float, digits: int = 6) -> float:
    """A number as the matrix keeps it: to `digits` significant digits."""
    return float(f"{value:.{digits - 1}e}") if math.isfinite(value) else value


def pack_errs(errs: Sequence[float]) -> str:
    """Errors as the text of the column `errs`; NaN counts as infinite."""
    kept = ('"inf"' if not math.isfinite(err) else f"{rounded(err):.6g}" for err in errs)
    return f"[{','.join(kept)}]"


def unpack_errs(text: str) -> tuple[float, ...]:
    """Inverse of `pack_errs`."""
    inner = text[1:-1]
    return tuple(float(item.strip().strip('"')) for item in inner.split(",")) if inner else ()


def ratio(errs: Sequence[float], tolerance: Sequence[float]) -> float:
    """The largest err / tolerance over the outputs; above 1 is a kill.

    An exact output (tolerance 0) gives 0 or infinity. NaN where nothing was compared. An answer with another number of
    outputs was compared as a whole: its error is infinite.

    Raises:
        ValueError: finite errors for another number of outputs than there are tolerances.
    """
    if not errs:
        return math.nan
    if any(math.isinf(err) for err in errs):
        return math.inf
    if len(errs) != len(tolerance):
        raise ValueError(f"{len(errs)} errors, but {len(tolerance)} tolerances")
    return max(
        err / tol if tol > 0 else (math.inf if err > 0 else 0.0) for err, tol in zip(errs, tolerance, strict=True)
    )
