"""A suite: the entries that one problem is judged with, their measured tolerances, and where they come from."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import yaml

from .entry import Entry
from .errors import InputError
from .hashing import stable_hash
from .protocol import read_entry
from .yamlnode import Node

if TYPE_CHECKING:
    from .problem import Problem
    from .validity import Measured

FORMAT = 1


@dataclass(frozen=True, slots=True)
class SuiteEntry:
    """An entry with what was measured about it.

    Attributes:
        entry: the recipe.
        measured: one measurement per device class.
        twin: id of the entry with the same recipe at the declared shape; None where this one is at that shape.
    """

    entry: Entry
    measured: "tuple[Measured, ...]" = ()
    twin: str | None = None

    def for_device(self, device_class: str) -> "Measured | None":
        """What was measured on that device class, if anything."""
        return next((m for m in self.measured if m.device_class == device_class), None)

    def with_measured(self, measured: "Measured") -> Self:
        """A copy that holds this measurement, in place of an older one for the same device class."""
        kept = tuple(m for m in self.measured if m.device_class != measured.device_class)
        return replace(self, measured=tuple(sorted((*kept, measured), key=lambda m: m.device_class)))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for YAML and for the suite's hash."""
        plain: dict[str, Any] = {"recipe": self.entry.to_dict()}
        if self.twin is not None:
            plain["twin"] = self.twin
        return plain | {"measured": [m.to_dict() for m in self.measured]}


@dataclass(frozen=True, slots=True)
class Suite:
    """The entries for one problem.

    Attributes:
        problem_id, problem_hash: the problem, and the hash of the source that the measurements belong to.
        entries: what runs, in order of selection (the judge executes the cheapest first).
        reserves: declared-shape twins that run only where an entry's changed shape was refused or failed.
        policy: name of the tolerance policy that the tolerances were computed under.
        calibrated: whether the entries were selected by the mutants that they kill.
        coverage: what a calibration measured (None until then).
        provenance: versions and settings that made it; no part of the hash.
    """

    problem_id: str
    problem_hash: str
    entries: tuple[SuiteEntry, ...]
    policy: str = "fp32"
    calibrated: bool = False
    coverage: Mapping[str, Any] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    reserves: tuple[SuiteEntry, ...] = ()

    @property
    def hash(self) -> str:
        """Content hash (64 hexadecimal digits) of everything that can change a verdict."""
        return stable_hash(
            {
                "problem": self.problem_hash,
                "policy": self.policy,
                "entries": [e.to_dict() for e in self.entries],
                "reserves": [e.to_dict() for e in self.reserves],
            }
        )

    def get(self, entry_id: str) -> SuiteEntry | None:
        """The entry or reserve with this id."""
        return next((e for e in (*self.entries, *self.reserves) if e.entry.id == entry_id), None)

    def twin_of(self, item: SuiteEntry) -> SuiteEntry | None:
        """The declared-shape twin of an entry; None where it is at the declared shape, or none was admitted."""
        return None if item.twin is None else self.get(item.twin)

    def to_yaml(self) -> str:
        """The suite as a YAML document."""
        plain = {
            "format": FORMAT,
            "problem": self.problem_id,
            "problem_hash": self.problem_hash,
            "policy": self.policy,
            "calibrated": self.calibrated,
            "coverage": None if self.coverage is None else dict(self.coverage),
            "entries": [e.to_dict() for e in self.entries],
            "reserves": [e.to_dict() for e in self.reserves],
            "provenance": dict(self.provenance),
        }
        return yaml.dump(
            plain, Dumper=_Dumper, sort_keys=False, width=118
        )  # other than ASCII is escaped: YAML folds NEL

    @classmethod
    def from_yaml(cls, text: str, where: str = "suite") -> Self:
        """Inverse of `to_yaml`.

        Raises:
            InputError: names file, line and key, and lists what is allowed.
        """
        top = Node.parse(text, where)
        allowed = {"format", "problem", "problem_hash", "policy", "calibrated", "coverage", "entries", "reserves"}
        keys = top.mapping(allowed | {"provenance"}, required=("format", "problem", "problem_hash", "entries"))
        if keys["format"].integer() != FORMAT:
            raise keys["format"].error(f"this version reads format {FORMAT}; build the suite again")
        digest = keys["problem_hash"].text()
        if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
            raise keys["problem_hash"].error("expected the 64 hexadecimal digits of the problem's SHA-256")
        entries = _read_suite_entries(keys["entries"])
        if not entries:
            raise keys["entries"].error("a suite needs at least one entry")
        suite = cls(
            problem_id=keys["problem"].text(),
            problem_hash=digest,
            entries=entries,
            policy=keys["policy"].text() if "policy" in keys else "fp32",
            calibrated=keys["calibrated"].flag() if "calibrated" in keys else False,
            coverage=_plain_mapping(keys.get("coverage")),
            provenance=_plain_mapping(keys.get("provenance")) or {},
            reserves=_read_suite_entries(keys["reserves"]) if "reserves" in keys else (),
        )
        suite._check_ids(keys)
        return suite

    def _check_ids(self, keys: Mapping[str, Node]) -> None:
        seen: set[str] = set()
        for name, group in (("entries", self.entries), ("reserves", self.reserves)):
            for i, item in enumerate(group):
                at = keys[name].items()[i]
                if item.entry.id in seen:
                    raise at.error(f"the same recipe twice ({item.entry.id})")
                seen.add(item.entry.id)
                twin = self.twin_of(item)
                if item.twin is not None and (twin is None or not twin.entry.declared_shape):
                    raise at.error(f"its twin {item.twin} is not a declared-shape entry of this suite")


class _Dumper(yaml.SafeDumper):
    """Lists of scalars on one line, so that a suite stays readable."""

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
        node = super().represent_sequence(tag, sequence, flow_style)
        if all(isinstance(child, yaml.ScalarNode) for child in node.value):
            node.flow_style = True
        return node

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_representer(tuple, lambda dumper, value: dumper.represent_list(list(value)))


def _plain_mapping(node: Node | None) -> dict[str, Any] | None:
    if node is None or node.plain() is None:
        return None
    node.mapping()
    return node.plain()


def _read_suite_entries(node: Node) -> tuple[SuiteEntry, ...]:
    items = []
    for child in node.items():
        keys = child.mapping({"recipe", "twin", "measured"}, required=("recipe",))
        measured = keys["measured"].items() if "measured" in keys else []
        items.append(
            SuiteEntry(
                entry=read_entry(keys["recipe"]),
                twin=keys["twin"].text() if "twin" in keys else None,
                measured=tuple(_read_measured(m) for m in measured),
            )
        )
    return tuple(items)


def _read_measured(node: Node) -> "Measured":
    from .validity import Measured  # here, so that reading a protocol or naming a suite does not import torch

    node.mapping()
    try:
        return Measured.from_dict(node.plain())
    except (TypeError, ValueError, KeyError) as error:
        raise node.error(f"not a measurement of this version ({error}); build the suite again") from error


def load_suite(path: str | Path) -> Suite:
    """Read a suite file.

    Raises:
        InputError: the file is missing or broken (file, line and key are named).
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise InputError(f"{path}: cannot read the suite: {error.strerror}") from error
    return Suite.from_yaml(text, str(path))


@functools.cache
def _library() -> dict[str, Traversable]:
    """Library files by the hash of their problem."""
    found: dict[str, Traversable] = {}
    library = resources.files(__package__) / "library"
    pending: list[Traversable] = [library] if library.is_dir() else []  # a checkout keeps no empty folder
    while pending:
        for item in pending.pop().iterdir():
            if item.is_dir():
                pending.append(item)
            elif item.name.endswith(".yaml"):
                for line in item.read_text(encoding="utf-8").splitlines()[:20]:
                    if line.startswith("problem_hash:"):
                        found[line.partition(":")[2].strip().strip("'\"")] = item
    return found


def find_suite(problem: "Problem") -> Suite | None:
    """The library's suite for this very source; None where there is none (a changed source has none)."""
    item = _library().get(problem.hash)
    return None if item is None else Suite.from_yaml(item.read_text(encoding="utf-8"), str(item))
