"""Coverage: of the mutants that some admitted entry shows to be wrong, how many does each protocol detect?

Everything is counted from one matrix, so inputs, tolerance and engine are told apart without running anything. Two
denominators stand beside each other: mutants witnessed at our tolerances, and at the official 1e-2. A mutant whose
missing cells could change the answer is unknown to that protocol: it leaves numerator and denominator, and is counted.
"""

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from ..suites.errors import InputError
from ..suites.hashing import stable_hash
from ..suites.protocol import ProtocolSpec, load_protocol
from ..suites.select import MAX_K, Selection, balanced, choose
from .coverage_cells import (
    Close,
    Comparison,
    Engine,
    Fates,
    ProblemCells,
    Truth,
    cell_fates,
    dense_columns,
    kill_classes,
    official_columns,
    official_tolerance,
    protocol_fates,
    read_problems,
    together,
    under_refusal,
    witnesses,
)
from .coverage_report import OURS, SUITE_K, By, Effect, ProtocolCoverage, Report, Share
from .matrix import Matrix
from .matrix_delta import open_measured

OFFICIAL = 1e-2
OFFICIAL_PROTOCOLS = ("kernelbench", "kernelbench-head", "kernelbench-verified-1e-2", "kernelbench-verified", "fuzz")
DEFAULT_MATRIX = Path("calibration/matrix.sqlite")
_RESAMPLES = 2000


def select_suite(
    cells: ProblemCells,
    k: int,
    *,
    comparison: Comparison | None = None,
    half: bool = True,
    weights: Literal["mutant", "family"] = "mutant",
) -> tuple[Selection, list[int]]:
    """The k pool entries that detect the most witnessed mutants of a problem.

    Args:
        comparison: under which entries kill (None = at our tolerances).
        half: chosen on the selected half only; False = on all mutants.
        weights: every mutant counts the same, or every family.

    Returns:
        The selection, and the columns of `cells` that it means, in order.
    """
    compared = comparison or Truth()
    columns = cells.columns("pool")
    counted = (witnesses(cells, compared) == 1) & ~(cells.held & half)
    kills = cell_fates(cells, compared)[:, columns][counted] == 1
    weight = None
    if weights == "family":
        weight = balanced([m.family for m, counts in zip(cells.mutants, counted, strict=True) if counts])
    dense = set(dense_columns(cells))
    chosen = choose(
        kills,
        k,
        weights=weight,
        cost=[cells.entries[c].bytes for c in columns],
        dense=[i for i, c in enumerate(columns) if c in dense],
        declared=[i for i, c in enumerate(columns) if not cells.grid.changed[c]],
        kinds=[_shape_and_inputs(cells.entries[c].recipe) for c in columns],
    )
    return chosen, [columns[i] for i in chosen.indices]


def _shape_and_inputs(recipe: Mapping[str, Any]) -> tuple[str, str]:
    inputs = {k: v for k, v in recipe.items() if k != "constants"}
    return stable_hash(recipe.get("constants") or {}), stable_hash(inputs)


def suite_record(cells: ProblemCells, columns: Sequence[int]) -> dict[str, dict[str, int]]:
    """What a suite's file says about itself and about the official protocols: per protocol detected and witnessed.

    Mutants that are witnessed at our tolerances and whose fate is known.
    """
    seen = witnesses(cells, Truth()) == 1
    fates = {OURS: together(cell_fates(cells, Truth())[:, list(columns)])}
    for name in OFFICIAL_PROTOCOLS:
        fates[name] = protocol_fates(cells, load_protocol(name))
    shares = {name: _share(fate, seen) for name, fate in fates.items()}
    return {name: {"detected": s.detected, "witnessed": s.of} for name, s in shares.items()}


def _share(fates: Fates, counted: NDArray[np.bool_]) -> Share:
    kept = fates[counted]
    detected, unknown = int((kept == 1).sum()), int((kept < 0).sum())
    return Share(detected, len(kept) - unknown, unknown)


def measure(
    matrix: Matrix,
    *,
    protocols: Sequence[str] = (),
    by: By = "family",
    device_class: str | None = None,
    weights: Literal["mutant", "family"] = "mutant",
) -> Report:
    """Count a matrix.

    Args:
        protocols: names, paths of YAML files, `kernelward` or `kernelward@k`; empty = all official ones and k = 1..6.
        by: what the groups are.
        device_class: `cpu` or `cuda`; None = the one with the most cells.
        weights: what suites are selected by.

    Raises:
        InputError: an unknown protocol, or nothing to count.
    """
    device_class = device_class or fullest(matrix)
    problems = read_problems(matrix, device_class)
    if not any(cells.mutants for cells in problems):
        raise InputError(f"{matrix.path}: no mutants on {device_class} yet: run `kernelward calibrate` first")
    wanted = [_resolved(name) for name in protocols] or [*OFFICIAL_PROTOCOLS, *range(1, MAX_K + 1)]
    count = _Counter(problems, by, weights)
    lines = tuple(count.suite(w) if isinstance(w, int) else count.official(w) for w in wanted)
    ours, official = (Counter(int(f) for f in fates) for fates in (count.ours, count.official_witness))
    names = {1: "yes", 0: "no", -1: "undecided"}
    return Report(
        matrix=str(matrix.path),
        device_class=device_class,
        by=by,
        problems=len(problems),
        states=dict(matrix.query("SELECT state, count(*) FROM mutants GROUP BY state ORDER BY state")),
        substrates=dict(matrix.query("SELECT status, count(*) FROM substrates GROUP BY status ORDER BY status")),
        witnessed={
            "ours": {word: ours[code] for code, word in names.items()},
            "official": {word: official[code] for code, word in names.items()},
        },
        classes=dict(sorted(Counter(count.classes).items())),
        cells=_completeness(problems),
        protocols=lines,
        effects=count.effects(),
        suites=count.suites(),
        inexact=count.inexact,
    )


def fullest(matrix: Matrix) -> str:
    found = matrix.query(
        "SELECT e.device_class FROM cells c JOIN entries e ON e.id = c.entry "
        "GROUP BY 1 ORDER BY count(*) DESC, 1 LIMIT 1"
    )
    if not found:
        raise InputError(f"{matrix.path}: the kill matrix is empty: run `kernelward calibrate` first")
    return str(found[0][0])


def _resolved(name: str) -> str | int:
    """A protocol to count: the size of a suite, or an official protocol's name or path."""
    head, at, tail = name.partition("@")
    if head == OURS:
        if at and not (tail.isdigit() and 1 <= int(tail) <= MAX_K):
            raise InputError(f"{name!r}: suites have 1 to {MAX_K} entries, {OURS}@1 to {OURS}@{MAX_K}")
        return int(tail) if at else SUITE_K
    spec = load_protocol(name)
    if spec.uses_suite or spec.comparison == "truth":
        raise InputError(
            f"{name}: coverage counts protocols that list their entries and compare by allclose, or {OURS}"
        )
    official_tolerance(spec)
    return name


def _completeness(problems: Sequence[ProblemCells]) -> tuple[int, int]:
    present = total = 0
    for cells in problems:
        columns = cells.columns("pool") + cells.columns("protocol")
        there = (cells.grid.classes[:, columns] >= 0).any(axis=2)
        present, total = present + int(there.sum()), total + there.size
    return present, total


class _Counter:
    """All problems side by side: one long array per question."""

    def __init__(self, problems: Sequence[ProblemCells], by: By, weights: Literal["mutant", "family"]) -> None:
        self.problems = problems
        self.weights: Literal["mutant", "family"] = weights
        self.labels = np.array([label for cells in problems for label in cells.labels(by)])
        self.families = [m.family for cells in problems for m in cells.mutants]
        self.at = np.repeat(np.arange(len(problems)), [len(cells.mutants) for cells in problems])
        self.held = np.concatenate([cells.held for cells in problems])
        self.ours = self._joined(lambda cells: witnesses(cells, Truth()))
        self.official_witness = self._joined(lambda cells: witnesses(cells, Close(OFFICIAL)))
        shows = [name for cells in problems for name in kill_classes(cells)]
        self.classes = [name for name, seen in zip(shows, self.ours == 1, strict=True) if seen]
        self.inexact = 0
        self._chosen: dict[tuple[str, int, bool, bool], list[int]] = {}

    def _joined(self, ask: Callable[[ProblemCells], Fates]) -> Fates:
        return np.concatenate([ask(cells) for cells in self.problems])

    def columns(self, cells: ProblemCells, k: int, comparison: Comparison, half: bool = True) -> list[int]:
        """The suite of k entries, chosen once."""
        key = (cells.hash, k, isinstance(comparison, Truth), half)
        if key not in self._chosen:
            selection, self._chosen[key] = select_suite(
                cells, k, comparison=comparison, half=half, weights=self.weights
            )
            self.inexact += not selection.exact
        return self._chosen[key]

    def suites(self) -> dict[str, dict[int, tuple[str, ...]]]:
        """What was chosen at our tolerances."""
        found: dict[str, dict[int, tuple[str, ...]]] = {}
        for cells in self.problems:
            for (digest, k, at_ours, half), columns in sorted(self._chosen.items()):
                if at_ours and half and digest == cells.hash:
                    found.setdefault(cells.name, {})[k] = tuple(cells.entries[c].uid for c in columns)
        return found

    def official(self, name: str) -> ProtocolCoverage:
        """The line of a protocol with entries of its own."""
        spec = load_protocol(name)
        return self._line(spec.name, self._joined(lambda cells: protocol_fates(cells, spec)))

    def suite(self, k: int) -> ProtocolCoverage:
        """The line of our suites of k entries."""

        def asked(comparison: Comparison, half: bool = True) -> Fates:
            return self._joined(
                lambda cells: together(cell_fates(cells, comparison)[:, self.columns(cells, k, comparison, half)])
            )

        def refused(cells: ProblemCells) -> Fates:
            return under_refusal(cells, cell_fates(cells, Truth()), self.columns(cells, k, Truth()))

        fates, loose = asked(Truth()), asked(Close(OFFICIAL))
        seen, seen_loose = self.ours == 1, self.official_witness == 1
        line = self._line(f"{OURS}@{k}", fates)
        return ProtocolCoverage(
            name=line.name,
            ours=line.ours,
            official=line.official,
            balanced=line.balanced,
            bootstrap=line.bootstrap,
            groups=line.groups,
            selected=_share(fates, seen & ~self.held),
            held_out=_share(fates, seen & self.held),
            whole=_share(asked(Truth(), half=False), seen),
            refusal=_share(self._joined(refused), seen),
            at_official=_share(loose, seen_loose),
            held_out_at_official=_share(loose, seen_loose & self.held),
        )

    def _line(self, name: str, fates: Fates) -> ProtocolCoverage:
        seen = self.ours == 1
        known = seen & (fates >= 0)
        weight = balanced([f for f, k in zip(self.families, known, strict=True) if k])
        return ProtocolCoverage(
            name=name,
            ours=_share(fates, seen),
            official=_share(fates, self.official_witness == 1),
            balanced=float((weight * (fates[known] == 1)).sum() / weight.sum()) if known.any() else math.nan,
            bootstrap=_bootstrap(fates[known] == 1, self.at[known]),
            groups={str(label): _share(fates, seen & (self.labels == label)) for label in np.unique(self.labels)},
        )

    def effects(self) -> tuple[Effect, ...]:
        """Inputs x tolerance x engine, with KernelBench's inputs and our suites of SUITE_K entries."""
        spec = load_protocol("kernelbench")
        engines: tuple[Engine, ...] = ("plain", "strict")
        whose: tuple[Literal["official", "ours"], ...] = ("official", "ours")
        found = []
        for inputs, tolerance, engine in itertools.product(whose, whose, engines):
            comparison: Comparison = Truth() if tolerance == "ours" else Close(OFFICIAL)
            fates = [self._asked(cells, spec, inputs, comparison, engine) for cells in self.problems]
            found.append(Effect(inputs, tolerance, engine, _share(np.concatenate(fates), self.ours == 1)))
        return tuple(found)

    def _asked(
        self, cells: ProblemCells, spec: ProtocolSpec, inputs: str, comparison: Comparison, engine: Engine
    ) -> Fates:
        columns = official_columns(cells, spec) if inputs == "official" else self.columns(cells, SUITE_K, Truth())
        fates = cell_fates(cells, comparison, engine)[:, [c for c in columns if c >= 0]]
        lacking = np.full((len(cells.mutants), columns.count(-1)), -1, np.int8)
        return together(np.concatenate([fates, lacking], axis=1))


def _bootstrap(detected: NDArray[np.bool_], problem: NDArray[np.int64]) -> tuple[float, float] | None:
    """95 % interval of the share over resampled problems (percentiles; the seed is fixed)."""
    ids = np.unique(problem)
    if len(ids) < 2:
        return None
    of = np.array([(problem == i).sum() for i in ids])
    hits = np.array([detected[problem == i].sum() for i in ids])
    drawn = np.random.default_rng(0).integers(len(ids), size=(_RESAMPLES, len(ids)))
    low, high = np.percentile(hits[drawn].sum(axis=1) / of[drawn].sum(axis=1), [2.5, 97.5])
    return float(low), float(high)


@dataclass(frozen=True, slots=True)
class CoverageOptions:
    """What `kernelward coverage` was asked.

    Attributes:
        fail_under: percent; below it the exit code is 1.
        device_class: `cpu` or `cuda`; None = the one with the most cells.
    """

    matrix: Path = DEFAULT_MATRIX
    protocols: tuple[str, ...] = ()
    by: By = "family"
    fail_under: float | None = None
    as_json: bool = False
    markdown: bool = False
    device_class: str | None = None


def run_coverage(options: CoverageOptions) -> int:
    """Print the coverage of a matrix.

    With `fail_under`, each protocol asked for (by default `kernelward`) must detect that percentage of the mutants
    witnessed at our tolerances; here unknown ones count as missed, so that missing cells cannot pass a threshold.

    `--json` prints one object: `format` (1), `matrix`, `device_class`, `by`, `problems` (how many), `states` and
    `substrates` (rows by state), `witnessed` {`ours`, `official`: {`yes`, `no`, `undecided`}}, `classes` (witnessed
    mutants by `value`, `race`, `hang`, `crash`), `cells` {`present`, `of`}, `protocols` (a list of objects with `name`,
    `ours`, `official`, `balanced`, `bootstrap`, `groups`, and for suites `selected`, `held_out`, `whole`, `refusal`,
    `at_official`, `held_out_at_official`, else null), `effects` (`inputs`, `tolerance`, `engine` and a share),
    `suites` {problem: {k: entry ids}}, `inexact`, `fail_under` (null where not asked) and `ok`. A share is
    {`detected`, `of`, `unknown`, `share` (null of nothing), `low`, `high`, `at_least` (unknown ones missed)}, in
    fractions, not percentages.

    Returns:
        0, or 1 below the threshold.

    Raises:
        InputError: no matrix, nothing in it, or an unknown protocol.
        MatrixError: the matrix cannot be read now.
    """
    if options.fail_under is not None and not 0 <= options.fail_under <= 100:
        raise InputError(f"--fail-under {options.fail_under}: give a percentage, 0 to 100")
    with open_measured(options.matrix) as matrix:
        report = measure(matrix, protocols=options.protocols, by=options.by, device_class=options.device_class)
    failed = []
    if options.fail_under is not None:
        asked = dict.fromkeys(options.protocols or (OURS,))
        lines = [report.get(load_protocol(p).name if "@" not in p and p != OURS else p) for p in asked]
        failed = [line for line in lines if 100 * line.ours.at_least < options.fail_under]
    if options.as_json:
        print(json.dumps({**report.to_dict(), "fail_under": options.fail_under, "ok": not failed}))
    else:
        from .coverage_table import markdown, print_report

        if options.markdown:
            print(markdown(report))
        else:
            print_report(report, Console())
        for line in failed:
            print(f"{line.name}: at least {100 * line.ours.at_least:.2f} %, below {options.fail_under:g} %")
    return 1 if failed else 0
