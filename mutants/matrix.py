"""The kill matrix: which mutant does what on which entry, in one SQLite file.

The tables are described in `matrix_schema`. Several processes may write at the same time (write-ahead log, busy
timeout); a process killed at any moment loses nothing that it had committed and damages nothing. Everything is keyed by
content hashes beside the row ids, so parts of a matrix travel between machines (`matrix_delta`).

    with Matrix(path) as matrix:
        problem = matrix.add_problem("softmax", digest)
        ...
        matrix.put_cells(cells)                       # one transaction
        grid = matrix.rows(problem)                   # arrays [mutants, entries, variants]
        grid.kills(), grid.fails_allclose(1e-2)       # re-evaluation without running anything
"""

import contextlib
import json
import math
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from ..suites.errors import InputError
from ..suites.hashing import stable_hash
from .matrix_schema import (
    APPLICATION_ID,
    CODES,
    TABLES,
    VARIANTS,
    VERSION,
    Cell,
    EntryRow,
    MatrixError,
    MutantRow,
    MutantState,
    Role,
    SubstrateRow,
    SubstrateStatus,
    Variant,
    pack_errs,
    ratio,
    rounded,
    unpack_errs,
)

if TYPE_CHECKING:
    from .matrix_delta import ImportReport

_BUSY_S = 60.0
_CACHE_KIB = 65_536  # the default of 2 MiB is a tenth of a middling matrix
_LOUD = tuple(CODES[name] for name in ("crash", "hang", "race"))  # wrong whatever the tolerance
_CRASHED = tuple(CODES[name] for name in ("crash", "hang"))
_REFUSED = CODES["refused"]

CellKey = tuple[int, int, int, Variant]


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """All cells of one problem as arrays of shape [mutants, entries, variants]; variants as in `VARIANTS`.

    Attributes:
        mutants, entries: row ids along the first two axes, ascending.
        classes: int8 codes (`CODES`); -1 = no such cell.
        ratio: float32, the largest err / tolerance over the outputs; NaN where nothing was compared or the entry has
            no tolerance.
        margin: float32 allclose margin; NaN where nothing was compared.
        seeds: int16; 0 = no such cell.
        changed: [entries], whether the entry changes module constants (so it may be refused).
    """

    mutants: NDArray[np.int64]
    entries: NDArray[np.int64]
    classes: NDArray[np.int8]
    ratio: NDArray[np.float32]
    margin: NDArray[np.float32]
    seeds: NDArray[np.int16]
    changed: NDArray[np.bool_]

    @property
    def present(self) -> NDArray[np.bool_]:
        """Which cells there are."""
        return self.classes >= 0

    def kills(self, factor: float = 1.0) -> NDArray[np.bool_]:
        """Which cells show the mutant wrong: a crash, hang or race, or an error above `factor` times our tolerance.

        A refusal counts at the declared shape only: there an exception is an exception.
        """
        return ((self.ratio > factor) | np.isin(self.classes, _LOUD)) & ~self.abstained | self._raised

    def fails_allclose(self, tolerance: float) -> NDArray[np.bool_]:
        """Which cells fail allclose(atol = rtol = tolerance) against the reference, or crash or hang."""
        return ((self.margin > tolerance) | np.isin(self.classes, _CRASHED)) & ~self.abstained | self._raised

    @property
    def abstained(self) -> NDArray[np.bool_]:
        """Which cells are refusals of a changed shape."""
        return (self.classes == _REFUSED) & self.changed[None, :, None]

    @property
    def _raised(self) -> NDArray[np.bool_]:
        return (self.classes == _REFUSED) & ~self.changed[None, :, None]


class Matrix:
    """A kill matrix on disk. Thread-safe; use it as a context manager.

    Args:
        path: the file; it is made where it is missing, with its folder.
        create: False = a missing file is an error.

    Raises:
        InputError: the file is missing (`create=False`), is not a matrix, or has another schema version.
        MatrixError: from any method: the disk is full, a lock was held too long, or the file is damaged.
    """

    def __init__(self, path: str | Path, *, create: bool = True) -> None:
        self.path = Path(path)
        if not create and not self.path.is_file():
            raise InputError(f"no kill matrix at {self.path}: make one with `kernelward calibrate`")
        self._lock = threading.RLock()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(
                self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.Error) as error:
            raise InputError(f"{self.path}: cannot open the kill matrix: {error}") from error
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        with self._reported():
            self._connection.execute("BEGIN")  # one look at all three: another process may be making the file
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
            (application,) = self._connection.execute("PRAGMA application_id").fetchone()
            empty = not self._connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
            self._connection.execute("COMMIT")
        if not empty and application != APPLICATION_ID:
            raise InputError(f"{self.path}: an SQLite file, but not a kill matrix; nothing was changed")
        if not empty and version != VERSION:
            raise InputError(
                f"{self.path}: a kill matrix of schema {version}, this version reads schema {VERSION}; "
                "use the kernelward that wrote it, or calibrate into a new file"
            )
        with self._reported():
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")  # a killed process loses nothing; no fsync per cell
            self._connection.execute("PRAGMA foreign_keys = ON")
            self._connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        if empty:
            with self.transaction() as connection:
                for statement in TABLES.split(";"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {VERSION}")

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        """SQLite's errors as ours, with what to do."""
        try:
            yield
        except sqlite3.IntegrityError:
            raise
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", "")
            if name == "SQLITE_NOTADB":
                raise InputError(f"{self.path}: not a kill matrix; nothing was changed") from error
            if name == "SQLITE_FULL":
                advice = "the disk is full. What was committed is kept; free some space and run it again"
            elif name.startswith("SQLITE_IOERR"):
                advice = f"the disk failed or is full ({name}). What was committed is kept; see to it and run it again"
            elif name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
                advice = f"another process held it for more than {_BUSY_S:.0f} s; run it again"
            elif name.startswith("SQLITE_CORRUPT"):
                advice = "the file is damaged; import its exported deltas into a new one"
            else:
                advice = str(error)
            raise MatrixError(f"{self.path}: {advice}") from error

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """One write transaction: all of it is committed, or nothing. Not to be nested."""
        with self._lock, self._reported():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # a full disk ends the transaction by itself
                    self._connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Everything read inside is of one moment, whatever other processes write meanwhile; for reading alone."""
        with self._lock, self._reported():
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("COMMIT")

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows of a SELECT."""
        with self._lock, self._reported():
            return self._connection.execute(sql, values).fetchall()

    # writing

    def add_environment(self, description: Mapping[str, Any]) -> int:
        """The id of an environment, by the hash of its description (JSON-able: engine, device class, versions).

        An environment in which there is no strict way to run says `"variants": ["plain"]`: its plain cells stand for
        strict ones too.
        """
        text = json.dumps(description, sort_keys=True, separators=(",", ":"))
        return self._add("environments", ("hash", "json"), [(stable_hash(description), text)], key=("hash",))[0]

    def add_problem(self, name: str, digest: str) -> int:
        """The id of a problem, by the hash of its source."""
        return self._add("problems", ("hash", "name"), [(digest, name)], key=("hash",))[0]

    def add_substrate(self, row: SubstrateRow) -> int:
        """The id of a substrate, by the hash of its source; name, status and detail become those given."""
        names = tuple(f.name for f in fields(SubstrateRow))
        return self._add("substrates", names, [astuple(row)], key=("hash",), update=("name", "status", "detail"))[0]

    def add_mutant(self, row: MutantRow) -> int:
        """The id of a mutant, by its uid; one that is there already stays as it is."""
        return self.add_mutants([row])[0]

    def add_mutants(self, rows: Sequence[MutantRow]) -> list[int]:
        """`add_mutant` for many, in one transaction."""
        return self._add("mutants", tuple(f.name for f in fields(MutantRow)), [astuple(r) for r in rows], key=("uid",))

    def add_entry(self, row: EntryRow) -> int:
        """The id of an entry, by problem, uid and device class; what the gate said becomes what is given."""
        return self.add_entries([row])[0]

    def add_entries(self, rows: Sequence[EntryRow]) -> list[int]:
        """`add_entry` for many, in one transaction."""
        names = tuple(f.name for f in fields(EntryRow))
        values = [
            (
                r.problem,
                r.uid,
                r.device_class,
                _json(r.recipe),
                r.role,
                int(r.admitted),
                r.reason,
                r.detail,
                None if r.measured is None else _json(r.measured),
                r.bytes,
            )
            for r in rows
        ]
        update = ("role", "admitted", "reason", "detail", "measured", "bytes")
        return self._add("entries", names, values, key=("problem", "uid", "device_class"), update=update)

    def _add(
        self,
        table: str,
        names: Sequence[str],
        rows: Sequence[tuple[Any, ...]],
        key: Sequence[str],
        update: Sequence[str] = (),
    ) -> list[int]:
        action = f"DO UPDATE SET {', '.join(f'{n} = excluded.{n}' for n in update)}" if update else "DO NOTHING"
        insert = (
            f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))}) "
            f"ON CONFLICT ({', '.join(key)}) {action}"
        )
        find = f"SELECT id FROM {table} WHERE {' AND '.join(f'{name} = ?' for name in key)}"
        where = [names.index(name) for name in key]
        with self.transaction() as connection:
            connection.executemany(insert, rows)
            return [connection.execute(find, [row[i] for i in where]).fetchone()[0] for row in rows]

    def set_mutant_state(self, mutant: int, state: MutantState, code_hash: str = "", how: str = "") -> None:
        """Record what a screen said about a mutant."""
        self.set_mutant_states([(mutant, state, code_hash, how)])

    def set_mutant_states(self, states: Iterable[tuple[int, MutantState, str, str]]) -> None:
        """`set_mutant_state` for many (mutant, state, code hash, how), in one transaction."""
        values = [(state, code_hash, how, mutant) for mutant, state, code_hash, how in states]
        with self.transaction() as connection:
            connection.executemany("UPDATE mutants SET state = ?, code_hash = ?, how = ? WHERE id = ?", values)

    def set_substrate_status(self, substrate: int, status: SubstrateStatus, detail: str = "") -> None:
        """Record what the gate said about a substrate."""
        with self.transaction() as connection:
            connection.execute("UPDATE substrates SET status = ?, detail = ? WHERE id = ?", (status, detail, substrate))

    def put_cells(self, cells: Iterable[Cell]) -> None:
        """Store cells in one transaction; a cell over fewer seeds never replaces one over more."""
        with self.transaction() as connection:
            connection.executemany(PUT_CELL, [cell_values(cell) for cell in cells])

    def put_row(self, mutant: int, environment: int, asked: str, cells: Iterable[Cell]) -> None:
        """Store what came of asking one mutant a set of questions (`asked`: their hash), in one transaction."""
        with self.transaction() as connection:
            connection.executemany(PUT_CELL, [cell_values(cell) for cell in cells])
            connection.execute(PUT_ROW, (mutant, environment, asked))

    # reading

    def asked(self, problem: int) -> dict[tuple[int, int], str]:
        """(mutant, environment) -> hash of the questions that it was last put to, for the mutants of a problem."""
        rows = self.query(
            "SELECT r.mutant, r.environment, r.asked FROM substrates s JOIN mutants m ON m.substrate = s.id "
            "JOIN rows r ON r.mutant = m.id WHERE s.problem = ?",
            (problem,),
        )
        return {(mutant, environment): asked for mutant, environment, asked in rows}

    def problems(self) -> dict[int, tuple[str, str]]:
        """Id -> (name, hash), by name."""
        rows = self.query("SELECT id, name, hash FROM problems ORDER BY name, hash")
        return {id: (name, digest) for id, name, digest in rows}

    def environments(self) -> dict[int, dict[str, Any]]:
        """Id -> description."""
        return {id: json.loads(text) for id, text in self.query("SELECT id, json FROM environments ORDER BY id")}

    def substrates(self, problem: int | None = None) -> dict[int, SubstrateRow]:
        """Id -> substrate, by name."""
        names = ", ".join(f.name for f in fields(SubstrateRow))
        where, values = ("", ()) if problem is None else ("WHERE problem = ?", (problem,))
        rows = self.query(f"SELECT id, {names} FROM substrates {where} ORDER BY name, hash", values)
        return {id: SubstrateRow(*rest) for id, *rest in rows}

    def mutants(self, problem: int | None = None, state: MutantState | None = None) -> dict[int, MutantRow]:
        """Id -> mutant, by id."""
        names = ", ".join(f"m.{f.name}" for f in fields(MutantRow))
        rows = self.query(
            f"SELECT m.id, {names} FROM mutants m JOIN substrates s ON s.id = m.substrate "
            "WHERE (? IS NULL OR s.problem = ?) AND (? IS NULL OR m.state = ?) ORDER BY m.id",
            (problem, problem, state, state),
        )
        return {id: MutantRow(*rest) for id, *rest in rows}

    def uncompilable(self, least: int) -> dict[str, int]:
        """Operators with at least so many screened mutants, none of which compiles, and how many they are."""
        return dict(
            self.query(
                "SELECT operator, count(*) FROM mutants WHERE state <> 'generated' GROUP BY operator "
                "HAVING count(*) >= ? AND sum(state <> 'compile-error') = 0 ORDER BY operator",
                (least,),
            )
        )

    def entries(
        self, problem: int | None = None, *, device_class: str | None = None, role: Role | None = None
    ) -> dict[int, EntryRow]:
        """Id -> entry, by id."""
        names = ", ".join(f.name for f in fields(EntryRow))
        rows = self.query(
            f"SELECT id, {names} FROM entries WHERE (? IS NULL OR problem = ?) AND (? IS NULL OR device_class = ?) "
            "AND (? IS NULL OR role = ?) ORDER BY id",
            (problem, problem, device_class, device_class, role, role),
        )
        return {id: _entry_row(*rest) for id, *rest in rows}

    def done(self, problem: int) -> set[CellKey]:
        """The keys (mutant, entry, environment, variant) of a problem's cells."""
        return set(
            self.query(
                "SELECT c.mutant, c.entry, c.environment, c.variant FROM substrates s JOIN mutants m "
                "ON m.substrate = s.id JOIN cells c ON c.mutant = m.id WHERE s.problem = ?",
                (problem,),
            )
        )

    def missing(
        self, mutants: Sequence[int], entries: Sequence[int], environment: int, variant: Variant, seeds: int = 1
    ) -> list[tuple[int, int]]:
        """The (mutant, entry) pairs that have no cell over at least `seeds` seeds, in the order given."""
        find = "SELECT mutant, entry FROM cells WHERE mutant = ? AND environment = ? AND variant = ? AND seeds >= ?"
        there = {pair for m in mutants for pair in self.query(find, (m, environment, variant, seeds))}
        return [(m, e) for m in mutants for e in entries if (m, e) not in there]

    def cells(self, mutant: int) -> list[Cell]:
        """All cells of one mutant, by entry, environment and variant."""
        rows = self.query(
            "SELECT mutant, entry, environment, variant, seeds, class, errs, margin, seconds FROM cells "
            "WHERE mutant = ? ORDER BY entry, environment, variant",
            (mutant,),
        )
        return [
            Cell(m, e, env, variant, seeds, outcome, unpack_errs(errs), math.nan if margin is None else margin, seconds)
            for m, e, env, variant, seeds, outcome, errs, margin, seconds in rows
        ]

    def rows(
        self,
        problem: int,
        *,
        device_class: str | None = None,
        environments: Sequence[int] | None = None,
        states: Sequence[MutantState] = ("ready",),
        tolerances: Mapping[int, Sequence[float]] | None = None,
    ) -> Grid:
        """A problem's cells as arrays over its mutants in these states and all its entries.

        Args:
            device_class: only entries of that device class.
            environments: only cells of these, the first one wins where several have a cell; None = all, the newest
                one (the highest id) wins.
            tolerances: of some entries, by row id, in place of those that the gate measured.
        """
        known = self.environments()
        order = list(environments) if environments is not None else sorted(known, reverse=True)
        plain_only = {e for e in order if "strict" not in known[e].get("variants", VARIANTS)}
        rank = {environment: -i for i, environment in enumerate(order)}
        mutants = [id for id, row in self.mutants(problem).items() if row.state in states]
        entries = self.entries(problem, device_class=device_class)
        at_mutant = {id: i for i, id in enumerate(mutants)}
        at_entry = {id: i for i, id in enumerate(entries)}
        bounds = {id: row.tolerance for id, row in entries.items()}
        bounds |= {id: tuple(given) for id, given in (tolerances or {}).items()}
        found = self.query(
            "SELECT c.mutant, c.entry, c.environment, c.variant, c.seeds, c.class, c.errs, c.margin FROM substrates s "
            "JOIN mutants m ON m.substrate = s.id JOIN cells c ON c.mutant = m.id WHERE s.problem = ?",
            (problem,),
        )
        picked = [r for r in found if r[2] in rank and r[0] in at_mutant and r[1] in at_entry]
        if len(order) > 1:
            picked.sort(key=lambda r: rank[r[2]])  # what is written last wins
        shape = (len(mutants), len(entries), len(VARIANTS))
        flat, values = _columns(picked, at_mutant, at_entry, bounds)
        grid = Grid(
            mutants=np.array(mutants, np.int64),
            entries=np.array(list(entries), np.int64),
            classes=np.full(shape, -1, np.int8),
            ratio=np.full(shape, np.nan, np.float32),
            margin=np.full(shape, np.nan, np.float32),
            seeds=np.zeros(shape, np.int16),
            changed=np.array([not row.declared_shape for row in entries.values()], np.bool_),
        )
        arrays: tuple[NDArray[Any], ...] = (grid.classes, grid.ratio, grid.margin, grid.seeds)
        with np.errstate(over="ignore"):  # beyond float32 is infinite
            for array, column in zip(arrays, values, strict=True):
                array.reshape(-1)[flat] = column
        stand_in = flat[[r[2] in plain_only and r[3] == "plain" for r in picked]] if plain_only else flat[:0]
        stand_in = stand_in[grid.classes.reshape(-1)[stand_in + 1] < 0]
        for array in arrays:
            array.reshape(-1)[stand_in + 1] = array.reshape(-1)[stand_in]
        return grid

    # exchange

    def export_delta(self, path: str | Path, since: str | Path | None = None) -> int:
        """Write the matrix as a compressed file keyed by content hashes; see `matrix_delta.export_delta`."""
        from .matrix_delta import export_delta

        return export_delta(self, Path(path), None if since is None else Path(since))

    def import_delta(self, path: str | Path) -> "ImportReport":
        """Take in what another matrix exported; see `matrix_delta.import_delta`."""
        from .matrix_delta import import_delta

        return import_delta(self, Path(path))

    def vacuum(self) -> None:
        """Give unused space back, and fold the write-ahead log into the file."""
        with self._lock, self._reported():
            self._connection.execute("VACUUM")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


PUT_ROW = (
    "INSERT INTO rows (mutant, environment, asked) VALUES (?, ?, ?) "
    "ON CONFLICT (mutant, environment) DO UPDATE SET asked = excluded.asked"
)
PUT_CELL = (
    "INSERT INTO cells (mutant, entry, environment, variant, seeds, class, errs, margin, seconds) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (mutant, entry, environment, variant) DO UPDATE SET "
    "seeds = excluded.seeds, class = excluded.class, errs = excluded.errs, margin = excluded.margin, "
    "seconds = excluded.seconds WHERE excluded.seeds >= cells.seeds"
)


def cell_values(cell: Cell) -> tuple[Any, ...]:
    """A cell as the columns of `PUT_CELL`."""
    margin = None if math.isnan(cell.margin) else rounded(cell.margin)
    head = (cell.mutant, cell.entry, cell.environment, cell.variant, cell.seeds, cell.outcome)
    return (*head, pack_errs(cell.errs), margin, rounded(cell.seconds, 3))


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _entry_row(
    problem: int, uid: str, device_class: str, recipe: str, role: Role, admitted: int, *rest: Any
) -> EntryRow:
    reason, detail, measured, size = rest
    return EntryRow(
        problem=problem,
        uid=uid,
        device_class=device_class,
        recipe=json.loads(recipe),
        role=role,
        admitted=bool(admitted),
        reason=reason,
        detail=detail,
        measured=None if measured is None else json.loads(measured),
        bytes=size,
    )


def _columns(
    picked: Sequence[tuple[Any, ...]],
    at_mutant: Mapping[int, int],
    at_entry: Mapping[int, int],
    tolerances: Mapping[int, tuple[float, ...] | None],
) -> tuple[NDArray[np.int64], tuple[list[int], list[float], list[float], list[int]]]:
    """Positions in the flattened grid, and the values that belong there: class, ratio, margin, seeds."""
    seen: dict[tuple[int, str], float] = {}

    def ratio_of(entry: int, errs: str) -> float:
        key = (entry, errs)
        if key not in seen:
            tolerance = tolerances[entry]
            seen[key] = math.nan if tolerance is None else ratio(unpack_errs(errs), tolerance)
        return seen[key]

    width = len(at_entry)
    variant = {name: i for i, name in enumerate(VARIANTS)}
    flat = [(at_mutant[r[0]] * width + at_entry[r[1]]) * len(VARIANTS) + variant[r[3]] for r in picked]
    values = (
        [CODES[r[5]] for r in picked],
        [ratio_of(r[1], r[6]) for r in picked],
        [math.nan if r[7] is None else r[7] for r in picked],
        [r[4] for r in picked],
    )
    return np.array(flat, np.int64), values
