"""A small kill matrix with everything that a report speaks of."""

import math
from collections.abc import Sequence
from pathlib import Path

from kernelward.mutants.matrix_schema import VARIANTS, Cell, EntryRow, MutantRow, SubstrateRow
from kernelward.mutants.mutant import Mutant, Substrate
from kernelward.suites.entry import Entry
from kernelward.suites.protocol import load_protocol
from small_matrix import SmallMatrix

HOSTILE = '</script><script>document.title="owned"</script><img src=x onerror=alert(1)>\u202e|`@all`'
RIGHT, WRONG = 0.0, 1.0  # an error, and a margin, of that size
_NAMES = ("MISSED", "MISSED_TOO", "DETECTED", "UNWITNESSED", "UNDECIDED", "HANGS", "CRASHES")


class Reported(SmallMatrix):
    """Seven mutants by name, three pool entries, one that the clean run took out, and KernelBench's five.

    `kernelbench` misses the first two (0.8 and 0.1 of what it allows) and detects the third, whose detail is hostile.
    """

    MISSED, MISSED_TOO, DETECTED, UNWITNESSED, UNDECIDED, HANGS, CRASHES = range(len(_NAMES))

    def __init__(self, path: Path, problem: str = "softmax") -> None:
        families = ("indexing", "boundary", "semantic", "arithmetic", "boundary", "memory", "memory")
        kinds = [
            ("lt2le", family, HOSTILE if name == "DETECTED" else f"site {name}")
            for family, name in zip(families, _NAMES, strict=True)
        ]
        dense, spiky, ragged = Entry.make("normal"), Entry.make("spiky"), Entry.make("normal", constants={"n": 33})
        super().__init__(path, mutants=kinds, entries=[dense, spiky, ragged], problem=problem)
        spec = load_protocol("kernelbench")
        assert spec.entries != "suite"
        self.official = self.matrix.add_entries(
            [self.entry_row(e, role="protocol", admitted=False, measured=None) for e in spec.entries]
        )
        self.matrix.add_entry(
            self.entry_row(Entry.make("ties"), admitted=False, reason="clean-run", detail="zeros pass <b>it</b>")
        )
        self.matrix.set_substrate_status(
            self.substrate, "admitted", f"clean run 0123456789ab; largest error 0.42 of the tolerance, on {spiky.id}"
        )
        self._fill()
        self._more()

    def _fill(self) -> None:
        shown = (WRONG,) * 3
        self.put(self.MISSED, (RIGHT, WRONG, RIGHT), (0.0, 0.008, 0.0, 0.0, 0.0))
        self.put(self.MISSED_TOO, (RIGHT, WRONG, WRONG), (0.001,) * 5)
        self.put(self.DETECTED, shown, (0.5,) * 5)
        self.put(self.UNWITNESSED, (RIGHT, 0.9 * self.tolerance, RIGHT), (0.0,) * 5)
        self.put(self.UNDECIDED, (RIGHT,), ())
        self.put(self.HANGS, ("hang",) * 3, ("hang",) * 5)
        self.put(self.CRASHES, ("crash",) * 3, ("crash",) * 5)

    def _more(self) -> None:
        """Mutants that do not count, and a substrate in quarantine."""
        states = (("compile-error", ""), ("equivalent", ""), ("excluded", "engine"), ("generated", ""))
        self.matrix.add_mutants(
            [
                MutantRow(f"other-{state}", self.substrate, "lt2le", "boundary", 3, state, state, how=how)  # type: ignore[arg-type]
                for state, how in states
            ]
        )
        other = self.matrix.add_substrate(
            SubstrateRow("odd", "cuda/odd", "cuda", "naive", self.problem, "quarantined", "fails 1 entries <i>here</i>")
        )
        self.matrix.add_mutants([MutantRow("of-odd", other, "lt2le", "boundary", 1, "x", "ready")])

    def put(self, mutant: int, pool: Sequence[float | str], official: Sequence[float | str]) -> None:
        """What a mutant does on the entries: an error (official ones: a margin), or a class."""
        for entries, values in ((self.entries, pool), (self.official, official)):
            for entry, value in zip(entries, values, strict=False):
                for variant in VARIANTS if entries is self.entries else VARIANTS[:1]:
                    where = (self.mutants[mutant], entry, self.environment, variant, 3)
                    if isinstance(value, str):
                        cell = Cell(*where, value, (math.inf,), math.inf)  # type: ignore[arg-type]
                    else:
                        cell = Cell(*where, "value" if value > self.tolerance else "pass", (value,), value)
                    self.matrix.put_cells([cell])

    @staticmethod
    def row(entry: Entry) -> EntryRow:
        """A row of an entry, in no matrix."""
        return EntryRow(1, entry.id, "cpu", entry.to_dict())

    @staticmethod
    def rows_of(
        substrate: Substrate, mutants: Sequence[Mutant], digest: str = ""
    ) -> list[tuple[MutantRow, SubstrateRow]]:
        """Rows of real mutants, in no matrix."""
        row = SubstrateRow(digest or substrate.hash, substrate.name, substrate.backend, substrate.style, 1, "admitted")
        return [(MutantRow(m.id, 1, m.operator, m.family, m.line, m.detail, "ready"), row) for m in mutants]
