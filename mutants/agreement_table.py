"""`kernelward coverage --agreement`: the tables and the object that say how far two engines agree."""

import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from ..suites.errors import InputError
from .agreement import SIDES, Agreement, Rate, agreement, pairs_of
from .coverage_report import By
from .coverage_table import Rows, markdown_rows, print_rows
from .matrix import Matrix
from .matrix_delta import open_measured
from .matrix_schema import OUTCOMES, Variant

FORMAT = 1
_GROUPS_SHOWN = 40


def run_agreement(
    path: Path, by: By, fail_under: float | None = None, as_json: bool = False, markdown: bool = False
) -> int:
    """Body of `kernelward coverage --agreement`.

    Args:
        fail_under: percent of the strict pairs that have to agree.

    `--json` prints one object: `format` (1), `matrix`, `by`, `fail_under` (null where not asked), `ok`, `strict`, and
    `plain` (null where the CPU has no plain cell that counts); both with `variant`, `agree`, `of`, `share`, `low`,
    `high` (Wilson), `compared` (a rate over the pairs in which both sides compare values), `fitting` (over those
    whose fault is not one of synchronisation), `mutants`, `entries`, `refused` (pairs left out because both refused),
    `by_mutant` (interval over resampled mutants, or null), `kappa`, `kappa_interval`, `verdicts` and `confusion`
    (lists of `cpu`, `cuda`, `pairs`), `classes` {`cpu`, `cuda`: {class: a rate}}, `groups` {label: a rate} and
    `disagreements` (a list with `cause`, `cpu`, `cuda`, `family`, `operator`, `pairs`, `mutants`, `problems`, and of
    the first pair `mutant`, `entry`, `ratios`: err / tolerance on the CPU and on the GPU). Shares are fractions.

    Returns:
        0, or 1 below the threshold.

    Raises:
        InputError: no matrix, or no pair in it.
        MatrixError: the matrix cannot be read now.
    """
    with open_measured(path) as matrix, matrix.snapshot():
        strict, plain = _counted_pairs(matrix, "strict", by), _counted_pairs(matrix, "plain", by)
    if not strict.rate.of:
        raise InputError(
            f"{path}: no mutant has cells on an entry of both {' and '.join(SIDES)}: take in what a GPU machine "
            "measured with `kernelward calibrate --import DELTA`"
        )
    ok = fail_under is None or 100 * strict.rate.share >= fail_under
    both = [strict, *([plain] if plain.rate.of else [])]
    if as_json:
        head = {"format": FORMAT, "matrix": str(path), "by": by, "fail_under": fail_under, "ok": ok}
        print(json.dumps({**head, "strict": strict.to_dict(), "plain": plain.to_dict() if plain.rate.of else None}))
    elif markdown:
        print("\n\n".join(markdown_rows(rows) for one in both for rows in tables(one, by)))
    else:
        for one in both:
            for rows in tables(one, by):
                print_rows(rows, Console())
    if not ok and not as_json:
        print(f"agreement {100 * strict.rate.share:.2f} %, below {fail_under:g} %")
    return 0 if ok else 1


def _counted_pairs(matrix: Matrix, variant: Variant, by: By) -> Agreement:
    pairs, refused = pairs_of(matrix, variant, by)
    return agreement(pairs, variant, refused)


def tables(found: Agreement, by: By) -> Iterator[Rows]:
    """The report's tables, in order."""
    yield Rows(
        f"Emulator ({found.variant} cells) and GPU: killed or not, pairs of mutant and entry",
        ("pairs", "mutants", "entries", "agreement (Wilson)", "mutants resampled", "kappa (mutants resampled)",
         "both refused", "of the pairs that compare values on both", "of those beside synchronisation"),
        (
            (
                str(found.rate.of),
                str(found.mutants),
                str(found.entries),
                _percent(found.rate),
                "-" if found.by_mutant is None else "-".join(f"{100 * x:.2f}" for x in found.by_mutant),
                _kappa_text(found),
                str(found.refused),
                f"{found.compared.of}: {_percent(found.compared)}",
                f"{found.fitting.of}: {_percent(found.fitting)}",
            ),
        ),
    )  # fmt: skip
    names = {True: "killed", False: "not killed"}
    yield Rows(
        "Verdicts",
        ("emulator", "GPU: killed", "GPU: not killed"),
        tuple((names[c], *(str(found.verdicts.get((c, g), 0)) for g in (True, False))) for c in (True, False)),
    )
    seen = [name for name in OUTCOMES if name in found.cpu_classes or name in found.gpu_classes]
    yield Rows(
        "Classes: rows of the emulator, columns of the GPU",
        ("", *seen),
        tuple((row, *(str(found.confusion.get((row, column), 0)) for column in seen)) for row in seen),
    )
    none = Rate(0, 0)
    yield Rows(
        "Agreement by class",
        ("class", "n, on the emulator", "agreement", "n, on the GPU", "agreement"),
        tuple(
            (
                name,
                *(text for side in (found.cpu_classes, found.gpu_classes) for text in _counted(side.get(name, none))),
            )
            for name in seen
        ),
    )
    yield Rows(
        f"Agreement by {by}",
        (by, "n", "agreement"),
        tuple((label, *_counted(rate)) for label, rate in found.groups.items()),
    )
    shown = found.disagreements[:_GROUPS_SHOWN]
    more = len(found.disagreements) - len(shown)
    yield Rows(
        "Disagreements" + (f", the {len(shown)} largest groups of {len(found.disagreements)}" if more else ""),
        ("what differs", "pairs", "mutants", "emulator", "GPU", "family / operator", "problems",
         "one of them: mutant, entry, err / tolerance"),
        tuple(
            (
                d.cause,
                str(d.pairs),
                str(d.mutants),
                d.cpu,
                d.gpu,
                f"{d.family} / {d.operator}",
                d.problems[0] + (f" and {len(d.problems) - 1} more" if len(d.problems) > 1 else ""),
                "{}, {}, {:.3g} and {:.3g}".format(*d.example),
            )
            for d in shown
        ),
    )  # fmt: skip
    causes: Counter[str] = Counter()
    for d in found.disagreements:
        causes[d.cause] += d.pairs
    yield Rows(
        "Disagreements by what differs", ("what differs", "pairs"), tuple((c, str(n)) for c, n in causes.most_common())
    )


def _counted(rate: Rate) -> tuple[str, str]:
    return str(rate.of), _percent(rate)


def _percent(rate: Rate) -> str:
    low, high = rate.interval
    return f"{100 * rate.share:.2f} % ({100 * low:.2f}-{100 * high:.2f})" if rate.of else "-"


def _kappa_text(found: Agreement) -> str:
    if math.isnan(found.kappa):
        return "-"
    interval = found.kappa_interval
    return f"{found.kappa:.4f}" + ("" if interval is None else f" ({interval[0]:.4f}-{interval[1]:.4f})")
