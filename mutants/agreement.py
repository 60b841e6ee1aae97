"""Do two engines say the same of the same mutant on the same entry? The CPU emulator beside a GPU, from one matrix.

A pair is a mutant and an entry (joined by the id of its recipe) that is admitted on both device classes and was asked
strictly on both; on a GPU plain cells stand for strict ones. Each side is killed or not by its own tolerance, which the
gate measured there, and each draws its own values from the same seeds. A pair in which both refuse the changed shape
says nothing and is left out. The emulator's plain cells are held against the same cells of the GPU apart.

Kappa is Cohen's (Educational and Psychological Measurement 20, 1960). Pairs of one mutant resemble each other, so its
interval resamples mutants; Wilson's interval of the agreement takes pairs for independent and has such a one beside.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from .coverage_cells import ProblemCells, read_problems
from .coverage_report import By
from .matrix import Matrix
from .matrix_schema import CODES, OUTCOMES, VARIANTS, Variant

SIDES = ("cpu", "cuda")
NEAR = 4.0  # both sides within this factor of their tolerance: other draws may decide otherwise
_RESAMPLES = 2000
_LEAST = 1e-12


@dataclass(frozen=True, slots=True)
class Side:
    """What one engine says of a pair.

    Attributes:
        cls: at the tolerance of now; a refusal of the declared shape is a crash.
        killed: whether that shows the mutant wrong.
        ratio: largest err / tolerance; infinite for a crash, NaN where nothing was compared.
    """

    cls: str
    killed: bool
    ratio: float


@dataclass(frozen=True, slots=True)
class Pair:
    """One mutant on one entry, on both."""

    mutant: str
    entry: str
    problem: str
    family: str
    operator: str
    label: str
    cpu: Side
    gpu: Side

    @property
    def agrees(self) -> bool:
        """Whether both kill it or neither does."""
        return self.cpu.killed == self.gpu.killed

    @property
    def cause(self) -> str:
        """What kind of disagreement it is, from the cells alone: a first sorting for people."""
        loud, quiet = (self.cpu, self.gpu) if self.cpu.killed else (self.gpu, self.cpu)
        where = "emulator" if self.cpu.killed else "GPU"
        if quiet.cls == "refused":
            return f"refused on the {'GPU' if self.cpu.killed else 'emulator'}"
        if loud.cls != "value":
            return f"{loud.cls} seen by the {where} alone"
        if loud.ratio <= NEAR and quiet.ratio >= 1 / NEAR:
            return f"within a factor of {NEAR:g} of the tolerance on both"
        return f"value seen by the {where} alone"


@dataclass(frozen=True, slots=True)
class Rate:
    """How many of so many pairs agree."""

    agree: int
    of: int

    @property
    def share(self) -> float:
        """agree / of; NaN of nothing."""
        return self.agree / self.of if self.of else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval; (0, 1) of nothing."""
        if not self.of:
            return 0.0, 1.0
        found = binomtest(self.agree, self.of).proportion_ci(method="wilson")
        return float(found.low), float(found.high)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; the share of nothing is null."""
        low, high = self.interval
        share = None if not self.of else round(self.share, 6)
        return {"agree": self.agree, "of": self.of, "share": share, "low": round(low, 6), "high": round(high, 6)}


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Pairs that disagree in the same way; `example` is the first (mutant, entry, cpu ratio, gpu ratio)."""

    cause: str
    cpu: str
    gpu: str
    family: str
    operator: str
    pairs: int
    mutants: int
    problems: tuple[str, ...]
    example: tuple[str, str, float, float]


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement over all pairs of one kind.

    Attributes:
        variant: of the CPU's cells.
        rate: over all pairs.
        compared: over those in which neither side crashed, hung, raced or refused: the arithmetic alone.
        fitting: over those of `compared` whose fault is not one of synchronisation: what can fit both. What a missing
            barrier does depends on the schedule: a GPU has one, the emulator tries bad ones. Nor has a GPU guard zones.
        by_mutant: 95 % interval of the agreement over resampled mutants; None for fewer than two mutants.
        kappa: Cohen's; NaN where both sides say one and the same of everything.
        kappa_interval: 95 %, over resampled mutants; None where too few of them have a kappa.
        verdicts: (killed on the CPU, killed on the GPU) -> pairs.
        confusion: (class on the CPU, class on the GPU) -> pairs.
        cpu_classes, gpu_classes: agreement among the pairs with that class on that side.
        groups: by family, problem, operator or backend.
        disagreements: the most frequent first.
    """

    variant: Variant
    rate: Rate
    compared: Rate
    fitting: Rate
    mutants: int
    entries: int
    refused: int
    by_mutant: tuple[float, float] | None
    kappa: float
    kappa_interval: tuple[float, float] | None
    verdicts: Mapping[tuple[bool, bool], int]
    confusion: Mapping[tuple[str, str], int]
    cpu_classes: Mapping[str, Rate]
    gpu_classes: Mapping[str, Rate]
    groups: Mapping[str, Rate]
    disagreements: tuple[Disagreement, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, documented at `run_agreement`."""
        return {
            "variant": self.variant,
            **self.rate.to_dict(),
            "compared": self.compared.to_dict(),
            "fitting": self.fitting.to_dict(),
            "mutants": self.mutants,
            "entries": self.entries,
            "refused": self.refused,
            "by_mutant": _rounded(self.by_mutant),
            "kappa": None if math.isnan(self.kappa) else round(self.kappa, 6),
            "kappa_interval": _rounded(self.kappa_interval),
            "verdicts": [{"cpu": c, "cuda": g, "pairs": n} for (c, g), n in sorted(self.verdicts.items())],
            "confusion": [{"cpu": c, "cuda": g, "pairs": n} for (c, g), n in sorted(self.confusion.items())],
            "classes": {
                side: {name: rate.to_dict() for name, rate in rates.items()}
                for side, rates in zip(SIDES, (self.cpu_classes, self.gpu_classes), strict=True)
            },
            "groups": {name: rate.to_dict() for name, rate in self.groups.items()},
            "disagreements": [_disagreement_dict(d) for d in self.disagreements],
        }


def _rounded(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else [round(x, 6) for x in interval]


def _disagreement_dict(d: Disagreement) -> dict[str, Any]:
    mutant, entry, *ratios = d.example
    return {
        "cause": d.cause,
        "cpu": d.cpu,
        "cuda": d.gpu,
        "family": d.family,
        "operator": d.operator,
        "pairs": d.pairs,
        "mutants": d.mutants,
        "problems": list(d.problems),
        "mutant": mutant,
        "entry": entry,
        "ratios": [None if math.isnan(r) else r if math.isfinite(r) else "inf" for r in ratios],
    }


def pairs_of(matrix: Matrix, variant: Variant = "strict", by: By = "family") -> tuple[list[Pair], int]:
    """All pairs that both device classes answered, and how many more both refused.

    Args:
        variant: of the CPU's cells; the GPU's are its strict ones, or the plain ones that stand for them.
        by: what `Pair.label` is.
    """
    cpu, gpu = (read_problems(matrix, side) for side in SIDES)
    there = {cells.hash: cells for cells in gpu}
    found: list[Pair] = []
    refused = 0
    for own in cpu:
        if own.hash in there:
            pairs = list(_pairs(own, there[own.hash], variant, by))
            kept = [p for p in pairs if p.cpu.cls != "refused" or p.gpu.cls != "refused"]
            refused += len(pairs) - len(kept)
            found += kept
    return found, refused


def _pairs(cpu: ProblemCells, gpu: ProblemCells, variant: Variant, by: By) -> Iterator[Pair]:
    rows = {m.uid: i for i, m in enumerate(gpu.mutants)}
    columns = {e.uid: i for i, e in enumerate(gpu.entries) if e.admitted and e.tolerance is not None}
    shared = [(i, columns[e.uid]) for i, e in enumerate(cpu.entries) if e.admitted and e.uid in columns]
    shared = [(mine, theirs) for mine, theirs in shared if cpu.entries[mine].tolerance is not None]
    labels = cpu.labels(by)
    sides = _sides(cpu, variant), _sides(gpu, "strict")
    for i, mutant in enumerate(cpu.mutants):
        row = rows.get(mutant.uid)
        if row is None:
            continue
        for mine, theirs in shared:
            one, other = sides[0](i, mine), sides[1](row, theirs)
            if one is not None and other is not None:
                uid = cpu.entries[mine].uid
                yield Pair(mutant.uid, uid, cpu.name, mutant.family, mutant.operator, labels[i], one, other)


def _sides(cells: ProblemCells, variant: Variant) -> Callable[[int, int], Side | None]:
    """(mutant, column) -> what is said of it there; None where nothing decides."""
    grid, at = cells.grid, VARIANTS.index(variant)
    kills, abstained = grid.kills()[:, :, at], grid.abstained[:, :, at]
    classes, ratios = grid.classes[:, :, at], grid.ratio[:, :, at]
    said = {code: name for name, code in CODES.items()}

    def side(mutant: int, column: int) -> Side | None:
        code, ratio = int(classes[mutant, column]), float(ratios[mutant, column])
        if code < 0:
            return None
        if abstained[mutant, column]:
            return Side("refused", False, ratio)
        if kills[mutant, column]:
            cls = said[code] if said[code] in ("crash", "hang", "race") else "value"
            return Side("crash" if said[code] == "refused" else cls, True, ratio)
        return None if math.isnan(ratio) and said[code] != "pass" else Side("pass", False, ratio)

    return side


def agreement(pairs: Sequence[Pair], variant: Variant = "strict", refused: int = 0) -> Agreement:
    """Count pairs; of none, everything is empty.

    Args:
        refused: pairs left out because both sides refused.
    """
    counts = _by_mutant(pairs)
    verdicts = Counter((p.cpu.killed, p.gpu.killed) for p in pairs)
    by_mutant, kappa_interval = _resampled(counts)
    compared = [p for p in pairs if {p.cpu.cls, p.gpu.cls} <= {"pass", "value"}]
    return Agreement(
        variant=variant,
        rate=_rate(pairs),
        compared=_rate(compared),
        fitting=_rate([p for p in compared if p.family != "synchronization"]),
        mutants=len(counts),
        entries=len({(p.problem, p.entry) for p in pairs}),
        refused=refused,
        by_mutant=by_mutant,
        kappa=float(_kappa(counts.sum(axis=0)[None])[0]) if len(counts) else math.nan,
        kappa_interval=kappa_interval,
        verdicts=verdicts,
        confusion=Counter((p.cpu.cls, p.gpu.cls) for p in pairs),
        cpu_classes=_rates(pairs, lambda p: p.cpu.cls, OUTCOMES),
        gpu_classes=_rates(pairs, lambda p: p.gpu.cls, OUTCOMES),
        groups=_rates(pairs, lambda p: p.label),
        disagreements=_disagreements(pairs),
    )


def _rate(pairs: Sequence[Pair]) -> Rate:
    return Rate(sum(p.agrees for p in pairs), len(pairs))


def _rates(pairs: Sequence[Pair], key: Callable[[Pair], str], order: Sequence[str] = ()) -> dict[str, Rate]:
    groups: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        groups[key(pair)].append(pair)
    names = [name for name in order if name in groups] or sorted(groups)
    return {name: _rate(groups[name]) for name in names}


def _by_mutant(pairs: Sequence[Pair]) -> NDArray[np.int64]:
    """[mutants, 4]: pairs that neither kills, only the GPU, only the CPU, both."""
    found: dict[str, list[int]] = {}
    for p in pairs:
        found.setdefault(p.mutant, [0, 0, 0, 0])[2 * p.cpu.killed + p.gpu.killed] += 1
    return np.array(list(found.values()), np.int64).reshape(-1, 4)


def _kappa(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """[n, 4] -> Cohen's kappa of each row; NaN where chance alone agrees always."""
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    cpu, gpu = share[:, 2] + share[:, 3], share[:, 1] + share[:, 3]
    chance = cpu * gpu + (1 - cpu) * (1 - gpu)
    left = 1 - chance
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(left > _LEAST, (share[:, 0] + share[:, 3] - chance) / left, np.nan)


def _resampled(counts: NDArray[np.int64]) -> tuple[tuple[float, float] | None, tuple[float, float] | None]:
    """95 % intervals of agreement and kappa over resampled mutants (percentiles; the seed is fixed)."""
    if len(counts) < 2:
        return None, None
    rng = np.random.default_rng(0)
    drawn = (np.bincount(rng.integers(len(counts), size=len(counts)), minlength=len(counts)) for _ in range(_RESAMPLES))
    sums = np.array([times @ counts for times in drawn])
    agree = (sums[:, 0] + sums[:, 3]) / sums.sum(axis=1)
    kappas = _kappa(sums)
    kappas = kappas[~np.isnan(kappas)]
    enough = len(kappas) >= _RESAMPLES / 2
    return _percentiles(agree), _percentiles(kappas) if enough else None


def _percentiles(values: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def _disagreements(pairs: Sequence[Pair]) -> tuple[Disagreement, ...]:
    groups: dict[tuple[str, ...], list[Pair]] = defaultdict(list)
    for p in pairs:
        if not p.agrees:
            groups[p.cause, p.cpu.cls, p.gpu.cls, p.family, p.operator].append(p)
    found = []
    for (cause, cpu, gpu, family, operator), own in groups.items():
        first = min(own, key=lambda p: (p.mutant, p.entry))
        example = (first.mutant, first.entry, first.cpu.ratio, first.gpu.ratio)
        problems = tuple(sorted({p.problem for p in own}))
        mutants = len({p.mutant for p in own})
        found.append(Disagreement(cause, cpu, gpu, family, operator, len(own), mutants, problems, example))
    return tuple(sorted(found, key=lambda d: (-d.pairs, d.cause, d.operator, d.example[0])))
