"""A small SQLite file that the processes of one run share: verdicts, metrics and what audits found.

Rows are authenticated with the run key: a candidate that found and changed the file on a machine without a file-system
sandbox could otherwise write itself a verdict.
"""

import contextlib
import hashlib
import hmac
import json
import logging
import os
import sqlite3
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS verdicts (key TEXT PRIMARY KEY, body TEXT NOT NULL, mac TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS metrics (id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS samples (
    id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, at REAL NOT NULL, body TEXT NOT NULL,
    mac TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS pending (key TEXT PRIMARY KEY, body TEXT NOT NULL, mac TEXT NOT NULL) WITHOUT ROWID;
"""
_BUSY_S = 10.0
_KEPT_METRICS = 10_000  # rows; the reader takes them every few steps


class RunStore:
    """Verdicts by key, and metrics in order.

    A store that fails (disk full, file system without locks, damaged file) is switched off with one warning: it only
    saves work, so training goes on without it.

    Args:
        path: the file; its folder is made if needed.
        key: the run key.
    """

    def __init__(self, path: Path, key: bytes) -> None:
        self.path = path
        self._mac_key = hmac.new(key, b"kernelward store", hashlib.sha256).digest()
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._broken = False

    def get_verdict(self, key: str) -> dict[str, Any] | None:
        """The verdict stored under a key, if there is one that this run's key vouches for."""
        rows = self._execute("SELECT body, mac FROM verdicts WHERE key = ?", (key,))
        for body, mac in rows:
            if isinstance(body, str) and isinstance(mac, str) and hmac.compare_digest(mac, self._mac(key, body)):
                return json.loads(body)
        return None

    def put_verdict(self, key: str, verdict: dict[str, Any]) -> None:
        """Store a verdict; one that is there already stays, so that all processes agree."""
        body = json.dumps(verdict, separators=(",", ":"))
        self._execute("INSERT OR IGNORE INTO verdicts VALUES (?, ?, ?)", (key, body, self._mac(key, body)))

    def drop_verdicts(self, candidate: str, problem_hash: str) -> None:
        """Forget what was found about a candidate (the SHA-256 of its source), under whatever key."""
        self._execute(
            "DELETE FROM verdicts WHERE json_extract(body, '$.candidate') = ? "
            "AND json_extract(body, '$.problem_hash') = ?",
            (candidate, problem_hash),
        )

    def put_pending(self, key: str, body: dict[str, Any]) -> bool:
        """Remember a sample that is still to be judged; False where it is there, or was judged already."""
        text = json.dumps(body, separators=(",", ":"))
        rows = self._execute(
            "INSERT OR IGNORE INTO pending SELECT ?, ?, ? WHERE NOT EXISTS (SELECT 1 FROM samples WHERE key = ?) "
            "RETURNING key",
            (key, text, self._mac(key, text), key),
        )
        return bool(rows)

    def pending(self) -> dict[str, dict[str, Any]]:
        """Samples that are still to be judged, by key."""
        rows = self._execute("SELECT key, body, mac FROM pending", ())
        return {key: json.loads(body) for key, body, mac in rows if hmac.compare_digest(mac, self._mac(key, body))}

    def put_sample(self, key: str, body: dict[str, Any] | None) -> None:
        """Store what became of a sample; None = nothing can be said of it, so it is only no longer pending."""
        if body is not None:
            text = json.dumps(body, separators=(",", ":"))
            self._execute(
                "INSERT OR IGNORE INTO samples (key, at, body, mac) VALUES (?, ?, ?, ?)",
                (key, time.time(), text, self._mac(key, text)),
            )
        self._execute("DELETE FROM pending WHERE key = ?", (key,))

    def samples_after(self, last: int) -> tuple[int, list[dict[str, Any]]]:
        """Samples judged after row `last`, and the number of the newest row."""
        rows = self._execute("SELECT id, key, body, mac FROM samples WHERE id > ? ORDER BY id", (last,))
        kept = [json.loads(b) for _, key, b, mac in rows if hmac.compare_digest(mac, self._mac(key, b))]
        return (rows[-1][0] if rows else last), kept

    def add_metrics(self, values: dict[str, float]) -> None:
        """Append one call's metrics."""
        self._execute("INSERT INTO metrics (at, body) VALUES (?, ?)", (time.time(), json.dumps(values)))
        self._execute("DELETE FROM metrics WHERE id <= (SELECT max(id) FROM metrics) - ?", (_KEPT_METRICS,))

    def metrics_after(self, last: int) -> tuple[int, list[dict[str, float]]]:
        """Metrics appended after row `last`, and the number of the newest row."""
        rows = self._execute("SELECT id, body FROM metrics WHERE id > ? ORDER BY id", (last,))
        return (rows[-1][0] if rows else last), [json.loads(body) for _, body in rows]

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _mac(self, key: str, body: str) -> str:
        return hmac.new(self._mac_key, f"{key}\n{body}".encode(), hashlib.sha256).hexdigest()

    def _execute(self, statement: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        with self._lock:
            if self._broken:
                return []
            try:
                if self._connection is None:
                    self._connection = self._open()
                with self._connection:
                    return self._connection.execute(statement, values).fetchall()
            except (sqlite3.Error, OSError) as error:
                self._broken = True
                _log.warning("the store %s cannot be used (%s); going on without it", self.path, error)
                return []

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        connection = sqlite3.connect(self.path, timeout=_BUSY_S, check_same_thread=False)
        with contextlib.suppress(sqlite3.OperationalError):  # not on every file system; the default works as well
            connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=OFF")  # losing the last rows in a power cut costs a judgement
        connection.executescript(_SCHEMA)
        return connection


def run_store_path(key: bytes) -> Path:
    """Where the processes of a run on this machine meet if the configuration names no store."""
    name = hmac.new(key, b"kernelward store path", hashlib.sha256).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"kernelward-{os.getuid()}" / f"run-{name}.sqlite"
