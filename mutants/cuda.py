"""The CUDA C++ inside a candidate, as operators see it: its functions, variables, launches, and sites in its file.

`cuda_syntax` has the nodes; `cuda_types` and `cuda_roles` have what operators recognise beyond syntax.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from .cuda_syntax import Change, Node, parse
from .embedded import EmbeddedText, embedded_texts, line_of, line_starts, plain_text
from .mutant import Site

__all__ = ["Change", "CudaTree", "Function", "Launch", "Node", "Variable"]


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """`kernel<<<grid, block, shared, stream>>>(arguments)`.

    Attributes:
        node: the whole call.
        kernel: the kernel's name without template arguments.
        configuration: expressions between `<<<` and `>>>`.
        arguments: the call's arguments.
    """

    node: Node
    kernel: str
    configuration: tuple[Node, ...]
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Variable:
    """A declared name.

    Attributes:
        name: as declared.
        type: written type without qualifiers, `float`, `dim3`.
        pointer: number of `*`.
        array: number of `[]`.
        shared: declared `__shared__`.
        parameter: of a function.
        node: the declarator (with its initial value, if any).
        value: the initial value.
        declaration: the whole declaration.
    """

    name: str
    type: str
    pointer: int
    array: int
    shared: bool
    parameter: bool
    node: Node
    value: Node | None
    declaration: Node


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A function with a body.

    Attributes:
        name: without scope and template arguments.
        node: the definition.
        body: its compound statement.
        kernel: whether it is `__global__`.
        device: whether it is `__global__` or `__device__`.
        variables: parameters and locals, in the order of declaration. A name declared twice is there twice.
    """

    name: str
    node: Node
    body: Node
    kernel: bool
    device: bool
    variables: tuple[Variable, ...]

    @property
    def parameters(self) -> tuple[Variable, ...]:
        """The parameters alone."""
        return tuple(variable for variable in self.variables if variable.parameter)

    def variable(self, name: str, before: Node | None = None) -> Variable | None:
        """The last declaration of `name` that stands before a node (in the whole function by default)."""
        found = None
        for variable in self.variables:
            if variable.name == name and (before is None or variable.node.start <= before.start):
                found = variable
        return found


class CudaTree:
    """The C++ of one candidate.

    Args:
        source: text of the candidate's Python file.

    Raises:
        ValueError: the source is not Python.
    """

    def __init__(self, source: str, texts: tuple[EmbeddedText, ...] | None = None) -> None:
        self.source = source
        self.texts = embedded_texts(source) if texts is None else texts
        self.roots = tuple(parse(text) for text in self.texts)
        self._lines = line_starts(source)
        self._by_type: dict[str, list[Node]] = {}
        for root in self.roots:
            for node in root.walk():
                self._by_type.setdefault(node.type, []).append(node)

    @classmethod
    def of_snippet(cls, code: str) -> "CudaTree":
        """A tree whose file is a model in Python, or bare C++: whole functions, or statements of a kernel."""
        if "class ModelNew" in code:
            return cls(code)
        if "__global__" in code or "__device__" in code or "Tensor" in code:
            return cls(code, (plain_text(code),))
        return cls(code, (plain_text(code, "__global__ void kernel() {\n", "\n}\n"),))

    def nodes(self, *types: str, device: bool | None = True) -> list[Node]:
        """Nodes of these types, type by type: of device code, of host code (False) or of both (None)."""
        found = [node for kind in types for node in self._by_type.get(kind, ())]
        return found if device is None else [node for node in found if node.device is device]

    @property
    def errors(self) -> int:
        """Places that the grammar does not understand."""
        missing = (n for nodes in self._by_type.values() for n in nodes if n.start == n.end and n.parent is not None)
        return len(self._by_type.get("ERROR", ())) + sum(1 for node in missing if not node.children)

    def site(self, detail: str, *changes: Change) -> Site | None:
        """A site from changes of the C++, the one that says where it is first.

        None where one of them touches what the file does not hold, or where they overlap.
        """
        edits = [change.home.edit(change.start, change.end, change.text) for change in changes]
        known = sorted(edit for edit in edits if edit is not None)
        if not known or len(known) < len(edits):
            return None
        if any(first.end > second.start for first, second in pairwise(known)):
            return None
        place = next(edit for edit in edits if edit is not None)
        return Site(tuple(known), line_of(self._lines, place.start), " ".join(detail.split()))

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        """All functions with a body."""
        found = []
        for node in self.nodes("function_definition", device=None):
            body, declarator = node.get("body"), node.get("declarator")
            if body is None or declarator is None:
                continue
            head = node.home.text[node.start : body.start]
            name = next((n.text for n in declarator.find("identifier", "field_identifier")), "")
            found.append(
                Function(name, node, body, "__global__" in head, node.device, tuple(_variables(declarator, body)))
            )
        return tuple(found)

    @cached_property
    def _function_of(self) -> dict[int, Function]:
        return {id(function.node): function for function in self.functions}

    def function(self, node: Node) -> Function | None:
        """The function around a node."""
        if node.type != "function_definition":
            above = node.above("function_definition")
            if above is None:
                return None
            node = above
        return self._function_of.get(id(node))

    @property
    def kernels(self) -> tuple[Function, ...]:
        """Functions that are launched."""
        return tuple(function for function in self.functions if function.kernel)

    def variable(self, node: Node) -> Variable | None:
        """The declaration that an identifier refers to, within its function."""
        function = self.function(node)
        return function.variable(node.text, node) if function is not None else None

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        """All kernel launches."""
        found = []
        for node in self.nodes("kernel_call_syntax", device=None):
            call = node.parent
            if call is None or not call.has("function", "arguments"):
                continue
            name = next((n.text for n in call.at("function").find("identifier")), "")
            found.append(Launch(call, name, tuple(node.named_children), tuple(call.at("arguments").named_children)))
        return tuple(found)


def _variables(declarator: Node, body: Node) -> Iterator[Variable]:
    for parameter in declarator.find("parameter_declaration", "optional_parameter_declaration"):
        inner = parameter.get("declarator")
        if inner is not None:
            yield _variable(parameter, inner, None, parameter=True)
    for declaration in body.find("declaration"):
        for child in declaration.children:
            if child.field == "declarator":
                if child.type == "init_declarator" and child.get("declarator") is not None:
                    yield _variable(declaration, child.at("declarator"), child.get("value"), parameter=False)
                else:
                    yield _variable(declaration, child, None, parameter=False)


def _variable(declaration: Node, declarator: Node, value: Node | None, parameter: bool) -> Variable:
    written = declaration.get("type")
    head = declaration.home.text[declaration.start : declarator.start]
    name = next((node.text for node in declarator.find("identifier")), declarator.text)
    return Variable(
        name=name,
        type=written.text if written is not None else "",
        pointer=sum(1 for _ in declarator.find("pointer_declarator", "abstract_pointer_declarator")),
        array=sum(1 for _ in declarator.find("array_declarator")),
        shared="__shared__" in head,
        parameter=parameter,
        node=declarator,
        value=value,
        declaration=declaration,
    )
