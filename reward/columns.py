"""From a dataset's columns to problems."""

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..suites.errors import InputError

if TYPE_CHECKING:
    from ..suites.problem import Problem

_TRL_COLUMNS = {"prompts", "completion_ids", "environments"}


class ProblemColumns:
    """Finds the problem of every row, each one once. Safe to use from several threads.

    Args:
        folder: where ids of the column `problem` are looked up (None: KERNELBENCH_DIR, or paths only).
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = Path(folder) if folder else None
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], Problem | InputError] = {}

    def problems(
        self,
        count: int,
        problem: Sequence[str | None] | None,
        reference: Sequence[str | None] | None,
        others: Iterable[str],
    ) -> "list[Problem | InputError]":
        """The problem of each row, or what is wrong with the row.

        Args:
            count: number of rows.
            problem: the column of ids and paths, if there is one.
            reference: the column of source texts, if there is one; goes first where both hold something.
            others: names of the other columns, for the message.

        Raises:
            InputError: neither column is there, or one is no list of `count` values.
        """
        for name, column in (("problem", problem), ("reference", reference)):
            if column is not None and (isinstance(column, str) or len(column) != count):
                raise InputError(f"column `{name}` must be a list with one entry per completion ({count})")
        if problem is None and reference is None:
            given = ", ".join(sorted(set(others) - _TRL_COLUMNS)) or "none"
            raise InputError(
                "the dataset has neither a column `problem` (an id such as level1/23_Softmax, or a path) nor a column "
                f"`reference` (the problem's source text). Its other columns: {given}. Rename or add one of the two"
            )
        refs = problem if problem is not None else [None] * count
        sources = reference if reference is not None else [None] * count
        return [self._find(ref, source) for ref, source in zip(refs, sources, strict=True)]

    def _find(self, ref: str | None, source: str | None) -> "Problem | InputError":
        key = ("reference", source) if source else ("problem", str(ref))
        with self._lock:
            known = self._known.get(key)
        if known is None:
            try:
                known = self._read(ref, source)
            except InputError as error:
                known = error
            with self._lock:
                self._known[key] = known
        return known

    def _read(self, ref: str | None, source: str | None) -> "Problem":
        from ..suites.problem import find_problem, problem_from_source  # imports torch

        if isinstance(source, str) and source:
            return problem_from_source(source)
        if isinstance(ref, str) and ref:
            return find_problem(ref, self._folder)
        raise InputError(
            f"a row of the dataset names no problem: `problem` is {ref!r} and `reference` is {source!r}; "
            "give an id, a path or the source text"
        )
