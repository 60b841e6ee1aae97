"""Protocols as data: which inputs, which tolerance and which procedure make up a whole checker."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Self, cast, get_args

from .. import configs
from .entry import Entry
from .errors import InputError
from .hashing import stable_hash
from .yamlnode import Node

Order = Literal["candidate-first", "reference-first"]
Rng = Literal["reset", "continue"]
DEFAULT_PROTOCOL = "kernelward"
HALF_TYPES = ("float16", "bfloat16")
_DTYPES = ("float32", *HALF_TYPES)


@dataclass(frozen=True, slots=True)
class AllClose:
    """torch.allclose(reference, candidate, atol, rtol) against the reference's own output, not against truth.

    Attributes:
        atol, rtol: bounds at float32; the relative one scales with the candidate's value, as in torch.
        half: atol = rtol at float16 and bfloat16; None = as at float32.
    """

    atol: float
    rtol: float
    half: float | None = None

    def bounds(self, dtype: str) -> tuple[float, float]:
        """(atol, rtol) for an entry of this dtype."""
        if self.half is not None and dtype in HALF_TYPES:
            return self.half, self.half
        return self.atol, self.rtol


@dataclass(frozen=True, slots=True)
class ProtocolSpec:
    """A whole checker. The defaults are those of `kernelward`; the YAML of each official protocol states its own.

    Attributes:
        entries: the inputs, or `suite`: those of the problem's suite.
        comparison: `truth` (float64, `compare.py`), or torch.allclose against the reference's output.
        order: who runs first.
        matmul_tf32, cudnn_tf32: the flags while the reference and the candidate run (torch's default: false, true).
        rng: `reset` seeds the generators again between the two forwards; `continue` does not (so dropout differs).
        cast_integers: cast integer inputs to the entry's dtype too, as newer KernelBench does.
        skip_nonfinite: leave out an entry whose reference output holds NaN or Inf, or whose reference raises.
        check_inputs: inputs must be unchanged afterwards.
        repeat: run the deciding entry once more on fresh buffers with another poison.
        adversarial: emulators use several schedules, poisons and guards; false = plainly, as a GPU would run.
    """

    name: str
    entries: tuple[Entry, ...] | Literal["suite"] = "suite"
    comparison: Literal["truth"] | AllClose = "truth"
    order: Order = "candidate-first"
    matmul_tf32: bool = False
    cudnn_tf32: bool = False
    rng: Rng = "reset"
    cast_integers: bool = False
    skip_nonfinite: bool = False
    check_inputs: bool = True
    repeat: bool = True
    adversarial: bool = True
    description: str = ""

    @property
    def uses_suite(self) -> bool:
        """Whether the inputs come from the problem's suite."""
        return self.entries == "suite"

    @property
    def flags(self) -> dict[str, bool]:
        """torch's TF32 switches, by name, for the process that runs the candidate."""
        return {"matmul_tf32": self.matmul_tf32, "cudnn_tf32": self.cudnn_tf32}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, every field but the description."""
        entries = self.entries if self.entries == "suite" else [e.to_dict() for e in self.entries]
        comparison: Any = self.comparison
        if isinstance(comparison, AllClose):
            comparison = {"allclose": {"atol": comparison.atol, "rtol": comparison.rtol, "half": comparison.half}}
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "description"}
        return plain | {"entries": entries, "comparison": comparison}

    @property
    def hash(self) -> str:
        """Content hash (64 hexadecimal digits) of everything that can change a verdict; the name is not part of it."""
        return stable_hash({k: v for k, v in self.to_dict().items() if k != "name"})

    @classmethod
    def from_node(cls, node: Node) -> Self:
        """Read a protocol from YAML.

        Raises:
            InputError: names file, line and key, and lists what is allowed.
        """
        allowed = {f.name for f in fields(cls)} | {"entry_defaults"}
        top = node.mapping(allowed, required=("name", "entries", "comparison"))
        values: dict[str, Any] = {"name": top["name"].text(), "comparison": _read_comparison(top["comparison"])}
        values["entries"] = _read_entries(top["entries"], top.get("entry_defaults"))
        if "order" in top:
            values["order"] = top["order"].choice(get_args(Order))
        if "rng" in top:
            values["rng"] = top["rng"].choice(get_args(Rng))
        if "description" in top:
            values["description"] = " ".join(top["description"].text().split())
        for name in (
            "matmul_tf32",
            "cudnn_tf32",
            "cast_integers",
            "skip_nonfinite",
            "check_inputs",
            "repeat",
            "adversarial",
        ):
            if name in top:
                values[name] = top[name].flag()
        return cls(**values)


def _read_comparison(node: Node) -> Literal["truth"] | AllClose:
    if node.is_text():
        return cast(Literal["truth"], node.choice(["truth"]))
    inner = node.mapping({"allclose"}, required=("allclose",))["allclose"]
    bounds = inner.mapping({"atol", "rtol", "half"}, required=("atol", "rtol"))
    half = bounds.get("half")
    return AllClose(
        atol=bounds["atol"].number(minimum=0),
        rtol=bounds["rtol"].number(minimum=0),
        half=None if half is None or half.plain() is None else half.number(minimum=0),
    )


def _read_entries(node: Node, defaults: Node | None) -> tuple[Entry, ...] | Literal["suite"]:
    if node.is_text():
        if defaults is not None:
            raise defaults.error("only for protocols that list their entries; a suite's entries state their own")
        return cast(Literal["suite"], node.choice(["suite"]))
    shared = read_entry_fields(defaults) if defaults is not None else {}
    entries = tuple(read_entry(child, shared) for child in node.items())
    if not entries:
        raise node.error("give at least one entry, or the word `suite`")
    return entries


def read_entry_fields(node: Node) -> dict[str, Any]:
    """The fields of an entry that a YAML mapping gives, checked.

    Raises:
        InputError: names file, line and key.
    """
    values: dict[str, Any] = {}
    for name, child in node.mapping({f.name for f in fields(Entry)}).items():
        match name:
            case "params" | "constants":
                values[name] = {key: value.plain() for key, value in child.mapping().items()}
            case "draw" | "skip":
                values[name] = child.integer(minimum=0)
            case "scale":
                values[name] = child.number()
            case "dtype":
                values[name] = child.choice(_DTYPES)
            case "seed_policy":
                values[name] = child.choice(["secret", "kernelbench"])
            case "draw_device":
                values[name] = child.choice(["judge", "cpu"])
            case _:
                values[name] = child.text()
    return values


def read_entry(node: Node, defaults: Mapping[str, Any] | None = None) -> Entry:
    """One entry from YAML, over defaults from `read_entry_fields`.

    Raises:
        InputError: names file, line and key.
    """
    try:
        return Entry.make(**{**(defaults or {}), **read_entry_fields(node)})
    except TypeError as error:
        raise node.error(str(error)) from error


def list_protocols() -> list[str]:
    """Names of the protocols that come with the package, the default one first."""
    folder = resources.files(configs) / "protocols"
    names = sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))
    return sorted(names, key=lambda name: name != DEFAULT_PROTOCOL)


@functools.cache
def _packaged(name: str) -> ProtocolSpec:
    resource = resources.files(configs) / "protocols" / f"{name}.yaml"
    return ProtocolSpec.from_node(Node.parse(resource.read_text(encoding="utf-8"), str(resource)))


def load_protocol(ref: str | Path) -> ProtocolSpec:
    """A protocol by name (see `list_protocols`) or by the path of a YAML file.

    Raises:
        InputError: no such protocol (the message lists them), or a fault in the file (with its line).
    """
    text = str(ref)
    if text in list_protocols():
        return _packaged(text)
    path = Path(text)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return ProtocolSpec.from_node(Node.read(path))
    raise InputError(
        f"unknown protocol {text!r}. Known: {', '.join(list_protocols())}; or give the path of a YAML file (.yaml)"
    )
