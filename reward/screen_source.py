"""A candidate's text, parsed once: imported names, kernels, and which code ModelNew can reach."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

from ..suites.python_syntax import parse

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
Definition = FunctionNode | ast.ClassDef

_EXTENSION_LOADERS = ("load_inline", "load")
_JIT_NAMES = ("jit", "autotune", "heuristics")


@dataclass
class ParsedSource:
    """The syntax tree of a candidate and what the rules ask of it.

    Names are resolved through the file's own imports only (`import torch as t` makes `t.matmul` `torch.matmul`).
    """

    tree: ast.Module
    aliases: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, source: str) -> Self:
        """Parse; nothing is executed.

        Raises:
            SyntaxError, ValueError, RecursionError, MemoryError: what `ast.parse` raises for a text that is not Python.
        """
        tree = parse(source)
        parsed = cls(tree)
        for node in parsed.nodes:
            if isinstance(node, ast.Import):
                for name in node.names:
                    parsed.aliases[name.asname or name.name.split(".")[0]] = (
                        name.name if name.asname else name.name.split(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom) and node.module:
                for name in node.names:
                    parsed.aliases[name.asname or name.name] = f"{node.module}.{name.name}"
        return parsed

    def imports(self, module: str) -> bool:
        """Whether the file imports this top-level module, under any name."""
        return any(path.split(".")[0] == module for path in self.aliases.values())

    def mentions(self, name: str) -> bool:
        """Whether an identifier or a string of the file is, or could build, this name."""
        for node in self.nodes:
            if name in (getattr(node, "id", None), getattr(node, "name", None), getattr(node, "asname", None)):
                return True
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and name in node.value:
                return True
        return False

    def dotted(self, node: ast.AST) -> str:
        """Full dotted path of a name or attribute chain (`F.relu` -> `torch.nn.functional.relu`), "" for other nodes.

        A chain that starts at a local name keeps that name.
        """
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        parts.append(self.aliases.get(node.id, node.id))
        return ".".join(reversed(parts))

    def from_import(self, node: ast.AST) -> bool:
        """Whether a name or attribute chain starts at an imported name."""
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self.aliases

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every syntax node of the file, once, in the order of `ast.walk`."""
        return list(ast.walk(self.tree))

    @cached_property
    def definitions(self) -> dict[str, list[Definition]]:
        """Every function and class of the file by name, methods included."""
        found: dict[str, list[Definition]] = {}
        for node in self.nodes:
            if isinstance(node, Definition):
                found.setdefault(node.name, []).append(node)
        return found

    @cached_property
    def jit_functions(self) -> list[FunctionNode]:
        """Triton kernels: functions decorated with `triton.jit` (or autotune, heuristics)."""
        found = []
        for nodes in self.definitions.values():
            for node in nodes:
                if isinstance(node, FunctionNode) and any(self._is_jit(d) for d in node.decorator_list):
                    found.append(node)
        return found

    def _is_jit(self, decorator: ast.expr) -> bool:
        path = self.dotted(decorator.func if isinstance(decorator, ast.Call) else decorator)
        return path.startswith("triton") and path.rsplit(".", 1)[-1] in _JIT_NAMES

    @cached_property
    def extension_calls(self) -> list[ast.Call]:
        """Calls that build a C++/CUDA extension (`torch.utils.cpp_extension.load_inline` and `load`)."""
        found = []
        for node in self.nodes:
            if isinstance(node, ast.Call):
                path = self.dotted(node.func)
                if "cpp_extension" in path and path.rsplit(".", 1)[-1] in _EXTENSION_LOADERS:
                    found.append(node)
        return found

    @cached_property
    def cuda_texts(self) -> list[ast.Constant]:
        """String constants that hold CUDA or C++ source, docstrings left out."""
        docstrings = {
            id(node.body[0].value)
            for node in self.nodes
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        return [
            node
            for node in self.nodes
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings
            and ("__global__" in node.value or "torch::Tensor" in node.value or "at::Tensor" in node.value)
        ]

    @cached_property
    def extension_names(self) -> set[str]:
        """Names and attributes that hold an extension, or a function that builds one."""
        calls = {id(c) for c in self.extension_calls}
        names = {
            name
            for name, nodes in self.definitions.items()
            if any(isinstance(n, FunctionNode) and any(id(c) in calls for c in ast.walk(n)) for n in nodes)
        } - {"__init__", "forward"}
        while True:
            before = len(names)
            for node in self.nodes:
                if not isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) or node.value is None:
                    continue
                if any(id(n) in calls or identifier(n) in names for n in ast.walk(node.value)):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    names.update(filter(None, map(identifier, targets)))
            if len(names) == before:
                return names

    @cached_property
    def reachable(self) -> list[ast.AST]:
        """Definitions and module-level statements that building or calling ModelNew can reach, by mentioned names.

        Coarse on purpose: a name that is mentioned counts as used. Methods of ModelNew other than `__init__`,
        `forward` and dunder methods count when they are mentioned.
        """
        reached: list[ast.AST] = []
        seen: set[int] = set()
        queue: list[ast.AST] = list(self.definitions.get("ModelNew", []))
        module_values: dict[str, list[ast.AST]] = {}
        for node in self.nodes:
            if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and node.value is not None:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    for name in filter(None, map(identifier, ast.walk(target))):
                        module_values.setdefault(name, []).append(node)
        if not queue:
            queue = list(module_values.get("ModelNew", []))
        while queue:
            node = queue.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            reached.append(node)
            for part in self._parts(node):
                for child in ast.walk(part):
                    name = identifier(child)
                    if name:
                        queue.extend(self.definitions.get(name, []))
                        queue.extend(module_values.get(name, []))
        return reached

    @staticmethod
    def _parts(node: ast.AST) -> Iterator[ast.AST]:
        if not isinstance(node, ast.ClassDef):
            yield node
            return
        yield from node.bases
        yield from node.decorator_list
        for item in node.body:
            dunder = isinstance(item, FunctionNode) and item.name.startswith("__")
            if not isinstance(item, FunctionNode) or dunder or item.name in ("forward", "backward", "apply"):
                yield item

    @cached_property
    def host_nodes(self) -> list[ast.AST]:
        """Every syntax node of reachable host code, Triton kernels left out, each node once, in no order."""
        kernels = {id(n) for kernel in self.jit_functions for n in ast.walk(kernel)}
        seen: set[int] = set()
        nodes = []
        for top in self.reachable:
            for part in self._parts(top):
                for node in ast.walk(part):
                    if id(node) not in seen and id(node) not in kernels:
                        seen.add(id(node))
                        nodes.append(node)
        return nodes


def identifier(node: ast.AST) -> str:
    """The name of a name node, the attribute of an attribute node, "" for other nodes."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""
