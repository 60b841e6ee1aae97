"""The output of `kernelward score`: one line per row and protocol, appended so that no kill loses or repeats one."""

import fcntl
import json
import os
import secrets
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..suites.errors import InputError

_START = b'{"id": "'  # every line starts so: tells a torn line of ours from a file that is something else


class ScoreStore:
    """Verdicts on disk, one JSON object per line, each on stable storage before `append` returns.

    A process killed at any moment leaves whole lines and at most one torn line at the end, which the next one cuts
    off. One process at a time: the file is locked while it is open. Thread-safe.

    Attributes:
        records: what the file holds by identity; of several lines with one identity the last one counts.
        run_key: the secret behind the seeds, the same for every line of a file.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the file.

        Raises:
            InputError: not writable, in use, or not an output of `kernelward score`.
        """
        self.path = path
        self.repaired = False
        self._lock = threading.Lock()
        new = not path.exists()
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise InputError(f"{path}: cannot write the output: {error.strerror}") from error
        try:
            self._claim()
            self.records = self._read()
        except BaseException:
            os.close(self._fd)
            raise
        if new:
            _sync_folder(path.parent)
        known = (record["run_key"] for record in self.records.values() if "run_key" in record)
        self.run_key = bytes.fromhex(next(known, secrets.token_hex(16)))

    def append(self, record: dict[str, Any]) -> None:
        """Add one line; on return it is on disk.

        Args:
            record: JSON-able; `id` is its identity.

        Raises:
            OSError: no space left, or the disk failed; a partly written line is taken back.
        """
        ordered = {"id": record["id"], **record, "run_key": self.run_key.hex()}
        line = json.dumps(ordered, ensure_ascii=True, allow_nan=False).encode() + b"\n"
        with self._lock:
            start = os.lseek(self._fd, 0, os.SEEK_END)
            try:
                view = memoryview(line)
                while view:
                    view = view[os.write(self._fd, view) :]
                os.fsync(self._fd)
            except OSError:
                os.ftruncate(self._fd, start)
                raise
            self.records[record["id"]] = ordered

    def close(self) -> None:
        """Release the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _claim(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"{self.path}: another `kernelward score` is writing to it; wait, or choose another --out"
            ) from error

    def _read(self) -> dict[str, dict[str, Any]]:
        data = self.path.read_bytes()
        whole, torn = data[: data.rfind(b"\n") + 1], data[data.rfind(b"\n") + 1 :]
        records: dict[str, dict[str, Any]] = {}
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                record = json.loads(line) if line.startswith(_START) else None
            except json.JSONDecodeError:
                record = None
            if record is None:
                raise InputError(
                    f"{self.path}:{number}: not a line of `kernelward score`; nothing was changed. Choose another --out"
                )
            records[record["id"]] = record
        if torn:
            if not (torn.startswith(_START) or _START.startswith(torn)):
                raise InputError(
                    f"{self.path}: not an output of `kernelward score`; nothing was changed. Choose another --out"
                )
            os.ftruncate(self._fd, len(whole))
            os.fsync(self._fd)
            self.repaired = True
        return records


def _sync_folder(folder: Path) -> None:
    """Make a new file's name durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
