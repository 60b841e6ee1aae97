"""The values of mutation, substrates, edits, sites, operators and mutants, and `generate`, which makes the last.

A site is a set of edits of the candidate's own Python file, so a mutant is shown, stored and judged like any other
candidate. Nothing here runs code.
"""

import difflib
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

FAMILIES: tuple[str, ...] = (
    "arithmetic",
    "indexing",
    "semantic",
    "boundary",
    "synchronization",
    "precision",
    "tensor-core",
    "pipeline",
    "memory",
    "model-error",
    "interaction",
)
"""Families of operators: six that the literature measures, then what it leaves out."""

Backend = Literal["cuda", "triton", "torch"]
"""Language of a kernel. Of `torch`, which only kernels of a policy are in, no mutants are made."""


class Tree(Protocol):
    """What an operator searches: a candidate's source and whatever its language's tree offers beside."""

    @property
    def source(self) -> str:
        """Text of the candidate's Python file; every edit's offsets refer to it."""
        ...


@dataclass(frozen=True)
class Substrate:
    """A correct kernel that mutants are made from.

    Attributes:
        name: `cuda/softmax__warp`.
        problem: what it solves, a name that `find_problem` accepts.
        backend: its language.
        style: `naive`, `tiled`, `warp`, ...
        source: text of a file that defines `ModelNew`.
        path: where it was read from; None where it has no file.
    """

    name: str
    problem: str
    backend: Backend
    style: str
    source: str
    path: Path | None = None

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the source, hexadecimal."""
        return hashlib.sha256(self.source.encode()).hexdigest()


@dataclass(frozen=True, slots=True, order=True)
class Edit:
    """Replace the characters `start:end` of the candidate's file by `text`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True, order=True)
class Site:
    """One place where an operator applies.

    Attributes:
        edits: ascending, not overlapping.
        line: of the candidate's file, from 1.
        detail: what changes, for people: "`<` -> `<=` in `i < n`".
    """

    edits: tuple[Edit, ...]
    line: int
    detail: str


@dataclass(frozen=True, slots=True)
class Example:
    """A smallest snippet and what the operator makes of its only (or first) site: documentation that is tested."""

    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Operator:
    """A kind of fault.

    Attributes:
        name: the literature's where it has one; unique over both backends.
        family: one of `FAMILIES`.
        backend: language it works on.
        summary: what it changes.
        escapes: why a checker may miss it.
        examples: see `Example`.
        find: yields the sites in a tree of the backend; a None among them is a place that cannot be edited.
    """

    name: str
    family: str
    backend: Backend
    summary: str
    escapes: str
    examples: tuple[Example, ...]
    find: Callable[[Any], Iterable[Site | None]]

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(f"operator {self.name}: {self.family!r} is not one of {', '.join(FAMILIES)}")

    def sites(self, tree: Tree) -> tuple[Site, ...]:
        """Where the operator applies, ascending, without repetition."""
        by_edits: dict[tuple[Edit, ...], Site] = {}
        for site in self.find(tree):
            if site is not None:
                by_edits.setdefault(site.edits, site)
        return tuple(by_edits[edits] for edits in sorted(by_edits))

    def apply(self, tree: Tree, site: Site) -> str:
        """The candidate's whole source with the fault."""
        return apply_edits(tree.source, site.edits)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A substrate with one fault.

    Attributes:
        id: 16 hexadecimal digits, a hash of substrate, operator and edits: equal in every run.
        substrate, substrate_hash, problem, backend: of the substrate.
        operator, family, line, detail: of the fault.
        source: the whole candidate.
    """

    id: str
    substrate: str
    substrate_hash: str
    problem: str
    backend: Backend
    operator: str
    family: str
    line: int
    detail: str
    source: str

    def diff(self, original: str) -> str:
        """Unified diff from the substrate's source to the mutant's."""
        lines = difflib.unified_diff(
            original.splitlines(keepends=True),
            self.source.splitlines(keepends=True),
            fromfile=self.substrate,
            tofile=f"{self.substrate} with {self.operator} ({self.id})",
        )
        return "".join(line if line.endswith("\n") else line + "\n" for line in lines)


def apply_edits(source: str, edits: Iterable[Edit]) -> str:
    """`source` after all edits.

    Raises:
        ValueError: edits overlap or lie outside the text.
    """
    pieces: list[str] = []
    position = 0
    for edit in sorted(edits):
        if not position <= edit.start <= edit.end <= len(source):
            raise ValueError(
                f"edit {edit.start}:{edit.end} overlaps another or lies outside of {len(source)} characters"
            )
        pieces += (source[position : edit.start], edit.text)
        position = edit.end
    return "".join((*pieces, source[position:]))


def mutant_id(substrate_hash: str, operator: str, edits: Iterable[Edit]) -> str:
    """The id of a mutant: 16 hexadecimal digits."""
    key = json.dumps([substrate_hash, operator, [[edit.start, edit.end, edit.text] for edit in edits]])
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def parse_tree(source: str, backend: Backend) -> Tree:
    """The tree that operators of `backend` search.

    Raises:
        ValueError: `source` is not Python.
    """
    # Here, not above: the trees are built from the values of this module.
    if backend == "cuda":
        from .cuda import CudaTree

        return CudaTree(source)
    from .triton import TritonTree

    return TritonTree(source)


def generate(substrate: Substrate, operators: Iterable[Operator] | None = None) -> list[Mutant]:
    """All mutants of a substrate, operator by operator, site by site.

    Of several with the same text the first is kept; one with the substrate's own text is none.

    Args:
        operators: those to apply; all of the backend's by default.

    Raises:
        ValueError: the substrate is not Python.
    """
    if operators is None:
        from .operators import operators_for

        operators = operators_for(substrate.backend)
    tree = parse_tree(substrate.source, substrate.backend)
    seen = {substrate.source}
    mutants: list[Mutant] = []
    for operator in operators:
        for site in operator.sites(tree):
            text = operator.apply(tree, site)
            if text in seen:
                continue
            seen.add(text)
            mutants.append(
                Mutant(
                    id=mutant_id(substrate.hash, operator.name, site.edits),
                    substrate=substrate.name,
                    substrate_hash=substrate.hash,
                    problem=substrate.problem,
                    backend=substrate.backend,
                    operator=operator.name,
                    family=operator.family,
                    line=site.line,
                    detail=site.detail,
                    source=text,
                )
            )
    return mutants
