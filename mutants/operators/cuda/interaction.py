"""Two faults at once on CUDA, in one kernel, each of an operator whose faults tend to pass unnoticed alone.

Whether two faults hide or show each other cannot be seen in the source; what can be done is to sample pairs and to
keep those whose members each survive the official check. `pairs` says which mutants the members are.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise

from ...cuda import CudaTree
from ...cuda_syntax import Node
from ...mutant import Edit, Example, Operator, Site
from . import boundary, memory, model_error, pipeline, precision, semantic, synchronization, tensor_core

PAIRS = 10
"""Pairs per candidate."""
PER_OPERATOR = 2
"""Pairs per candidate that one operator takes part in."""

# Their single faults are what the literature finds to survive: small errors, remainders that declared shapes do not
# have, orders of threads that rarely happen, values that random inputs rarely take.
_SURVIVORS = frozenset(
    (
        *(operator.name for operator in (*precision.OPERATORS, *synchronization.OPERATORS, *pipeline.OPERATORS)),
        *("ceil2floor", "guard-drop-if", "guard-conjunct-drop", "guard-drop-ternary", "return-guard-drop"),
        *("guard-minus1", "loop-bound-minus1", "tile-last-iteration-skip", "last-block-skip", "strided-tail-drop"),
        *("bound-swap", "reduce-seed-first-element", "sentinel-zero", "relu-threshold-shift", "upper-clamp-remove"),
        *("lower-clamp-remove", "positive-cutoff-nudge", "argmax-tie-last", "argmin-tie-last"),
        *("vector-tail-drop", "vector-divisibility-assumed", "vector-count-ceil", "accumulator-unset"),
        *("operand-tf32", "operand-bf16", "mma-term-drop", "tf32-rounding-drop"),
        *("epsilon-outside-sqrt", "variance-biased", "padding-value-zero", "bias-drop", "affine-weight-drop"),
    )
)
MEMBERS: tuple[Operator, ...] = tuple(
    operator
    for module in (boundary, memory, model_error, pipeline, precision, semantic, synchronization, tensor_core)
    for operator in module.OPERATORS
    if operator.name in _SURVIVORS
)
"""Operators whose sites are paired."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two faults in one kernel: the operators' names and their sites, ascending by name."""

    names: tuple[str, str]
    sites: tuple[Site, Site]

    @property
    def rank(self) -> str:
        """A number that has nothing to do with the code: pairs are sampled by it."""
        text = "\n".join(f"{name} {site.edits}" for name, site in zip(self.names, self.sites, strict=True))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def site(self) -> Site:
        """Both faults as one."""
        edits = tuple(sorted(edit for site in self.sites for edit in site.edits))
        details = (f"{name}: {site.detail}" for name, site in zip(self.names, self.sites, strict=True))
        return Site(edits, min(site.line for site in self.sites), " and ".join(details))


def pairs(tree: CudaTree, members: Iterable[Operator] = MEMBERS) -> tuple[Pair, ...]:
    """The sampled pairs of a candidate: at most `PAIRS`, of different operators, in the same kernel, not overlapping.

    Each pair of operators is taken once, so that the sample is not one kind of fault over and over.
    """
    kernels = [_extent(function.node) for function in tree.kernels]
    places: list[tuple[str, Site, int]] = []
    for operator in members:
        for site in operator.sites(tree):
            around = [index for index, (start, end) in enumerate(kernels) if _inside(site.edits, start, end)]
            places += [(operator.name, site, index) for index in around]
    found = [
        Pair((first[0], second[0]), (first[1], second[1]))
        for first, second in combinations(sorted(places, key=lambda place: (place[0], place[1])), 2)
        if first[0] != second[0] and first[2] == second[2] and _apart(first[1], second[1])
    ]
    chosen: list[Pair] = []
    seen: set[tuple[str, str]] = set()
    uses: Counter[str] = Counter()
    for pair in sorted(found, key=lambda pair: pair.rank):
        if pair.names not in seen and all(uses[name] < PER_OPERATOR for name in pair.names):
            seen.add(pair.names)
            uses.update(pair.names)
            chosen.append(pair)
        if len(chosen) == PAIRS:
            break
    return tuple(chosen)


def _extent(node: Node) -> tuple[int, int]:
    """A node's place in the candidate's file."""
    known = [place for place in node.home.starts[node.start : node.end] if place >= 0]
    return (min(known), max(known) + 1) if known else (0, 0)


def _inside(edits: tuple[Edit, ...], start: int, end: int) -> bool:
    """Whether the edits lie in a kernel; the headers that they need do not."""
    return all(edit.text.startswith("#include") or (start <= edit.start and edit.end <= end) for edit in edits)


def _apart(first: Site, second: Site) -> bool:
    """Whether two sites neither overlap nor touch."""
    edits = sorted((*first.edits, *second.edits))
    return all(one.end < two.start for one, two in pairwise(edits))


def _find(tree: CudaTree) -> Iterator[Site | None]:
    return (pair.site for pair in pairs(tree))


_BEFORE = "__global__ void k(float* y, int n, float v) { if (i < n) y[i] = fmaxf(v, 0.0f); }"
_AFTER = (
    "#include <cuda_fp16.h>\n"
    "__global__ void k(float* y, int n, float v) { if (true) y[i] = __half2float(__float2half(fmaxf(v, 0.0f))); }"
)

OPERATORS: tuple[Operator, ...] = (
    Operator(
        "interaction-pair",
        "interaction",
        "cuda",
        "Two faults in one kernel, of two operators.",
        "Each alone passes the official check; together one may hide where the other would show.",
        (Example(_BEFORE, _AFTER),),
        _find,
    ),
)
