"""From a measured envelope and a fan-in to a tolerance: `max(16*u_out, 2*u_compute*sqrt(n), 4*envelope)`.

What a policy costs. Share of half-precision implementations of a float32 problem that are still caught, over `own` and
`normal` entries (on three fresh draws each):

    policy                   examples/problems                 KernelBench levels 1 and 2 (--max-mib 1)
                             admitted  operands  output  all   admitted    operands  output  all
    fp32                     66 of 69  86 %      92 %    92 %  356 of 376  93 %      97 %    99 %
    fp32+fast_math           66 of 69  86 %      92 %    92 %  347 of 376  85 %      88 %    93 %
    fp32+one_pass_variance   66 of 69  86 %      92 %    92 %  353 of 376  93 %      96 %    99 %
    tf32                     66 of 69  53 %      59 %    59 %  318 of 376  25 %      30 %    32 %
    fp16                     66 of 69   0 %       0 %     0 %  309 of 376   0 %       0 %     0 %
    bf16                     63 of 69   0 %       0 %     0 %  274 of 376   0 %       0 %     0 %

(operands: inputs and parameters through fp16; output: the right result through fp16; all: every intermediate result.)
Correct implementations that are no member of an envelope were never refused: sums in random order 0 of 346 and in
strided parts 0 of 340 under `fp32`. Approximate functions were refused 41 of 193 times and one-pass variances 7 of 64,
unless their policy allows them. Printed by `python benchmarks/tolerance_policies.py [--problems DIR]`.
"""

import math
from dataclasses import dataclass
from typing import Literal, Self, cast, get_args

import torch

from .compare import Ties
from .errors import InputError

Precision = Literal["fp32", "tf32", "fp16", "bf16"]

OUTPUT_FACTOR = 16.0
FAN_IN_FACTOR = 2.0
FAN_IN_LIMIT = (
    1 << 24
)  # larger sums are added up in parts by everyone; beyond it sqrt(n) would only widen the tolerance
ENVELOPE_FACTOR = 4.0

UNIT_ROUNDOFF = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
SINGLE = 2.0**-24
CAPS: dict[Precision, float] = {"fp32": 5e-3, "tf32": 3e-2, "fp16": 3e-2, "bf16": 1e-1}
_ORDER: tuple[Precision, ...] = ("fp32", "tf32", "fp16", "bf16")

BASE_MEMBERS = ("reference", "reordered", "sequential", "blocked", "online", "exp2")
_PRECISION_MEMBERS: dict[Precision, tuple[str, ...]] = {
    "fp32": (),
    "tf32": ("tf32", "tf32_truncated"),
    "fp16": ("tf32", "tf32_truncated", "fp16"),
    "bf16": ("tf32", "tf32_truncated", "bf16"),
}
EXTRA_MEMBERS = ("fast_math", "one_pass_variance")


@dataclass(frozen=True, slots=True)
class TolerancePolicy:
    """Which implementations count as correct, and so how far from truth a candidate may be.

    Attributes:
        precision: what a candidate may compute in. `fp32` (default) allows any order of float32 operations. `tf32`
            allows products on TF32 operands, `fp16` and `bf16` allow intermediate results in those types; each hides
            faults of that size (see `emulate`).
        extra: further members of the envelope: `fast_math`, `one_pass_variance`.
        ties: how argmax and argmin treat equal values.
    """

    precision: Precision = "fp32"
    extra: tuple[str, ...] = ()
    ties: Ties = "first"

    @property
    def name(self) -> str:
        """`fp32`, `tf32+fast_math`, `fp32+ties=value`: what `parse` reads."""
        ties = [] if self.ties == "first" else [f"ties={self.ties}"]
        return "+".join([self.precision, *self.extra, *ties])

    @classmethod
    def parse(cls, text: str) -> Self:
        """Inverse of `name`.

        Raises:
            InputError: an unknown precision or member.
        """
        precision, *rest = text.split("+")
        ties: Ties = "first"
        extra: list[str] = []
        for word in rest:
            if word in ("ties=first", "ties=value"):
                ties = cast(Ties, word.removeprefix("ties="))
            elif word in EXTRA_MEMBERS:
                extra.append(word)
            else:
                raise InputError(
                    f"tolerance policy {text!r}: unknown member {word!r}; use {', '.join(EXTRA_MEMBERS)}, ties=value"
                )
        if precision not in get_args(Precision):
            raise InputError(f"tolerance policy {text!r}: precision must be one of {', '.join(_ORDER)}")
        return cls(cast(Precision, precision), tuple(sorted(set(extra))), ties)

    def for_dtype(self, dtype: torch.dtype) -> Precision:
        """The precision in force for an entry of this dtype: half-precision inputs allow at least that much."""
        needed: Precision = {torch.float16: "fp16", torch.bfloat16: "bf16"}.get(dtype, "fp32")  # type: ignore[assignment]
        return max(self.precision, needed, key=_ORDER.index)

    def members(self, dtype: torch.dtype = torch.float32) -> tuple[str, ...]:
        """Names of the envelope's members for an entry of this dtype (see `emulate.MEMBERS`)."""
        return (*BASE_MEMBERS, *_PRECISION_MEMBERS[self.for_dtype(dtype)], *self.extra)

    def cap(self, dtype: torch.dtype = torch.float32) -> float:
        """The largest tolerance that an entry of this dtype may have and still be admitted."""
        return CAPS[self.for_dtype(dtype)]


def unit_roundoff(dtype: torch.dtype) -> float:
    """Unit roundoff u of an output dtype; that of float32 for everything that is not half precision."""
    return UNIT_ROUNDOFF.get(dtype, SINGLE)


def tolerance(n: int, envelope: float, out_dtype: torch.dtype) -> float:
    """`max(16*u_out, 2*u_compute*sqrt(n), 4*envelope)`.

    `u_compute` is the unit roundoff of the accumulator, float32 under every policy: what TF32 or half operands cost
    does not grow with sqrt(n), because output and error of a signed sum grow alike; it is in the envelope. (With the
    operands' unit roundoff in its place, on 395 entries of the same problems at smaller sizes, 240 instead of 366 were
    admitted under `tf32`, 231 instead of 355 under `fp16`, 154 instead of 322 under `bf16`.)

    Args:
        n: fan-in: how many input and parameter elements one output element depends on; counted up to 2^24.
        envelope: largest normalised error among the implementations that the policy calls correct.
        out_dtype: what the candidate must return.
    """
    return max(
        OUTPUT_FACTOR * unit_roundoff(out_dtype),
        FAN_IN_FACTOR * SINGLE * math.sqrt(min(max(1, n), FAN_IN_LIMIT)),
        ENVELOPE_FACTOR * envelope,
    )
