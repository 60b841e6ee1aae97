"""All mutation operators, gathered from the modules of each backend.

A module under `cuda/` or `triton/` defines `OPERATORS`, a tuple of `Operator`, and, where one of its rules stands for
several of the literature's, `REPLACES`, a mapping from its rule's name to theirs.
"""

import importlib
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType, ModuleType

from ..mutant import FAMILIES, Backend, Operator


def _modules() -> Iterator[ModuleType]:
    for backend in pkgutil.iter_modules(__path__):
        if backend.ispkg:
            package = importlib.import_module(f".{backend.name}", __name__)
            for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda found: found.name):
                yield importlib.import_module(f".{module.name}", package.__name__)


def _gather() -> tuple[dict[str, Operator], dict[str, tuple[str, ...]]]:
    operators: dict[str, Operator] = {}
    replaces: dict[str, tuple[str, ...]] = {}
    for module in _modules():
        for operator in getattr(module, "OPERATORS", ()):
            if operators.setdefault(operator.name, operator) is not operator:
                raise ValueError(f"two operators are named {operator.name}")
        replaces |= getattr(module, "REPLACES", {})
    ordered = sorted(operators.values(), key=lambda operator: FAMILIES.index(operator.family))
    return {operator.name: operator for operator in ordered}, replaces


_OPERATORS, _REPLACES = _gather()

OPERATORS: Mapping[str, Operator] = MappingProxyType(_OPERATORS)
"""Every operator by name, family by family."""

REPLACES: Mapping[str, tuple[str, ...]] = MappingProxyType(_REPLACES)
"""Which rules of the literature an operator stands for, beside the one that it is named after."""


def operators_for(backend: Backend, families: Iterable[str] | None = None) -> tuple[Operator, ...]:
    """Operators of a backend, of all families by default.

    Raises:
        ValueError: an unknown family.
    """
    wanted = FAMILIES if families is None else tuple(families)
    for family in wanted:
        if family not in FAMILIES:
            raise ValueError(f"{family!r} is no family of operators; there are {', '.join(FAMILIES)}")
    return tuple(
        operator for operator in OPERATORS.values() if operator.backend == backend and operator.family in wanted
    )
