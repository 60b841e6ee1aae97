"""A CUDA source as a tree: what is declared at namespace scope, and where.

The parser (tree-sitter-cuda) goes on after errors, and attributes that its grammar lacks are hidden from it, so most
sources with constructs it does not know still come apart at the right places.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import tree_sitter
import tree_sitter_cuda

from .lexical import Edit, LineMap, apply_edits, blank_literals, directives, mask_attributes
from .split_model import Include, Span

CONTAINERS = {
    "namespace_definition",
    "linkage_specification",
    "preproc_if",
    "preproc_ifdef",
    "preproc_else",
    "preproc_elif",
    "preproc_elifdef",
    "declaration_list",
}
DIRECTIVES = {"preproc_include", "preproc_def", "preproc_function_def", "preproc_call"}
TYPES = {"struct_specifier", "class_specifier", "union_specifier", "enum_specifier"}
WORD = re.compile(r"[A-Za-z_]\w*")


@lru_cache(maxsize=1)
def _language() -> tree_sitter.Language:
    return tree_sitter.Language(tree_sitter_cuda.language())


class Offsets:
    """Byte offsets of the parser to character offsets of the text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.data = text.encode("utf-8")
        self._offsets: list[int] | None = None
        if len(self.data) != len(text):
            self._offsets = []
            for index, char in enumerate(text):
                self._offsets.extend([index] * len(char.encode("utf-8")))
            self._offsets.append(len(text))

    def span(self, node: tree_sitter.Node) -> Span:
        start, end = node.start_byte, node.end_byte
        if self._offsets is None:
            return start, end
        return self._offsets[start], self._offsets[end]

    def of(self, node: tree_sitter.Node) -> str:
        start, end = self.span(node)
        return self.text[start:end]


def walk(root: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
    """All nodes below `root`, in order, without recursion (sources may nest deeply)."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.children))


def find_declarator(node: tree_sitter.Node, types: Sequence[str]) -> tree_sitter.Node | None:
    """First node of one of the types on the way down through declarators."""
    current: tree_sitter.Node | None = node
    while current is not None:
        if current.type in types:
            return current
        following = current.child_by_field_name("declarator")
        if following is None:
            following = next(
                (c for c in current.named_children if c.type.endswith("declarator") or c.type in types), None
            )
        current = following
    return None


@dataclass(slots=True)
class Item:
    """One declaration at namespace scope. `kind`: function, variable, type, using, directive."""

    kind: str
    span: Span
    node: tree_sitter.Node
    inner: tree_sitter.Node
    names: frozenset[str]
    head: str
    namespace: tuple[str, ...]
    extern_c: bool

    @property
    def on_device(self) -> bool:
        return bool(re.search(r"__global__|__device__|__constant__|__managed__|__shared__", self.head))


class SourceTree:
    """The tree, its items, and questions about positions.

    Args:
        source: comment-free text.
        line_map: where its lines come from.
    """

    def __init__(self, source: str, line_map: LineMap) -> None:
        self.source = source
        self.line_map = line_map
        self.masked = mask_attributes(source)
        self.text = Offsets(self.masked)
        # Words in literals name nothing: references are looked up in the code alone.
        self.code = blank_literals(self.masked)
        self.tree = tree_sitter.Parser(_language()).parse(self.text.data)
        self.items: list[Item] = []
        self._collect(self.tree.root_node)

    def _collect(self, root: tree_sitter.Node) -> None:
        stack: list[tuple[tree_sitter.Node, tuple[str, ...], bool]] = [(root, (), False)]
        while stack:
            node, namespace, extern_c = stack.pop()
            below: list[tuple[tree_sitter.Node, tuple[str, ...], bool]] = []
            for child in node.named_children:
                inner_namespace, inner_c = namespace, extern_c
                if child.type == "namespace_definition":
                    name = child.child_by_field_name("name")
                    if name is not None:
                        inner_namespace = (*namespace, *self.text.of(name).replace(" ", "").split("::"))
                elif child.type == "linkage_specification":
                    inner_c = True
                if child.type in CONTAINERS:
                    below.append((child, inner_namespace, inner_c))
                elif child.type == "ERROR" and child.named_child_count and "{" in self.text.of(child):
                    below.append((child, namespace, extern_c))
                else:
                    item = self._item(child, namespace, extern_c)
                    if item is not None:
                        self.items.append(item)
            stack.extend(reversed(below))
        self.items.sort(key=lambda item: item.span)

    def _item(self, node: tree_sitter.Node, namespace: tuple[str, ...], extern_c: bool) -> Item | None:
        if node.type in DIRECTIVES:
            return Item("directive", self.text.span(node), node, node, frozenset(), "", namespace, extern_c)
        inner = node
        while inner.type == "template_declaration":
            inner = inner.named_children[-1]
        start, end = self.text.span(node)
        head_end = end
        kind = "variable"
        names: set[str] = set()
        if inner.type in ("function_definition", "template_instantiation"):
            kind = "function"
            body = inner.child_by_field_name("body")
            if body is not None:
                head_end = self.text.span(body)[0]
            names.update(self.declared_name(inner))
        elif inner.type in TYPES:
            kind = "type"
            name = inner.child_by_field_name("name")
            if name is not None:
                names.update(WORD.findall(self.text.of(name))[:1])
            if inner.type == "enum_specifier":
                names.update(self._enumerators(inner))
            head_end = start
            # The semicolon behind a class is a sibling in the tree.
            rest = re.match(r"\s*;", self.masked[end:])
            end += rest.end() if rest else 0
        elif inner.type in ("alias_declaration", "type_definition", "using_declaration", "namespace_alias_definition"):
            kind = "using"
            names.update(WORD.findall(self.code[start:end]))
        elif inner.type in ("declaration", "concept_definition"):
            if (
                find_declarator(inner, ["function_declarator"]) is not None
                and inner.child_by_field_name("value") is None
            ):
                kind = "function"
            names.update(self.declared_name(inner))
            equals = self.code.find("=", start, end)
            head_end = equals if equals >= 0 else end
            specifier = inner.child_by_field_name("type")
            if specifier is not None and specifier.type in TYPES:
                names.update(self._declared_type(specifier))
        elif inner.type in ("static_assert_declaration", "expression_statement", "ERROR"):
            names.update(self.declared_name(inner) if inner.type == "ERROR" else ())
        else:
            return None
        head = self.code[start:head_end]
        return Item(kind, (start, end), node, inner, frozenset(names), head, namespace, extern_c)

    def _enumerators(self, enum: tree_sitter.Node) -> Iterator[str]:
        for node in walk(enum):
            if node.type == "enumerator":
                yield self.text.of(node.named_children[0])

    def _declared_type(self, specifier: tree_sitter.Node) -> Iterator[str]:
        name = specifier.child_by_field_name("name")
        if name is not None:
            yield self.text.of(name)
        if specifier.type == "enum_specifier":
            yield from self._enumerators(specifier)

    def declared_name(self, node: tree_sitter.Node) -> Iterator[str]:
        for index, child in enumerate(node.children):
            if node.field_name_for_child(index) != "declarator":
                continue
            current: tree_sitter.Node | None = child
            while current is not None:
                if current.type in ("identifier", "type_identifier", "field_identifier", "operator_name"):
                    yield self.text.of(current)
                    break
                if current.type in ("qualified_identifier", "template_function", "destructor_name"):
                    yield from WORD.findall(self.text.of(current))
                    break
                following = current.child_by_field_name("declarator")
                current = following or next(
                    (c for c in current.named_children if "declarator" in c.type or c.type == "identifier"), None
                )

    def line(self, offset: int) -> int:
        return self.source.count("\n", 0, offset) + 1

    def where(self, offset: int) -> str:
        label, line = self.line_map.resolve(self.line(offset))
        return f"{label}:{line}"

    def code_without_directives(self) -> str:
        return apply_edits(self.code, [Edit(start, end) for start, end, _, _ in directives(self.code)])

    def includes(self) -> list[Include]:
        return [
            Include(rest, self.line(start), (start, end))
            for start, end, word, rest in directives(self.source)
            if word in ("include", "include_next", "import")
        ]

    def macros(self) -> dict[str, str]:
        """Replacement text (parameters included) of every macro, by name."""
        found = {}
        for _, _, word, rest in directives(self.source):
            name = WORD.match(rest)
            if word == "define" and name is not None:
                found[name.group()] = rest[name.end() :]
        return found

    def names(self) -> frozenset[str]:
        declared = {name for item in self.items if item.kind in ("variable", "type", "using") for name in item.names}
        return frozenset(declared | self.macros().keys())

    def errors(self) -> tuple[int, ...]:
        if not self.tree.root_node.has_error:
            return ()
        return tuple(sorted({n.start_point[0] + 1 for n in walk(self.tree.root_node) if n.is_error or n.is_missing}))
