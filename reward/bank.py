"""Kernels that the reward accepted, kept for the calibrator: it verifies them with more entries and mutates them.

One SQLite file (write-ahead log) that any number of processes may write. It holds what a policy wrote: its kernels are
hostile code like any candidate, never vote on validity and never count as known to be correct.

    kernels(id, hash, problem_id, problem_hash, problem_source, backend, source, accepted_at, epoch, suite, state,
            detail, decided_at)

`hash` names a normalised source under one problem, so a kernel is there once. `state` is `new`, `verified` (the wider
pool of entries found nothing), `false-accept` (some entry shows it wrong, `detail` is `Evidence` as JSON) or `unusable`
(it cannot be verified here; `detail` says why). Nothing turns a false accept back. When the file is full, the oldest
kernel of the problem that has the most of them goes.
"""

import json
import os
import sqlite3
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, get_args

from ..suites.entry import Entry
from ..suites.hashing import sha256_text, stable_hash
from ..suites.suite_cache import cache_folder

State = Literal["new", "verified", "false-accept", "unusable"]
STATES: tuple[State, ...] = get_args(State)
BANK_VARIABLE = "KERNELWARD_BANK"  # names the file where the configuration names none
MOST_KERNELS = 2000
MOST_BYTES = 64 << 20

_BUSY_S = 10.0
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS kernels (
    id INTEGER PRIMARY KEY AUTOINCREMENT, hash TEXT NOT NULL UNIQUE, problem_id TEXT NOT NULL,
    problem_hash TEXT NOT NULL, problem_source TEXT NOT NULL, backend TEXT NOT NULL, source TEXT NOT NULL,
    accepted_at REAL NOT NULL, epoch INTEGER NOT NULL, suite TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'new' CHECK (state IN ({", ".join(repr(s) for s in STATES)})),
    detail TEXT NOT NULL DEFAULT '', decided_at REAL);
CREATE INDEX IF NOT EXISTS kernels_by_problem ON kernels(problem_hash);
CREATE INDEX IF NOT EXISTS kernels_by_decision ON kernels(decided_at);
"""
_SIZE = "length(source) + length(problem_source)"


@dataclass(frozen=True, slots=True)
class BankConfig:
    """What a reward keeps of the kernels that it accepts.

    Attributes:
        file: the SQLite file; None takes KERNELWARD_BANK, else `bank.sqlite` in the user's cache folder.
        kernels: at most so many.
        size: at most so many characters of sources.
    """

    file: str | None = None
    kernels: int = MOST_KERNELS
    size: int = MOST_BYTES

    def open(self) -> "KernelBank":
        """The bank; its file is made when something is kept."""
        return KernelBank(bank_path(self.file), self.kernels, self.size)


class BankError(RuntimeError):
    """The bank cannot be read or written now (full disk, a lock that is held, a damaged file). Never a verdict."""


@dataclass(frozen=True, slots=True)
class BankedKernel:
    """One accepted kernel.

    Attributes:
        source: normalised source of the candidate (`completion.normalise`).
        accepted_at: when it was first accepted, in seconds since 1970.
        epoch, suite: under which inputs and by which suite (short hash) it was accepted.
        state, detail, decided_at: what was found out about it since.
        id, hash: given by the bank.
    """

    problem_id: str
    problem_hash: str
    problem_source: str
    backend: str
    source: str
    accepted_at: float
    epoch: int = 0
    suite: str = ""
    state: State = "new"
    detail: str = ""
    decided_at: float | None = None
    id: int = 0
    hash: str = ""

    @property
    def evidence(self) -> "Evidence | None":
        """Why it is a false accept; None where it is none."""
        return Evidence.from_json(self.detail) if self.state == "false-accept" else None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What shows that an accepted kernel is wrong: enough to replay it and to propose the entry for a suite.

    Attributes:
        entry: id of the entry.
        recipe: `Entry.to_dict()` of the same.
        found_by: `audit` or `calibration`.
        reason: `value`, `race`, `nan`, `crash`, ...
        seed: of the draw that showed it; with the entry it replays the inputs.
        err, tolerance: largest normalised error and what it is held against; None where nothing was compared.
        message: for people.
    """

    entry: str
    recipe: Mapping[str, Any]
    found_by: Literal["audit", "calibration"]
    reason: str = ""
    seed: int | None = None
    err: float | None = None
    tolerance: float | None = None
    message: str = ""

    @property
    def as_entry(self) -> Entry:
        """The recipe as an entry."""
        return Entry.from_dict(dict(self.recipe))

    def to_json(self) -> str:
        """For the column `detail`; an error that is not finite becomes text."""
        plain = asdict(self)
        plain["err"] = None if self.err is None else str(self.err)
        return json.dumps(plain)

    @classmethod
    def from_json(cls, text: str) -> "Evidence | None":
        """Inverse of `to_json`; None for text that is none."""
        try:
            values = json.loads(text)
            values["err"] = None if values.get("err") is None else float(values["err"])
            return cls(**values)
        except (ValueError, TypeError, AttributeError):
            return None


def kernel_hash(source: str, problem_hash: str) -> str:
    """What a normalised source under one problem is called in the bank (64 hexadecimal digits)."""
    return stable_hash([sha256_text(source), problem_hash])


def bank_path(configured: str | None = None) -> Path:
    """The bank's file: the configured one, KERNELWARD_BANK, or `bank.sqlite` in the user's cache folder."""
    named = configured or os.environ.get(BANK_VARIABLE)
    return Path(named).expanduser() if named else cache_folder() / "bank.sqlite"


_COLUMNS = tuple(f.name for f in fields(BankedKernel))


class KernelBank:
    """A bank on disk; thread-safe, shared between processes, usable as a context manager.

    Args:
        path: the file; made, with its folder, when it is first written.
        most: kernels that it keeps.
        most_bytes: characters of sources that it keeps.

    Raises (from any method):
        BankError: it cannot be read or written.
    """

    def __init__(self, path: Path, most: int = MOST_KERNELS, most_bytes: int = MOST_BYTES) -> None:
        self.path = path
        self._most = most
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; a later call opens it again."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def add(self, kernel: BankedKernel) -> bool:
        """Keep a kernel, unless it is there; returns whether it is new. One larger than the bank is not kept."""
        if len(kernel.source) + len(kernel.problem_source) > self._most_bytes:
            return False
        row = dict(zip(_COLUMNS, astuple(kernel), strict=True))
        row["hash"] = kernel_hash(kernel.source, kernel.problem_hash)
        del row["id"]
        names = ", ".join(row)
        with self._lock, self._reported() as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            marks = ", ".join("?" * len(row))
            added = connection.execute(
                f"INSERT OR IGNORE INTO kernels ({names}) VALUES ({marks})", tuple(row.values())
            ).rowcount
            if added:
                self._make_room(connection)
        return bool(added)

    def kernels(self, *states: State, problem_hash: str | None = None, after: int = 0) -> list[BankedKernel]:
        """The kernels in some states (all, where none is named), the oldest first.

        Args:
            problem_hash: of one problem only.
            after: only those with a larger id.
        """
        clauses, values = ["id > ?"], [after]
        return self._select(clauses, values, states, problem_hash)

    def get(self, hash: str) -> BankedKernel | None:
        """The kernel with this hash."""
        return next(iter(self._select(["hash = ?"], [hash], (), None)), None)

    def settle(self, hash: str, state: State, detail: str = "") -> bool:
        """Write what was found out about a kernel; returns whether that changed anything.

        A kernel that is gone, or found wrong already, stays as it is.

        Args:
            detail: `Evidence.to_json()` for a false accept; for the others, why.
        """
        statement = (
            "UPDATE kernels SET state = ?, detail = ?, decided_at = ? WHERE hash = ? AND state <> 'false-accept'"
        )
        with self._lock, self._reported() as connection, connection:
            return bool(connection.execute(statement, (state, detail, time.time(), hash)).rowcount)

    def false_accepts(self, since: float = 0.0) -> list[BankedKernel]:
        """Kernels found wrong at or after a time (seconds since 1970)."""
        return self._select(["decided_at >= ?"], [since], ("false-accept",), None)

    def counts(self) -> dict[State, int]:
        """How many kernels are in each state."""
        with self._lock, self._reported() as connection:
            rows = connection.execute("SELECT state, count(*) FROM kernels GROUP BY state").fetchall()
        return dict.fromkeys(STATES, 0) | dict(rows)

    def _select(
        self, clauses: list[str], values: list[Any], states: tuple[State, ...], problem_hash: str | None
    ) -> list[BankedKernel]:
        if states:
            clauses.append(f"state IN ({', '.join('?' * len(states))})")
            values.extend(states)
        if problem_hash is not None:
            clauses.append("problem_hash = ?")
            values.append(problem_hash)
        statement = f"SELECT {', '.join(_COLUMNS)} FROM kernels WHERE {' AND '.join(clauses)} ORDER BY id"
        with self._lock, self._reported() as connection:
            rows = connection.execute(statement, values).fetchall()
        return [BankedKernel(*row) for row in rows]

    def _make_room(self, connection: sqlite3.Connection) -> None:
        count, size = connection.execute(f"SELECT count(*), total({_SIZE}) FROM kernels").fetchone()
        while count > self._most or size > self._most_bytes:
            (problem,) = connection.execute(
                "SELECT problem_hash FROM kernels GROUP BY 1 ORDER BY count(*) DESC, min(id) LIMIT 1"
            ).fetchone()
            id, freed = connection.execute(
                f"SELECT id, {_SIZE} FROM kernels WHERE problem_hash = ? ORDER BY state = 'false-accept', id LIMIT 1",
                (problem,),
            ).fetchone()
            connection.execute("DELETE FROM kernels WHERE id = ?", (id,))
            count, size = count - 1, size - freed

    def _reported(self) -> "_Reported":
        return _Reported(self)

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            connection = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
                connection.executescript(_SCHEMA)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection


class _Reported:
    """Opens the bank's file where necessary, and turns what goes wrong into `BankError`."""

    def __init__(self, bank: KernelBank) -> None:
        self._bank = bank

    def __enter__(self) -> sqlite3.Connection:
        try:
            return self._bank._open()
        except (sqlite3.Error, OSError) as error:
            raise BankError(f"{self._bank.path}: {error}") from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, (sqlite3.Error, OSError)):
            raise BankError(f"{self._bank.path}: {error}") from error
