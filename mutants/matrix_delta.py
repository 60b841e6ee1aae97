"""Carrying a kill matrix, or what is new in it, between machines: one compressed file keyed by content hashes.

A delta is xz-compressed JSON lines: a header; the problems, environments, substrates, mutants and entries that it
speaks of (they refer to each other by their position in the file, never by row ids); cells in blocks of one (entry,
environment, variant) with one list per column; which mutants were asked which questions; and a last line with the
SHA-256 of all lines before it. It is complete in itself, so it can be imported into any matrix, in any order, any
number of times.
"""

import contextlib
import hashlib
import json
import lzma
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..suites.errors import InputError
from .matrix import PUT_CELL, PUT_ROW, Matrix
from .matrix_schema import VERSION, MatrixError

FORMAT = "kernelward-matrix-delta"
_XZ = b"\xfd7zXZ\x00"  # how every such file begins
_PRESET = 3  # of xz: a tenth larger than the default, several times faster
_BLOCK = 20_000  # cells per line
_EXAMPLES = 20

_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "problems": ("hash", "name"),
    "environments": ("hash", "json"),
    "substrates": ("hash", "name", "backend", "style", "problem", "status", "detail"),
    "mutants": ("uid", "substrate", "operator", "family", "line", "detail", "state", "code_hash", "how", "origin"),
    "entries": (
        "problem", "uid", "device_class", "recipe", "role", "admitted", "reason", "detail", "measured", "bytes",
    ),
}  # fmt: skip
_KEYS: Mapping[str, tuple[str, ...]] = {
    "problems": ("hash",),
    "environments": ("hash",),
    "substrates": ("hash",),
    "mutants": ("uid",),
    "entries": ("problem", "uid", "device_class"),
}
_POINTS_TO = {
    "substrates": ("problem", "problems"),
    "mutants": ("substrate", "substrates"),
    "entries": ("problem", "problems"),
}
_CELL = ("mutant", "seeds", "class", "errs", "margin", "seconds")


@dataclass(slots=True)
class ImportReport:
    """What an import did.

    Attributes:
        added, replaced, unchanged: cells; replaced = ours covered fewer seeds. A cell of ours that covers more seeds,
            or the same with other numbers, stays and counts as unchanged.
        conflicts: rows of both sides that contradict each other (another class over as many seeds, another state,
            another measurement); ours stay.
        examples: the first of them, in words.
    """

    added: int = 0
    replaced: int = 0
    unchanged: int = 0
    conflicts: int = 0
    examples: list[str] = field(default_factory=list)

    def conflict(self, text: str) -> None:
        """Count one."""
        self.conflicts += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append(text)


@contextlib.contextmanager
def open_measured(path: Path) -> Iterator[Matrix]:
    """What was measured, to be read: a kill matrix, or a delta, which is made one for as long as it is open.

    A delta that leaves out what an earlier one holds (`since`) says only what it holds itself.

    Raises:
        InputError: there is no such file, it is neither, or a delta does not say which of two measurements of the same
            cell is the newer one.
        MatrixError: see `Matrix`.
    """
    if not is_delta(path):
        with Matrix(path, create=False) as matrix:
            yield matrix
        return
    with tempfile.TemporaryDirectory(prefix="kernelward-") as folder, Matrix(Path(folder, "matrix.sqlite")) as matrix:
        matrix.path = path  # what messages name
        import_delta(matrix, path)
        if matrix.query("SELECT 1 FROM cells GROUP BY mutant, entry, variant HAVING count(*) > 1 LIMIT 1"):
            raise InputError(
                f"{path}: it has cells from several environments (versions, devices) for the same mutant and entry, "
                "and does not say which are newer: import it into the matrix that it is a part of"
            )
        yield matrix


def is_delta(path: Path) -> bool:
    """Whether a file begins like a delta; False where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(_XZ)) == _XZ
    except OSError:
        return False


Blocks = dict[tuple[int, int, str], list[tuple[Any, ...]]]


@dataclass(slots=True)
class _Content:
    """A matrix without row ids: rows point to each other by their position in these lists."""

    tables: dict[str, list[tuple[Any, ...]]]
    blocks: Blocks  # (entry, environment, variant) -> rows of _CELL
    asked: dict[tuple[int, int], str]  # (mutant, environment) -> hash of its questions

    def keys(self) -> dict[str, list[Any]]:
        """Content keys of all rows, table by table."""
        keys: dict[str, list[Any]] = {}
        for table, rows in self.tables.items():
            names = _COLUMNS[table]
            columns = [names.index(name) for name in _KEYS[table]]
            keys[table] = [tuple(row[c] for c in columns) for row in rows]
        keys["entries"] = [(keys["problems"][p], *rest) for p, *rest in keys["entries"]]
        return keys


def _read_matrix(matrix: Matrix) -> _Content:
    tables: dict[str, list[tuple[Any, ...]]] = {}
    position: dict[str, dict[int, int]] = {}
    for table, names in _COLUMNS.items():
        order = (
            ", ".join(_KEYS[table])
            if table != "entries"
            else "(SELECT hash FROM problems p WHERE p.id = problem), uid, device_class"
        )
        found = matrix.query(f"SELECT id, {', '.join(names)} FROM {table} ORDER BY {order}")
        position[table] = {row[0]: i for i, row in enumerate(found)}
        tables[table] = [_pointing(table, row[1:], lambda t, id: position[t][id]) for row in found]
    blocks: Blocks = {}
    at_mutant, at_entry, at_environment = position["mutants"], position["entries"], position["environments"]
    for mutant, entry, environment, variant, *rest in matrix.query(
        "SELECT mutant, entry, environment, variant, seeds, class, errs, margin, seconds FROM cells"
    ):
        block = blocks.setdefault((at_entry[entry], at_environment[environment], variant), [])
        block.append((at_mutant[mutant], *rest))
    rows = matrix.query("SELECT mutant, environment, asked FROM rows")
    asked = {(at_mutant[mutant], at_environment[environment]): text for mutant, environment, text in rows}
    return _Content(tables, {key: sorted(blocks[key]) for key in sorted(blocks)}, dict(sorted(asked.items())))


def _pointing(table: str, row: Sequence[Any], move: Callable[[str, Any], Any]) -> tuple[Any, ...]:
    """The row with its reference to another table replaced."""
    if table not in _POINTS_TO:
        return tuple(row)
    name, target = _POINTS_TO[table]
    at = _COLUMNS[table].index(name)
    return (*row[:at], move(target, row[at]), *row[at + 1 :])


def _without(content: _Content, base: _Content) -> _Content:
    """What `base` does not hold in the same words, with all rows that this refers to."""
    keys, base_keys = content.keys(), base.keys()

    def spelled(source: _Content, names: dict[str, list[Any]], table: str) -> list[tuple[Any, ...]]:
        return [_pointing(table, row, lambda target, i: names[target][i]) for row in source.tables[table]]

    needed: dict[str, set[int]] = {}
    for table in _COLUMNS:
        known = set(spelled(base, base_keys, table))
        needed[table] = {i for i, row in enumerate(spelled(content, keys, table)) if row not in known}
    there = {
        (
            base_keys["entries"][entry],
            base_keys["environments"][environment],
            variant,
            base_keys["mutants"][row[0]],
        ): row[1:5]
        for (entry, environment, variant), rows in base.blocks.items()
        for row in rows
    }
    blocks: Blocks = {}
    for (entry, environment, variant), rows in content.blocks.items():
        head = (keys["entries"][entry], keys["environments"][environment], variant)
        new = [row for row in rows if there.get((*head, keys["mutants"][row[0]])) != row[1:5]]
        if new:
            blocks[entry, environment, variant] = new
            needed["entries"].add(entry)
            needed["environments"].add(environment)
            needed["mutants"].update(row[0] for row in new)
    put = {(base_keys["mutants"][m], base_keys["environments"][e]): text for (m, e), text in base.asked.items()}
    asked = {
        (m, e): text
        for (m, e), text in content.asked.items()
        if put.get((keys["mutants"][m], keys["environments"][e])) != text
    }
    needed["mutants"].update(m for m, _ in asked)
    needed["environments"].update(e for _, e in asked)
    for table in ("mutants", "substrates", "entries"):
        name, target = _POINTS_TO[table]
        at = _COLUMNS[table].index(name)
        needed[target].update(content.tables[table][i][at] for i in needed[table])
    moved = {table: {old: new for new, old in enumerate(sorted(needed[table]))} for table in _COLUMNS}
    tables = {
        table: [
            _pointing(table, content.tables[table][i], lambda target, j: moved[target][j])
            for i in sorted(needed[table])
        ]
        for table in _COLUMNS
    }
    return _Content(
        tables,
        {
            (moved["entries"][e], moved["environments"][v], variant): [(moved["mutants"][r[0]], *r[1:]) for r in rows]
            for (e, v, variant), rows in blocks.items()
        },
        {(moved["mutants"][m], moved["environments"][e]): text for (m, e), text in asked.items()},
    )


def export_delta(matrix: Matrix, path: Path, since: Path | None = None) -> int:
    """Write a matrix as a delta, atomically.

    Args:
        since: an earlier delta: what it holds already is left out (also a cell that differs in its time alone).

    Returns:
        How many cells were written. The same matrix gives the same bytes, whatever its row ids.

    Raises:
        InputError: `since` is not a delta, or the folder cannot be written.
        MatrixError: the disk is full or failed; no half file is left behind.
    """
    content = _read_matrix(matrix)
    if since is not None:
        content = _without(content, _read_delta(since))
    if not path.parent.is_dir():
        raise InputError(f"{path}: there is no folder {path.parent}")
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with lzma.open(draft, "wb", preset=_PRESET) as file:
            digest = hashlib.sha256()
            for line in _lines(content):
                file.write(line)
                digest.update(line)
            file.write(_line({"sha256": digest.hexdigest()}))
        with draft.open("rb+") as written:
            os.fsync(written.fileno())
        draft.replace(path)
    except OSError as error:
        raise MatrixError(f"{path}: cannot write the delta: {error.strerror or error}") from error
    finally:
        draft.unlink(missing_ok=True)
    return sum(len(rows) for rows in content.blocks.values())


def _line(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"


def _lines(content: _Content) -> Iterator[bytes]:
    yield _line({"format": FORMAT, "version": VERSION})
    for table, rows in content.tables.items():
        yield _line({table: rows})
    for (entry, environment, variant), rows in content.blocks.items():
        for start in range(0, len(rows), _BLOCK):
            columns = zip(*rows[start : start + _BLOCK], strict=True)
            block = {name: list(column) for name, column in zip(_CELL, columns, strict=True)}
            block["margin"] = [_text(margin) for margin in block["margin"]]
            yield _line({"entry": entry, "environment": environment, "variant": variant, **block})
    rows = list(content.asked.items())
    for start in range(0, len(rows), _BLOCK):
        yield _line({"asked": [[m, e, text] for (m, e), text in rows[start : start + _BLOCK]]})


def _text(margin: float | None) -> float | str | None:
    """JSON has no infinity."""
    return "inf" if margin == float("inf") else margin


def _read_delta(path: Path) -> _Content:
    try:
        text = lzma.decompress(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: cannot read the delta: {error.strerror}") from error
    except (lzma.LZMAError, EOFError) as error:
        raise InputError(f"{path}: not a delta of a kill matrix, or cut short ({error})") from error
    body, _, last = text.rstrip(b"\n").rpartition(b"\n")
    try:
        header = json.loads(body.partition(b"\n")[0])
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise InputError(f"{path}: not a delta of a kill matrix")
        if header["version"] != VERSION:
            raise InputError(
                f"{path}: written for schema {header['version']}, this version reads schema {VERSION}; export it again"
            )
        if json.loads(last) != {"sha256": hashlib.sha256(body + b"\n").hexdigest()}:
            raise InputError(f"{path}: the delta is damaged (its checksum does not fit); export it again")
        return _parse(body.splitlines()[1:])
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: not a delta of a kill matrix ({type(error).__name__}: {error})") from error


def _parse(lines: Sequence[bytes]) -> _Content:
    content = _Content({}, {}, {})
    for line in lines:
        record = json.loads(line)
        if "asked" in record:
            content.asked |= {(mutant, environment): text for mutant, environment, text in record["asked"]}
            continue
        if "variant" not in record:
            content.tables |= {table: [tuple(row) for row in rows] for table, rows in record.items()}
            continue
        record["margin"] = [float(margin) if margin == "inf" else margin for margin in record["margin"]]
        rows = content.blocks.setdefault((record["entry"], record["environment"], record["variant"]), [])
        rows.extend(zip(*(record[name] for name in _CELL), strict=True))
    return content


def import_delta(matrix: Matrix, path: Path) -> ImportReport:
    """Take in a delta, in one transaction.

    What both sides know stays as it is here, except that a cell over more seeds replaces one over fewer, and that what
    has been screened, gated or measured replaces what has not.

    Raises:
        InputError: not a delta, damaged, or of another version; nothing was changed.
        MatrixError: the disk is full, or a lock was held too long; nothing was changed.
    """
    content = _read_delta(path)
    report = ImportReport()
    try:
        with matrix.transaction() as connection:
            ids: dict[str, list[int]] = {}
            for table in _COLUMNS:
                ids[table] = [_merge(connection, table, row, ids, report) for row in content.tables[table]]
            cells = [
                (ids["mutants"][mutant], ids["entries"][entry], ids["environments"][environment], variant, *rest)
                for (entry, environment, variant), rows in content.blocks.items()
                for mutant, *rest in rows
            ]
            cells.sort(key=lambda cell: cell[:4])  # in the order of the table: several times faster
            _merge_cells(connection, cells, report)
            asked = [(ids["mutants"][m], ids["environments"][e], text) for (m, e), text in content.asked.items()]
            connection.executemany(PUT_ROW, asked)
    except (sqlite3.IntegrityError, sqlite3.InterfaceError, IndexError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: a delta that contradicts its own format ({error}); nothing was changed") from error
    return report


def _merge(
    connection: sqlite3.Connection, table: str, row: Sequence[Any], ids: Mapping[str, list[int]], report: ImportReport
) -> int:
    names, key = _COLUMNS[table], _KEYS[table]
    row = _pointing(table, row, lambda target, i: ids[target][i])
    theirs = dict(zip(names, row, strict=True))
    where = " AND ".join(f"{name} = ?" for name in key)
    values = [theirs[name] for name in key]
    found = connection.execute(f"SELECT id, {', '.join(names)} FROM {table} WHERE {where}", values).fetchone()
    if found is None:
        marks = ", ".join("?" * len(names))
        cursor = connection.execute(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})", row)
        assert cursor.lastrowid is not None
        return cursor.lastrowid
    id, *own = found
    ours = dict(zip(names, own, strict=True))
    if ours != theirs:
        if _open(table, ours):
            sets = ", ".join(f"{name} = ?" for name in names)
            connection.execute(f"UPDATE {table} SET {sets} WHERE id = ?", (*row, id))
        elif not _open(table, theirs):
            differ = [name for name in names if ours[name] != theirs[name]]
            report.conflict(f"{table} {theirs[key[-1]] if table != 'entries' else theirs['uid']}: {', '.join(differ)}")
    return int(id)


def _open(table: str, row: Mapping[str, Any]) -> bool:
    """Whether nothing has been decided about the row yet."""
    match table:
        case "substrates":
            return row["status"] == "pending"
        case "mutants":
            return row["state"] == "generated"
        case "entries":
            return row["measured"] is None and bool(row["admitted"])
        case _:
            return False


def _merge_cells(connection: sqlite3.Connection, cells: Sequence[tuple[Any, ...]], report: ImportReport) -> None:
    find = "SELECT seeds, class FROM cells WHERE mutant = ? AND entry = ? AND environment = ? AND variant = ?"
    new = []
    for cell in cells:
        mutant, entry, environment, variant, seeds, outcome, *_ = cell
        ours = connection.execute(find, (mutant, entry, environment, variant)).fetchone()
        if ours is None:
            report.added += 1
        elif seeds > ours[0]:
            report.replaced += 1
        else:
            report.unchanged += 1
            if seeds == ours[0] and outcome != ours[1]:
                report.conflict(f"cell of mutant {mutant}, entry {entry}, {variant}: {ours[1]} here, {outcome} there")
            continue
        new.append(cell)
    connection.executemany(PUT_CELL, new)
