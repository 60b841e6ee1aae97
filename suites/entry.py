"""An entry: one recipe for a set of inputs. It never stores a tensor."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from .hashing import short, stable_hash

Constant = int | float | bool | str | None | tuple["Constant", ...]
DrawDevice = Literal["judge", "cpu"]
SeedPolicy = Literal["secret", "kernelbench"]


def _freeze(value: Any) -> Constant:
    if isinstance(value, (list, tuple)):
        return tuple(_freeze(v) for v in value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"an entry's parameters are literals, not {type(value).__name__}")


def _thaw(value: Constant) -> Any:
    return [_thaw(v) for v in value] if isinstance(value, tuple) else value


@dataclass(frozen=True, slots=True)
class Entry:
    """One recipe for a set of inputs.

    Attributes:
        generator: name in `generators.GENERATORS`; `own` is the problem's own `get_inputs`.
        params: the generator's parameters, sorted by name.
        dtype: torch dtype name that floating-point inputs are rounded to before truth is computed.
        scale: factor on floating-point inputs, after the generator.
        constants: changed module constants of the problem (so: other shapes), sorted by name; () = declared shape.
        seed_policy: `secret` (HMAC of the run key) or `kernelbench` (the stream that starts at 42).
        draw: which draw of that stream, so a protocol's five draws are five entries.
        skip: how many earlier `get_inputs` from the same seed are drawn and thrown away first (successive draws).
        draw_device: `judge` draws where the judge computes, `cpu` draws on the CPU and copies.
    """

    generator: str = "own"
    params: tuple[tuple[str, Constant], ...] = ()
    dtype: str = "float32"
    scale: float = 1.0
    constants: tuple[tuple[str, Constant], ...] = ()
    seed_policy: SeedPolicy = "secret"
    draw: int = 0
    skip: int = 0
    draw_device: DrawDevice = "judge"

    @classmethod
    def make(
        cls,
        generator: str = "own",
        *,
        params: Mapping[str, Any] | None = None,
        constants: Mapping[str, Any] | None = None,
        **rest: Any,
    ) -> Self:
        """Build an entry from plain mappings (lists become tuples, keys are sorted)."""
        return cls(
            generator=generator,
            params=tuple(sorted((k, _freeze(v)) for k, v in (params or {}).items())),
            constants=tuple(sorted((k, _freeze(v)) for k, v in (constants or {}).items())),
            **rest,
        )

    @property
    def id(self) -> str:
        """`<generator>-<12 hex digits>`: readable, and equal only for equal recipes."""
        return f"{self.generator}-{short(stable_hash(self.to_dict()))}"

    @property
    def declared_shape(self) -> bool:
        """Whether the problem's module constants are left as they are."""
        return not self.constants

    def to_dict(self) -> dict[str, Any]:
        """Plain values for YAML and JSON; fields at their default are left out."""
        full: dict[str, Any] = {
            "generator": self.generator,
            "params": {k: _thaw(v) for k, v in self.params},
            "dtype": self.dtype,
            "scale": self.scale,
            "constants": {k: _thaw(v) for k, v in self.constants},
            "seed_policy": self.seed_policy,
            "draw": self.draw,
            "skip": self.skip,
            "draw_device": self.draw_device,
        }
        default = type(self)()
        keep = {"generator"}
        for name in full:
            if name not in keep and getattr(self, name) != getattr(default, name):
                keep.add(name)
        return {k: v for k, v in full.items() if k in keep}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of `to_dict`.

        Raises:
            TypeError: an unknown field, or a parameter that is not a literal.
        """
        rest = dict(data)
        return cls.make(rest.pop("generator", "own"), **rest)
