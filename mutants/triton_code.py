"""For which of a Triton candidate's functions compiled code speaks, and what to call its model with to get that code.

Compiled code is that of one call. It stands for all calls with inputs of the same types only where nothing that the
compiler sees depends on shapes: the engine compiles integers and addresses as any value, and here it is made sure that
every constant a kernel is launched with is written out. Where it is not, the function's text counts beside.
"""

import ast
from collections.abc import Collection, Iterator
from typing import Any

import torch

from ..suites.problem import Problem, load_problem
from .triton import Kernel, Launch, TritonTree


def compiled_functions(source: str, launched: Collection[str]) -> frozenset[str]:
    """Names of functions of which everything that can run is in the code of the kernels `launched`.

    Those are kernels whose every launch has its constants written out, and functions that only they use.

    Raises:
        ValueError: `source` is not Python.
    """
    tree = TritonTree(source)
    kernels = {kernel.name: kernel for kernel in tree.kernels}
    fixed = _written_out(tree.module)
    launches: dict[str, list[Launch]] = {}
    for launch in tree.launches:
        if launch.kernel is not None:
            launches.setdefault(launch.kernel.name, []).append(launch)
    found = {
        name
        for name, kernel in kernels.items()
        if name in launched
        and len(kernel.node.decorator_list) == 1
        and all(_constant(launch, kernel, fixed) for launch in launches.get(name, ()))
        and len(launches.get(name, ())) == _mentions(tree.module, name)
    }
    helpers = {
        name for name, kernel in kernels.items() if name not in launches and len(kernel.node.decorator_list) == 1
    }
    while True:
        inside = [kernels[name].node for name in found]
        used = {
            name
            for name in helpers - found
            if (count := _mentions(tree.module, name)) and count == sum(_mentions(node, name) for node in inside)
        }
        if not used:
            return frozenset(found)
        found |= used


def _mentions(root: ast.AST, name: str) -> int:
    return sum(
        (isinstance(node, ast.Name) and node.id == name) or (isinstance(node, ast.Attribute) and node.attr == name)
        for node in ast.walk(root)
    )


def _written_out(module: ast.Module) -> frozenset[str]:
    """Names that the module binds once, to a constant."""
    bound: list[str] = []
    constant: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
            bound.append(node.id)
        elif isinstance(node, ast.arg):
            bound.append(node.arg)
    for statement in module.body:
        if isinstance(statement, ast.Assign) and _literal(statement.value, frozenset()):
            constant |= {target.id for target in statement.targets if isinstance(target, ast.Name)}
    return frozenset(name for name in constant if bound.count(name) == 1)


def _literal(node: ast.expr, fixed: Collection[str]) -> bool:
    if isinstance(node, ast.UnaryOp):
        return _literal(node.operand, fixed)
    return isinstance(node, ast.Constant) or (isinstance(node, ast.Name) and node.id in fixed)


def _constant(launch: Launch, kernel: Kernel, fixed: Collection[str]) -> bool:
    """Whether a launch's constants and options are the same in every call."""
    if any(isinstance(value, ast.Starred) for value in launch.call.args):
        return False
    given: list[tuple[str, ast.expr]] = []
    for parameter, value in zip(kernel.parameters, launch.call.args, strict=False):
        given.append((parameter.name, value))
    for keyword in launch.call.keywords:
        if keyword.arg is None:
            return False
        given.append((keyword.arg, keyword.value))
    plain = {parameter.name for parameter in kernel.parameters if not parameter.constexpr}
    return all(name in plain or _literal(value, fixed) for name, value in given)


def call_of(problem: Problem) -> dict[str, Any]:
    """What the engine is to construct and call a model with: shapes and types of the problem's inputs, no values.

    Raises:
        InputError: the problem does not draw.
        ValueError: something is drawn that has no plain form.
    """
    loaded = load_problem(problem)
    init = [_plain(value) for value in loaded.init_inputs(0)]
    return {"init": init, "inputs": list(_specified(loaded.own_draw(0, "meta")))}


def _specified(values: list[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
        else:
            yield _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(f"a {type(value).__name__} among the inputs")
