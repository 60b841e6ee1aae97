"""Nodes of CUDA C++ that operators search and edit.

The grammar's tree (tree-sitter-cuda) is copied into `Node`s without comments, strings' insides and preprocessor
text, so that no operator can touch those.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field as default
from functools import lru_cache

import tree_sitter
import tree_sitter_cuda

from ..reward.cuda.lexical import blank, mask_attributes
from .embedded import EmbeddedText

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
    children: list["Node"] = default(default_factory=list)

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


_PRAGMA = re.compile(r"^[ \t]*#[ \t]*pragma\b(?:\\\r?\n|[^\n])*", re.MULTILINE)


@lru_cache(maxsize=1)
def _parser() -> tree_sitter.Parser:
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_cuda.language()))


def parse(home: EmbeddedText) -> Node:
    """The tree of one text."""
    # The grammar takes a pragma between a loop's head and its body for the body.
    code = _PRAGMA.sub(lambda match: blank(match.group()), mask_attributes(home.text))
    # One byte per character, so that offsets are the text's own; characters beyond ASCII stand in comments and strings.
    data = code.encode("ascii", "replace")
    cursor = _parser().parse(data).walk()
    root: Node | None = None
    parents: list[Node] = []
    while True:
        source, parent = cursor.node, parents[-1] if parents else None
        assert source is not None
        device = parent is not None and parent.device
        if source.type == "function_definition" and not device:
            body = source.child_by_field_name("body")
            head = data[source.start_byte : body.start_byte if body is not None else source.end_byte]
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
