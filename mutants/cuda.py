"""Syntax trees of the CUDA C++ inside a candidate, for operators to search and edit.

The grammar's tree (tree-sitter-cuda) is copied into `Node`s, without comments, strings' insides and preprocessor text,
so that no operator can touch those. `cuda_roles` has what operators recognise beyond syntax.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise

import tree_sitter
import tree_sitter_cuda

from ..reward.cuda.lexical import mask_attributes
from .embedded import EmbeddedText, embedded_texts, line_of, line_starts, plain_text
from .mutant import Site

# Nodes whose insides no operator sees: text for the preprocessor, literals.
_OPAQUE = frozenset(
    (
        "preproc_def",
        "preproc_function_def",
        "preproc_include",
        "preproc_call",
        "string_literal",
        "raw_string_literal",
        "concatenated_string",
        "char_literal",
        "system_lib_string",
        "number_literal",
        "gnu_asm_expression",
        "linkage_specification_string",
    )
)
_LEFT_OUT = frozenset(("comment",))
_CONDITIONALS = frozenset(("preproc_if", "preproc_elif", "preproc_ifdef"))

EXPRESSIONS = frozenset(
    (
        "assignment_expression",
        "binary_expression",
        "call_expression",
        "cast_expression",
        "conditional_expression",
        "field_expression",
        "identifier",
        "number_literal",
        "parenthesized_expression",
        "pointer_expression",
        "subscript_expression",
        "unary_expression",
        "update_expression",
        "qualified_identifier",
    )
)
STATEMENTS = frozenset(
    (
        "compound_statement",
        "declaration",
        "expression_statement",
        "for_statement",
        "if_statement",
        "return_statement",
        "while_statement",
        "do_statement",
        "break_statement",
        "continue_statement",
        "switch_statement",
        "case_statement",
    )
)
LOOPS = ("for_statement", "while_statement", "do_statement")


@dataclass(frozen=True, slots=True)
class Change:
    """Replace `start:end` of a text of C++."""

    home: EmbeddedText
    start: int
    end: int
    text: str


@dataclass(eq=False, slots=True)
class Node:
    """A node of the tree. Nodes are equal only to themselves.

    Attributes:
        type: the grammar's name, `binary_expression`; an operator's or keyword's own text for tokens.
        named: False for tokens such as `<` and `if`.
        field: its role in the parent, `left`; None where the grammar gives none.
        start, end: offsets in `home.text`.
        home: the text it stands in.
        device: whether it lies in code for the device (`__global__`, `__device__`).
    """

    type: str
    named: bool
    field: str | None
    start: int
    end: int
    home: EmbeddedText
    parent: "Node | None"
    device: bool
    children: list["Node"] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<{self.type} {self.text[:40]!r}>"

    @property
    def text(self) -> str:
        """The source as written."""
        return self.home.text[self.start : self.end]

    @property
    def flat(self) -> str:
        """The source without white space: equal for equal expressions."""
        return "".join(self.text.split())

    def get(self, name: str) -> "Node | None":
        """The child with that role, or None."""
        for child in self.children:
            if child.field == name:
                return child
        return None

    def at(self, name: str) -> "Node":
        """The child with that role.

        Raises:
            KeyError: there is none.
        """
        child = self.get(name)
        if child is None:
            raise KeyError(f"{self.type} has no {name}")
        return child

    def has(self, *names: str) -> bool:
        """Whether there are children with these roles: false only for code that does not parse."""
        return all(self.get(name) is not None for name in names)

    @property
    def named_children(self) -> list["Node"]:
        """Children other than tokens."""
        return [child for child in self.children if child.named]

    @property
    def operator(self) -> str:
        """`+` of `a + b`, `=` of `a = b`; empty where there is none."""
        child = self.get("operator")
        return child.type if child is not None else ""

    def walk(self) -> Iterator["Node"]:
        """This node and all below, as they stand in the text."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children))

    def find(self, *types: str) -> Iterator["Node"]:
        """Nodes of these types, this one and those below."""
        return (node for node in self.walk() if node.type in types)

    def ancestors(self) -> Iterator["Node"]:
        """The parent and upward."""
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    def above(self, *types: str) -> "Node | None":
        """The nearest ancestor of these types."""
        return next((node for node in self.ancestors() if node.type in types), None)

    def within(self, other: "Node") -> bool:
        """Whether this node is `other` or lies below it."""
        return self is other or any(node is other for node in self.ancestors())

    @property
    def statement(self) -> "Node":
        """The smallest statement around this node (itself where there is none)."""
        node = self
        while node.type not in STATEMENTS and node.parent is not None:
            node = node.parent
        return node

    @property
    def bare(self) -> "Node":
        """The expression inside any parentheses around it."""
        node = self
        while node.type in ("parenthesized_expression", "condition_clause") and len(node.named_children) == 1:
            node = node.named_children[0]
        return node

    # ---- edits -------------------------------------------------------------------------------------------------------

    def replaced(self, text: str) -> Change:
        """Put `text` in this node's place."""
        return Change(self.home, self.start, self.end, text)

    def before(self, text: str) -> Change:
        """Put `text` before this node."""
        return Change(self.home, self.start, self.start, text)

    def after(self, text: str) -> Change:
        """Put `text` behind this node."""
        return Change(self.home, self.end, self.end, text)


@lru_cache(maxsize=1)
def _parser() -> tree_sitter.Parser:
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_cuda.language()))


def parse(home: EmbeddedText) -> Node:
    """The tree of one text."""
    # One byte per character, so that offsets are the text's own; characters beyond ASCII stand in comments and strings.
    code = mask_attributes(home.text).encode("ascii", "replace")
    cursor = _parser().parse(code).walk()
    root: Node | None = None
    parents: list[Node] = []
    while True:
        source, parent = cursor.node, parents[-1] if parents else None
        assert source is not None
        device = parent is not None and parent.device
        if source.type == "function_definition" and not device:
            body = source.child_by_field_name("body")
            head = code[source.start_byte : body.start_byte if body is not None else source.end_byte]
            device = b"__global__" in head or b"__device__" in head
        node = Node(
            source.type,
            source.is_named,
            cursor.field_name,
            source.start_byte,
            source.end_byte,
            home,
            parent,
            device,
        )
        hidden = source.type in _LEFT_OUT or (
            parent is not None and parent.type in _CONDITIONALS and cursor.field_name in ("condition", "name")
        )
        if parent is not None and not hidden:
            parent.children.append(node)
        root = root or node
        if not hidden and source.type not in _OPAQUE and cursor.goto_first_child():
            parents.append(node)
            continue
        while not cursor.goto_next_sibling():
            if not cursor.goto_parent():
                return root
            parents.pop()


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
        """A tree whose file is bare C++: whole functions, or statements of a kernel."""
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
        """A site from changes of the C++; None where one of them touches what the file does not hold."""
        edits = [change.home.edit(change.start, change.end, change.text) for change in changes]
        known = sorted(edit for edit in edits if edit is not None)
        if not known or len(known) < len(edits):
            return None
        if any(first.end > second.start for first, second in pairwise(known)):
            return None
        return Site(tuple(known), line_of(self._lines, known[0].start), " ".join(detail.split()))

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
