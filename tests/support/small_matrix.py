"""A kill matrix of one problem with as many mutants and entries as a test needs."""

from pathlib import Path

from kernelward.mutants.matrix import Matrix
from kernelward.mutants.matrix_schema import EntryRow, MutantRow, SubstrateRow
from kernelward.suites.entry import Entry


class SmallMatrix:
    """One problem, one admitted substrate, mutants in state `ready`, admitted pool entries.

    Attributes:
        mutants, entries: row ids, in the order given.
        tolerance: of every entry that has one output.
    """

    tolerance = 1e-3

    def __init__(
        self,
        path: Path,
        *,
        mutants: int | list[tuple[str, str, str]] = 3,
        entries: int | list[Entry] = 2,
        problem: str = "softmax",
        backend: str = "cuda",
        environment: dict | None = None,
    ) -> None:
        self.matrix = Matrix(path)
        self.problem = self.matrix.add_problem(problem, f"hash-of-{problem}")
        self.substrate = self.matrix.add_substrate(
            SubstrateRow(f"substrate-{problem}", f"{backend}/{problem}", backend, "naive", self.problem, "admitted")
        )
        self.environment = self.matrix.add_environment(environment or {"engine": "emulator", "device": "cpu"})
        kinds = mutants if isinstance(mutants, list) else [("lt2le", "boundary", f"site {i}") for i in range(mutants)]
        self.mutants = self.matrix.add_mutants(
            [
                MutantRow(f"{problem}-{i:08x}", self.substrate, operator, family, i + 1, detail, "ready")
                for i, (operator, family, detail) in enumerate(kinds)
            ]
        )
        recipes = (
            entries if isinstance(entries, list) else [Entry.make("normal", scale=i + 1.0) for i in range(entries)]
        )
        self.entries = self.matrix.add_entries([self.entry_row(e, bytes=100 + i) for i, e in enumerate(recipes)])

    def entry_row(self, entry: Entry, **changes: object) -> EntryRow:
        """The row of an admitted entry with one output."""
        values = {"device_class": "cpu", "measured": {"tolerance": [self.tolerance]}, **changes}
        return EntryRow(problem=self.problem, uid=entry.id, recipe=entry.to_dict(), **values)  # type: ignore[arg-type]
