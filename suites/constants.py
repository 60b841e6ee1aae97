"""Module constants of a problem file: read them, and replace them without moving a line.

Most KernelBench shapes are module constants (`batch_size = 64`), some of them computed from others (`M = 256 * 8`,
`groups = in_channels`), assigned in tuples (`D, H, W = 24, 32, 32`) or twice. A changed constant therefore becomes an
extra assignment right behind every statement that binds it, on the same line: constants computed from it follow, and
line numbers in tracebacks stay those of the file.
"""

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .errors import InputError
from .python_syntax import parse

_MAX_POWER = 64  # an exponent beyond this is no shape; refusing it keeps a typo from filling the memory
_MAX_REPEAT = 4096

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.Invert: operator.invert,
}
_CALLS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "float": float,
    "int": int,
    "len": len,
    "list": list,
    "max": max,
    "min": min,
    "sum": sum,
    "tuple": tuple,
}


class _NotLiteral(Exception):
    """The expression is not built from literals and known constants."""


def _evaluate(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Value of an expression of literals, known names and arithmetic; raises `_NotLiteral` for anything else."""
    match node:
        case ast.Constant(value=value) if isinstance(value, (bool, int, float, str)) or value is None:
            return value
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.Tuple(elts=elements):
            return tuple(_elements(elements, names))
        case ast.List(elts=elements):
            return list(_elements(elements, names))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_evaluate(operand, names))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            a, b = _evaluate(left, names), _evaluate(right, names)
            _check_size(op, a, b)
            return _BINARY[type(op)](a, b)
        case ast.Subscript(value=value, slice=index):
            return _evaluate(value, names)[_evaluate(index, names)]
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _CALLS and name not in names:
            return _CALLS[name](*_elements(args, names))
    raise _NotLiteral


def _elements(nodes: list[ast.expr], names: Mapping[str, Any]) -> Iterator[Any]:
    for node in nodes:
        if isinstance(node, ast.Starred):
            yield from _evaluate(node.value, names)
        else:
            yield _evaluate(node, names)


def _check_size(op: ast.operator, a: Any, b: Any) -> None:
    if isinstance(op, (ast.Pow, ast.LShift)) and abs(b) > _MAX_POWER:
        raise _NotLiteral
    if isinstance(op, ast.Mult):
        for sequence, count in ((a, b), (b, a)):
            if isinstance(sequence, (str, tuple, list)) and len(sequence) * count > _MAX_REPEAT:
                raise _NotLiteral


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(_is_plain(v) for v in value)
    return value is None or isinstance(value, (bool, int, float, str))


def _bind(target: ast.expr, value: Any) -> Iterator[tuple[str, Any]]:
    """Names that an assignment target binds, with their values; raises `_NotLiteral` where it cannot be told."""
    match target:
        case ast.Name(id=name):
            yield name, value
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            if not isinstance(value, (tuple, list)) or len(value) != len(elements):
                raise _NotLiteral
            for element, part in zip(elements, value, strict=True):
                yield from _bind(element, part)
        case ast.Attribute() | ast.Subscript():
            return
        case _:
            raise _NotLiteral


def _targets(statement: ast.stmt) -> list[ast.expr]:
    match statement:
        case ast.Assign(targets=targets):
            return targets
        case ast.AnnAssign(target=target, value=value) if value is not None:
            return [target]
        case ast.AugAssign(target=target):
            return [target]
    return []


def _bound_names(statement: ast.stmt) -> set[str]:
    return {n.id for t in _targets(statement) for n in ast.walk(t) if isinstance(n, ast.Name)}


def _value(statement: ast.stmt, names: Mapping[str, Any]) -> Any:
    match statement:
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
            return _evaluate(value, names)
        case ast.AugAssign(target=ast.Name(id=name), op=op, value=value) if name in names and type(op) in _BINARY:
            right = _evaluate(value, names)
            _check_size(op, names[name], right)
            return _BINARY[type(op)](names[name], right)
    raise _NotLiteral


def module_constants(tree: ast.Module) -> dict[str, Any]:
    """Top-level names bound to literals, or to arithmetic on literals and other such names, with their last value.

    Values are None, bool, int, float, str, and tuples or lists of these. A name that is later bound to something else
    is no constant.
    """
    names: dict[str, Any] = {}
    for statement in tree.body:
        bound = _bound_names(statement)
        if not bound:
            continue
        try:
            value = _value(statement, names)
            pairs = [pair for target in _targets(statement) for pair in _bind(target, value)]
        except (_NotLiteral, ArithmeticError, TypeError, ValueError, LookupError):
            pairs = []
        for name in bound:
            names.pop(name, None)
        names.update((name, value) for name, value in pairs if _is_plain(value))
    return names


def independent_constants(tree: ast.Module) -> dict[str, Any]:
    """The constants whose expression names no other constant: the ones worth changing, since the rest follow them."""
    constants = module_constants(tree)
    derived: set[str] = set()
    for statement in tree.body:
        value = getattr(statement, "value", None)
        uses = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)} if isinstance(value, ast.expr) else set()
        if uses & constants.keys():
            derived |= _bound_names(statement)
    return {name: value for name, value in constants.items() if name not in derived}


def rewrite_constants(tree: ast.Module, changes: Mapping[str, Any]) -> ast.Module:
    """A module in which each name of `changes` has the given value wherever the module binds it at top level.

    Args:
        tree: parsed module; left as it is.
        changes: names bound at top level, with literal values (tuples and lists allowed).

    Raises:
        InputError: a name that the module does not bind to a constant, or a value that is not a literal.
    """
    if not changes:
        return tree
    constants = module_constants(tree)
    for name, value in changes.items():
        if name not in constants:
            known = ", ".join(sorted(constants)) or "none"
            raise InputError(f"the problem has no module constant {name!r}; its constants are: {known}")
        if not _is_plain(value):
            raise InputError(f"constant {name!r} must get a literal, not a {type(value).__name__}")
    body: list[ast.stmt] = []
    for statement in tree.body:
        body.append(statement)
        body.extend(
            _assignment(name, changes[name], statement) for name in sorted(_bound_names(statement) & changes.keys())
        )
    return ast.Module(body=body, type_ignores=tree.type_ignores)


def _assignment(name: str, value: Any, place: ast.stmt) -> ast.stmt:
    node = parse(f"{name} = {value!r}").body[0]
    for child in ast.walk(node):
        if isinstance(child, (ast.stmt, ast.expr)):
            child.lineno = child.end_lineno = place.end_lineno or place.lineno
            child.col_offset = child.end_col_offset = place.col_offset
    return node
