"""Dispatch modes that truth is computed under: everything in float64, and a note of what indices point into."""

from collections import deque
from collections.abc import Iterator
from dataclasses import is_dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from .compare import Selection, Ties

aten = torch.ops.aten


class OpMode(TorchDispatchMode):
    """A dispatch mode for eager runs only: without the compiler, whose import would cost seconds at the first op."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class Widen(OpMode):
    """Runs every floating-point operation in float64, also behind explicit casts and float32 constants.

    A reference in the style of `x.to(torch.float32)` would otherwise compute its "float64" truth in float32.
    """

    _NARROW = (torch.float32, torch.float16, torch.bfloat16)
    _FACTORIES = frozenset(
        {
            aten.zeros.default,
            aten.ones.default,
            aten.empty.memory_format,
            aten.rand.default,
            aten.randn.default,
            aten.eye.default,
            aten.eye.m,
            aten.linspace.default,
        }
    )

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") in self._NARROW or (func in self._FACTORIES and kwargs.get("dtype") is None):
            kwargs["dtype"] = torch.float64
        if not func._schema.is_mutable:
            args, kwargs = tree_map(self._widened, (args, kwargs))
        return func(*args, **kwargs)

    def _widened(self, value: Any) -> Any:
        return value.double() if isinstance(value, Tensor) and value.dtype in self._NARROW else value


def in_float64(model: nn.Module) -> nn.Module:
    """The model itself, its floating-point state as float64: parameters, buffers, and tensors in plain attributes.

    `nn.Module.double` leaves the last alone (an initial hidden state, say), and what is then written into them in place
    is rounded to float32. Each tensor stays the object that it is, and what shared memory shares it still: a cache and
    a view of it, a parameter that is in a list as well. Reached is what hangs on modules, lists, tuples, sets, dicts,
    dataclasses and namespaces; complex numbers stay as they are.
    """
    storages: dict[tuple[int, torch.dtype], Tensor] = {}
    with torch.no_grad():
        for t in _tensors_of(model):
            if t.is_floating_point() and t.dtype != torch.float64 and t.layout == torch.strided and t.numel():
                key = t.untyped_storage().data_ptr(), t.dtype
                if key not in storages:
                    flat = torch.empty(0, dtype=t.dtype, device=t.device).set_(t.untyped_storage())
                    storages[key] = flat.double()
                t.data = storages[key].as_strided(t.size(), t.stride(), t.storage_offset())
    return model.double()  # what is left, and what a module does of its own then


def _tensors_of(root: object) -> Iterator[Tensor]:
    waiting, seen = [root], set[int]()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, (list, tuple, set, frozenset, deque)):
            waiting += value
        elif isinstance(value, (nn.Module, SimpleNamespace)) or (is_dataclass(value) and hasattr(value, "__dict__")):
            waiting += vars(value).values()


class IndexWatch(OpMode):
    """Remembers what the index outputs of a forward point into, so that they can be compared by value."""

    _BY_VALUE = frozenset(
        {
            aten.topk.default,
            aten.sort.default,
            aten.sort.stable,
            aten.kthvalue.default,
            aten.mode.default,
            aten.median.dim,
            aten.nanmedian.dim,
        }
    )
    _FIRST = frozenset({aten.argmax.default, aten.argmin.default, aten.max.dim, aten.min.dim})

    def __init__(self, ties: Ties) -> None:
        super().__init__()
        self._watched = self._BY_VALUE | (self._FIRST if ties == "value" else frozenset())
        self._seen: list[tuple[Tensor, Selection]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func in self._watched:
            bound = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
            values: Tensor = bound["self"]
            dim = bound.get("dim", None if func in self._FIRST else -1)
            if dim is None or values.dim() == 0:
                values, dim = values.reshape(-1), 0
            indices = result if isinstance(result, Tensor) else result[1]
            self._seen.append((indices, Selection(values.detach().double(), dim % values.dim())))
        return result

    def selection(self, output: Tensor) -> Selection | None:
        """What an output points into: one that shares its memory with a watched result, not reshaped beyond that."""
        for indices, selection in self._seen:
            same = output.untyped_storage().data_ptr() == indices.untyped_storage().data_ptr()
            if same and output.numel() == indices.numel() and output.dim() in (indices.dim(), indices.dim() - 1):
                return selection
        return None
