"""Two faults in one kernel: pairs of sites whose members are likely to pass the official check on their own.

Which pairs are kept is decided later, by whether each member alone does pass. Here a sample is drawn, the same in every
run: sites are ordered by a hash of their edits.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from itertools import product

from ...mutant import Operator, Site
from ...triton import TritonTree
from . import boundary, model_error, precision, semantic
from .rules import Rules, body

rule = Rules("interaction")

PER_KERNEL = 6
"""Pairs per operator and candidate."""

_ROUNDED = (
    "triton-acc-fp16",
    "triton-constant-perturb",
    "triton-count-perturb",
    "triton-exp-rounded-base",
    "triton-load-fp16",
    "triton-reduce-fp16",
    "triton-store-fp16",
    "triton-store-nudge",
)
_QUIET = (
    "triton-epsilon-halved",
    "triton-epsilon-remove",
    "triton-relu-max-remove",
    "triton-relu-where-remove",
    "triton-sentinel-zero",
    "triton-softmax-max-subtraction-remove",
    "triton-variance-unbiased",
    "triton-variance-biased",
    "triton-clamp-lower-remove",
    "triton-abs-remove",
)
_EDGES = (
    "triton-bound-plus1",
    "triton-lt2le",
    "triton-mask-drop",
    "triton-other-value",
    "triton-store-mask-drop",
    "triton-tail-round-down",
    "triton-where-mask-drop",
)
_BY_NAME: dict[str, Operator] = {
    operator.name: operator for module in (boundary, model_error, precision, semantic) for operator in module.OPERATORS
}


def _key(*sites: Site) -> str:
    text = repr([(edit.start, edit.end, edit.text) for site in sites for edit in site.edits])
    return hashlib.sha256(text.encode()).hexdigest()


def _apart(first: Site, second: Site) -> bool:
    """Whether no edit of one overlaps or touches one of the other."""
    return all(a.end < b.start or b.end < a.start for a, b in product(first.edits, second.edits))


def _sites(tree: TritonTree, names: Iterable[str]) -> list[tuple[str, Site]]:
    return [(name, site) for name in names for site in _BY_NAME[name].sites(tree)]


def _pairs(tree: TritonTree, first: Iterable[str], second: Iterable[str]) -> Iterator[Site]:
    """The sample: pairs of sites of different operators that lie apart."""
    found: dict[frozenset[Site], tuple[Site, Site]] = {}
    for (one, a), (other, b) in product(_sites(tree, first), _sites(tree, second)):
        if one != other and _apart(a, b):
            found.setdefault(frozenset((a, b)), (min(a, b), max(a, b)))
    for a, b in sorted(found.values(), key=lambda pair: _key(*pair))[:PER_KERNEL]:
        yield Site(tuple(sorted((*a.edits, *b.edits))), a.line, f"{a.detail}; line {b.line}: {b.detail}")


def _pair_rule(name: str, summary: str, escapes: str, before: str, after: str) -> Callable[..., object]:
    return rule(name, summary, escapes, body(before, after))


@_pair_rule(
    "triton-pair-rounded",
    "Two losses of precision.",
    "Each is a tenth of the tolerance; they may cancel or add up.",
    "x = tl.load(x_ptr + i)\ntl.store(out_ptr + i, x)",
    "x = tl.load(x_ptr + i).to(tl.float16).to(tl.float32)\ntl.store(out_ptr + i, x * 0.9999)",
)
def _rounded_rounded(tree: TritonTree) -> Iterator[Site]:
    return _pairs(tree, _ROUNDED, _ROUNDED)


@_pair_rule(
    "triton-pair-rounded-quiet",
    "A loss of precision and a fault that uniform draws hide.",
    "Each passes alone.",
    "y = tl.maximum(x, 0.0)\ntl.store(out_ptr + i, y)",
    "y = x\ntl.store(out_ptr + i, y * 0.9999)",
)
def _rounded_quiet(tree: TritonTree) -> Iterator[Site]:
    return _pairs(tree, _ROUNDED, _QUIET)


@_pair_rule(
    "triton-pair-edge-quiet",
    "A wrong edge and a fault that uniform draws hide.",
    "Each passes alone; what is read beyond the edge may be what the other fault lets through.",
    "m = i <= N\nx = tl.load(x_ptr + i, mask=m, other=0.0)\ny = tl.maximum(x, 0.0)",
    "m = i <= N\nx = tl.load(x_ptr + i)\ny = x",
)
def _edge_quiet(tree: TritonTree) -> Iterator[Site]:
    return _pairs(tree, _EDGES, _QUIET)


@_pair_rule(
    "triton-pair-edges",
    "Two wrong edges.",
    "Shapes that fill all blocks hide both; the second may undo the first.",
    "x = tl.load(x_ptr + i, mask=m)\ntl.store(out_ptr + i, x, mask=m)",
    "x = tl.load(x_ptr + i)\ntl.store(out_ptr + i, x)",
)
def _edges(tree: TritonTree) -> Iterator[Site]:
    return _pairs(tree, _EDGES, _EDGES)


OPERATORS = tuple(rule.operators)
