"""Running a torch operator with the arguments of its C++ signature.

C++ and Python differ: in C++ keyword-only arguments are positional, dtype and device come packed as `TensorOptions`,
one integer stands for a list. The ATen schema says what each position means, so the call is bound against the schemas
of the operator's overloads, as the C++ compiler would.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as functional


@dataclass(frozen=True, slots=True)
class Options:
    """`TensorOptions`: what is unset is None. `device` is what torch is given, `place` what the extension asked for."""

    dtype: torch.dtype | None
    device: str | None
    place: str | None = None


FRESH = frozenset(("empty", "empty_like", "empty_strided", "new_empty"))
"""Operators that return memory nobody has written."""

_NUMBERS = (int, float, bool)


def _accepts(kind: str, value: Any) -> bool:
    optional = kind.startswith("Optional[")
    if optional:
        kind = kind[len("Optional[") : -1]
    if value is None:
        return optional
    if isinstance(value, torch.Tensor):
        return kind == "Tensor"
    if isinstance(value, bool):
        return kind in ("bool", "number", "Scalar", "int", "float")
    if isinstance(value, int):
        return kind in ("int", "SymInt", "number", "Scalar", "float", "List[int]", "List[SymInt]", "bool")
    if isinstance(value, float):
        return kind in ("float", "number", "Scalar")
    if isinstance(value, str):
        return kind == "str"
    if isinstance(value, torch.dtype):
        return kind == "ScalarType"
    if isinstance(value, torch.memory_format):
        return kind == "MemoryFormat"
    if isinstance(value, (list, tuple)):
        if all(isinstance(item, torch.Tensor) or item is None for item in value) and value:
            return kind in ("List[Tensor]", "List[Optional[Tensor]]")
        if all(isinstance(item, _NUMBERS) for item in value):
            return kind in ("List[int]", "List[SymInt]", "List[float]", "List[bool]") or not value
    return False


_NAMED = {"dtype": torch.dtype, "memory_format": torch.memory_format}


def _kind(argument: Any) -> str:
    """What an argument is in C++, where no number becomes a dtype; the schema's plain type calls those `int`."""
    real = str(argument.real_type)
    return real if any(name in real for name in ("ScalarType", "MemoryFormat", "Layout")) else str(argument.type)


def _bind(arguments: Sequence[Any], values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]] | None:
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    names = {argument.name for argument in arguments}
    index = 0
    for value in values:
        if isinstance(value, Options):
            for name, part in (("dtype", value.dtype), ("device", value.device)):
                if part is not None:
                    if name not in names:
                        return None
                    keywords[name] = part
            continue
        # A dtype or memory format stands for TensorOptions or sits behind arguments that C++ leaves at their default.
        for name, kind in _NAMED.items():
            if isinstance(value, kind) and not (index < len(arguments) and arguments[index].name == name):
                if name not in names or name in keywords:
                    return None
                keywords[name] = value
                break
        else:
            if index >= len(arguments):
                return None
            argument = arguments[index]
            if value is None and str(argument.type).startswith("List["):
                value = []  # C++ writes {} for an empty list, and for an absent value
            if not _accepts(_kind(argument), value):
                return None
            if str(argument.type).startswith(("List[int]", "Optional[List[int]")) and isinstance(value, int):
                value = [value] * (argument.N or 1)
            if argument.kwarg_only:
                keywords[argument.name] = value
            else:
                positional.append(value)
            index += 1
    missing = [a for a in arguments[index:] if not a.has_default_value() and a.name not in keywords]
    return None if missing else (positional, keywords)


@cache
def _overloads(name: str) -> tuple[tuple[Any, tuple[Any, ...]], ...]:
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return ()
    found = []
    for overload in packet.overloads():
        operator = getattr(packet, overload)
        arguments = tuple(operator._schema.arguments)
        if "out" in overload or any(str(a.type).startswith("Dimname") for a in arguments):
            continue
        found.append((operator, arguments))
    return tuple(found)


def _find(name: str, values: Sequence[Any]) -> Callable[[], Any] | None:
    for operator, arguments in _overloads(name):
        bound = _bind(arguments, values)
        if bound is not None:
            return partial(operator, *bound[0], **bound[1])
    return None


def run(name: str, values: Sequence[Any]) -> Any:
    """Run the operator `name` (a method where it begins with a dot).

    Raises:
        TypeError: no overload takes these arguments.
        Exception: whatever the operator raises.
    """
    bare = name.lstrip(".")
    special = _SPECIAL.get(bare)
    if special is not None:
        return special(*values)
    call = _find(bare, values)
    if call is not None:
        return call()
    plain = [v for v in values if not isinstance(v, Options)]
    if name.startswith("."):
        return getattr(plain[0], bare)(*plain[1:])
    function = getattr(torch, bare, None) or getattr(functional, bare, None)
    if function is None:
        raise TypeError(f"torch has no operator {bare}")
    return function(*plain)


def _to(tensor: torch.Tensor, *rest: Any) -> torch.Tensor:
    dtype = next((v for v in rest if isinstance(v, torch.dtype)), None)
    copy = False
    for value in rest:
        if isinstance(value, Options):
            dtype = value.dtype or dtype
        elif isinstance(value, torch.Tensor):
            dtype = value.dtype
    flags = [v for v in rest if isinstance(v, bool)]
    if len(flags) == 2:
        copy = flags[1]
    return tensor.to(dtype or tensor.dtype, copy=copy)


def _set_item(tensor: torch.Tensor, where: Any, value: Any) -> None:
    tensor[tuple(where) if isinstance(where, list) else where] = value


def _get_item(tensor: torch.Tensor, where: Any) -> torch.Tensor:
    return tensor[tuple(where) if isinstance(where, list) else where]


def _contiguous(tensor: torch.Tensor, layout: torch.memory_format = torch.contiguous_format) -> torch.Tensor:
    return tensor.contiguous(memory_format=layout)


def _einsum(equation: str, tensors: list[torch.Tensor], *_: Any) -> torch.Tensor:
    return torch.einsum(equation, tensors)


def _convolution(
    input: torch.Tensor, weight: torch.Tensor, padding: Any, stride: Any, dilation: Any, groups: int, *_: Any
) -> torch.Tensor:
    """`cudnn_convolution`: exact here, and without a bias."""
    zeros = [0] * len(padding)
    return torch.ops.aten.convolution(input, weight, None, stride, padding, dilation, False, zeros, groups)


_SPECIAL: dict[str, Callable[..., Any]] = {
    "to": _to,
    "__getitem__": _get_item,
    "__setitem__": _set_item,
    "contiguous": _contiguous,
    "einsum": _einsum,
    "cudnn_convolution": _convolution,
    "storage_offset": lambda tensor: tensor.storage_offset(),
    "item": lambda tensor: tensor.item(),
}
