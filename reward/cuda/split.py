"""Split CUDA C++ into what the host compiler and what the device compiler get, and describe its kernels and launches.

The source is parsed (tree-sitter-cuda), not matched. `source` keeps the candidate's text with comments blanked; every
`span` is a pair of offsets into it. The host text has kernel bodies replaced by stubs, as nvcc does, so that function
pointers, templates and attributes of kernels keep working; the device text has host-only code blanked. Both keep the
line numbers of `source`.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import tree_sitter
import tree_sitter_cuda

from ..sandbox.engine import CompileFailure
from .frontend import ExtensionSource, Unsupported
from .lexical import (
    Edit,
    LineMap,
    apply_edits,
    blank_comments,
    blank_literals,
    directives,
    expand_includes,
    expand_macros,
    hides_cuda_in_macros,
    join_sources,
    mask_attributes,
)

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Param:
    """A kernel's parameter: `type` as written (declarator included), `name`, whether it is a parameter pack."""

    type: str
    name: str
    pack: bool = False


@dataclass(frozen=True, slots=True)
class TemplateParam:
    """A template parameter: `kind` is `type`, `value` or `template`."""

    name: str
    kind: str
    pack: bool = False


@dataclass(frozen=True, slots=True)
class Kernel:
    """A `__global__` function that is defined in the source.

    Attributes:
        name: unqualified name.
        qualified: name with its namespaces (unnamed ones left out).
        launch_bounds: text between the parentheses of `__launch_bounds__`, or empty.
        line: 1-based line in `SplitSource.source`.
        span: the whole definition, `template <...>` included; body_span: from `{` to behind `}`.
        extern_c: whether its symbol is the plain name.
    """

    name: str
    qualified: str
    params: tuple[Param, ...]
    template_params: tuple[TemplateParam, ...]
    line: int
    launch_bounds: str
    span: Span
    body_span: Span
    extern_c: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch `kernel<<<grid, block, shared, stream>>>(args)`; missing parts are empty.

    Attributes:
        kernel: the launched expression as written; template_args: its template arguments, if any.
        args: arguments as written; args_span: between the parentheses.
        span: from the first character of `kernel` to behind the closing parenthesis.
        config_span: from `<<<` to behind `>>>`.
        function: the host function it stands in; dispatch: the enclosing `AT_DISPATCH_*` macro, or empty.
    """

    kernel: str
    template_args: tuple[str, ...]
    grid: str
    block: str
    shared: str
    stream: str
    args: tuple[str, ...]
    span: Span
    config_span: Span
    args_span: Span
    line: int
    function: str = ""
    dispatch: str = ""


@dataclass(frozen=True, slots=True)
class SharedDecl:
    """A `__shared__` declaration.

    Attributes:
        names: declared variables; declarators: each as written (`tile[16][17]`).
        type: type text without qualifiers; dynamic: `extern __shared__ T name[]`.
        function: the kernel or device function it stands in; span: with the semicolon.
    """

    names: tuple[str, ...]
    declarators: tuple[str, ...]
    type: str
    dynamic: bool
    line: int
    span: Span
    function: str = ""


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable in device memory at namespace scope.

    Attributes:
        space: `constant`, `device` or `managed`.
        span: the declaration with its semicolon.
    """

    name: str
    qualified: str
    space: str
    line: int
    span: Span


@dataclass(frozen=True, slots=True)
class Include:
    """An `#include`: `path` with its delimiters, 1-based `line`, `span` of the directive."""

    path: str
    line: int
    span: Span


@dataclass(frozen=True, slots=True)
class SplitSource:
    """A CUDA source taken apart; see the module's docstring.

    Attributes:
        source: the joined text, comments blanked, the candidate's macros expanded where they hide kernels.
        host, device: what each compiler gets (same lines as `source`).
        names: types, constants and macros that the source declares outside of functions.
        errors: lines that the parser could not understand (the compilers may still).
        line_map: lines of `source` to the candidate's sources.
    """

    source: str
    host: str
    device: str
    kernels: tuple[Kernel, ...]
    launches: tuple[Launch, ...]
    shared_decls: tuple[SharedDecl, ...]
    symbols: tuple[Symbol, ...]
    includes: tuple[Include, ...]
    line_map: LineMap
    names: frozenset[str] = frozenset()
    errors: tuple[int, ...] = ()


_CONTAINERS = {
    "namespace_definition",
    "linkage_specification",
    "preproc_if",
    "preproc_ifdef",
    "preproc_else",
    "preproc_elif",
    "preproc_elifdef",
    "declaration_list",
}
_DIRECTIVES = {"preproc_include", "preproc_def", "preproc_function_def", "preproc_call"}
_TYPES = {"struct_specifier", "class_specifier", "union_specifier", "enum_specifier"}
_WORD = re.compile(r"[A-Za-z_]\w*")
_HOST_WORDS = frozenset(("torch", "at", "c10", "py", "pybind11", "Tensor", "cublasHandle_t", "cudnnHandle_t"))
_SPACES = {"__constant__": "constant", "__managed__": "managed", "__device__": "device"}


@lru_cache(maxsize=1)
def _language() -> tree_sitter.Language:
    return tree_sitter.Language(tree_sitter_cuda.language())


class _Text:
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


def _walk(root: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
    """All nodes below `root`, in order, without recursion (sources may nest deeply)."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.children))


def _find(node: tree_sitter.Node, types: Sequence[str]) -> tree_sitter.Node | None:
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
class _Item:
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


class _Splitter:
    def __init__(self, source: str, line_map: LineMap) -> None:
        self.source = source
        self.line_map = line_map
        self.masked = mask_attributes(source)
        self.text = _Text(self.masked)
        # Words in literals name nothing: references are looked up in the code alone.
        self.code = blank_literals(self.masked)
        self.tree = tree_sitter.Parser(_language()).parse(self.text.data)
        self.items: list[_Item] = []
        self._collect(self.tree.root_node)

    # ---- structure -------------------------------------------------------------------------------------------------

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
                if child.type in _CONTAINERS:
                    below.append((child, inner_namespace, inner_c))
                elif child.type == "ERROR" and child.named_child_count and "{" in self.text.of(child):
                    below.append((child, namespace, extern_c))
                else:
                    item = self._item(child, namespace, extern_c)
                    if item is not None:
                        self.items.append(item)
            stack.extend(reversed(below))
        self.items.sort(key=lambda item: item.span)

    def _item(self, node: tree_sitter.Node, namespace: tuple[str, ...], extern_c: bool) -> _Item | None:
        if node.type in _DIRECTIVES:
            return _Item("directive", self.text.span(node), node, node, frozenset(), "", namespace, extern_c)
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
            names.update(self._declared_name(inner))
        elif inner.type in _TYPES:
            kind = "type"
            name = inner.child_by_field_name("name")
            if name is not None:
                names.update(_WORD.findall(self.text.of(name))[:1])
            if inner.type == "enum_specifier":
                names.update(self._enumerators(inner))
            head_end = start
            # The semicolon behind a class is a sibling in the tree.
            rest = re.match(r"\s*;", self.masked[end:])
            end += rest.end() if rest else 0
        elif inner.type in ("alias_declaration", "type_definition", "using_declaration", "namespace_alias_definition"):
            kind = "using"
            names.update(_WORD.findall(self.code[start:end]))
        elif inner.type in ("declaration", "concept_definition"):
            if _find(inner, ["function_declarator"]) is not None and inner.child_by_field_name("value") is None:
                kind = "function"
            names.update(self._declared_name(inner))
            equals = self.code.find("=", start, end)
            head_end = equals if equals >= 0 else end
            specifier = inner.child_by_field_name("type")
            if specifier is not None and specifier.type in _TYPES:
                names.update(self._declared_type(specifier))
        elif inner.type in ("static_assert_declaration", "expression_statement", "ERROR"):
            names.update(self._declared_name(inner) if inner.type == "ERROR" else ())
        else:
            return None
        head = self.code[start:head_end]
        return _Item(kind, (start, end), node, inner, frozenset(names), head, namespace, extern_c)

    def _enumerators(self, enum: tree_sitter.Node) -> Iterator[str]:
        for node in _walk(enum):
            if node.type == "enumerator":
                yield self.text.of(node.named_children[0])

    def _declared_type(self, specifier: tree_sitter.Node) -> Iterator[str]:
        name = specifier.child_by_field_name("name")
        if name is not None:
            yield self.text.of(name)
        if specifier.type == "enum_specifier":
            yield from self._enumerators(specifier)

    def _declared_name(self, node: tree_sitter.Node) -> Iterator[str]:
        for index, child in enumerate(node.children):
            if node.field_name_for_child(index) != "declarator":
                continue
            current: tree_sitter.Node | None = child
            while current is not None:
                if current.type in ("identifier", "type_identifier", "field_identifier", "operator_name"):
                    yield self.text.of(current)
                    break
                if current.type in ("qualified_identifier", "template_function", "destructor_name"):
                    yield from _WORD.findall(self.text.of(current))
                    break
                following = current.child_by_field_name("declarator")
                current = following or next(
                    (c for c in current.named_children if "declarator" in c.type or c.type == "identifier"), None
                )

    def line(self, offset: int) -> int:
        return self.source.count("\n", 0, offset) + 1

    # ---- descriptions ----------------------------------------------------------------------------------------------

    def kernels(self) -> list[Kernel]:
        found = []
        for item in self.items:
            if item.kind != "function" or "__global__" not in item.head:
                continue
            body = item.inner.child_by_field_name("body")
            declarator = _find(item.inner, ["function_declarator"])
            if body is None or declarator is None:
                continue
            name_node = declarator.child_by_field_name("declarator")
            if name_node is None or name_node.type != "identifier":
                # An explicit specialisation: it is a definition, but adds no kernel of its own.
                if name_node is not None and name_node.type == "template_function":
                    continue
                raise Unsupported(
                    "kernel-declarator", f"kernel at line {self._where(item.span[0])}: unusual declarator"
                )
            name = self.text.of(name_node)
            bounds = re.search(r"__launch_bounds__\s*\(((?:[^()]|\([^()]*\))*)\)", item.head)
            found.append(
                Kernel(
                    name=name,
                    qualified="::".join((*item.namespace, name)),
                    params=tuple(self._params(declarator)),
                    template_params=tuple(self._template_params(item.node)),
                    line=self.line(self.text.span(name_node)[0]),
                    launch_bounds=bounds.group(1).strip() if bounds else "",
                    span=item.span,
                    body_span=self.text.span(body),
                    extern_c=item.extern_c or 'extern "C"' in self.source[item.span[0] : self.text.span(body)[0]],
                )
            )
        return found

    def _where(self, offset: int) -> str:
        label, line = self.line_map.resolve(self.line(offset))
        return f"{label}:{line}"

    def _params(self, declarator: tree_sitter.Node) -> Iterator[Param]:
        parameters = declarator.child_by_field_name("parameters")
        if parameters is None:
            return
        for node in parameters.named_children:
            if node.type not in (
                "parameter_declaration",
                "optional_parameter_declaration",
                "variadic_parameter_declaration",
            ):
                continue
            text = self.source[slice(*self.text.span(node))]
            if text.strip() == "void":
                continue
            inside = node.child_by_field_name("declarator") or node
            names = [self.text.of(n) for n in _walk(inside) if n.type == "identifier" and not n.is_missing]
            if not names:
                raise Unsupported("unnamed-parameter", f"a kernel's parameter without a name: {text}")
            value = node.child_by_field_name("default_value")
            if value is not None:
                text = text[: self.text.span(value)[0] - self.text.span(node)[0]].rstrip().removesuffix("=").rstrip()
            yield Param(text, names[-1] if value is None else names[0], "variadic" in node.type)

    def _template_params(self, node: tree_sitter.Node) -> Iterator[TemplateParam]:
        parameters = node.child_by_field_name("parameters")
        if node.type != "template_declaration" or parameters is None:
            return
        for child in parameters.named_children:
            pack = "variadic" in child.type
            if "type_parameter" in child.type:
                kind = "template" if child.type.startswith("template_template") else "type"
                names = [self.text.of(n) for n in child.named_children if n.type == "type_identifier"]
                yield TemplateParam(names[0] if names else "", kind, pack)
            elif "template_template" in child.type:
                names = [self.text.of(n) for n in _walk(child) if n.type == "type_identifier"]
                yield TemplateParam(names[-1] if names else "", "template", pack)
            else:
                names = [self.text.of(n) for n in _walk(child) if n.type == "identifier"]
                yield TemplateParam(names[0] if names else "", "value", pack)

    def launches(self) -> list[Launch]:
        found = []
        for node in _walk(self.tree.root_node):
            if node.type != "kernel_call_syntax" or node.parent is None:
                continue
            call = node.parent
            function = call.child_by_field_name("function")
            arguments = call.child_by_field_name("arguments")
            if function is None or arguments is None:
                raise Unsupported("launch-syntax", f"launch at {self._where(self.text.span(node)[0])}: not understood")
            config = self._list(node)
            span = self.text.span(call)
            inside = self.text.span(arguments)
            owner, dispatch = self._owner(call)
            found.append(
                Launch(
                    kernel=self.source[slice(*self.text.span(function))],
                    template_args=tuple(self._template_args(function)),
                    grid=config[0] if config else "",
                    block=config[1] if len(config) > 1 else "",
                    shared=config[2] if len(config) > 2 else "",
                    stream=config[3] if len(config) > 3 else "",
                    args=tuple(self._list(arguments)),
                    span=span,
                    config_span=self.text.span(node),
                    args_span=(inside[0] + 1, inside[1] - 1),
                    line=self.line(span[0]),
                    function=owner,
                    dispatch=dispatch,
                )
            )
        expected = self.code_without_directives().count("<<<")
        if len(found) != expected:
            raise Unsupported("launch-syntax", f"{expected} kernel launches, of which {len(found)} were understood")
        return found

    def code_without_directives(self) -> str:
        return apply_edits(self.code, [Edit(start, end) for start, end, _, _ in directives(self.code)])

    def _list(self, node: tree_sitter.Node) -> list[str]:
        """Comma-separated children of a bracketed node, as written."""
        parts: list[list[tree_sitter.Node]] = [[]]
        for child in node.children:
            if child.type in ("(", ")", "<<<", ">>>", "<", ">"):
                continue
            if child.type == ",":
                parts.append([])
            else:
                parts[-1].append(child)
        return [self.source[self.text.span(p[0])[0] : self.text.span(p[-1])[1]] for p in parts if p]

    def _template_args(self, function: tree_sitter.Node) -> list[str]:
        for node in _walk(function):
            if node.type == "template_argument_list":
                return self._list(node)
        return []

    def _owner(self, node: tree_sitter.Node) -> tuple[str, str]:
        dispatch = owner = ""
        current = node.parent
        while current is not None:
            if current.type == "call_expression" and not dispatch:
                function = current.child_by_field_name("function")
                if function is not None and self.text.of(function).startswith("AT_DISPATCH_"):
                    dispatch = self.text.of(function)
            elif current.type == "function_definition":
                owner = next(iter(self._declared_name(current)), "")
            current = current.parent
        return owner, dispatch

    def shared_decls(self) -> list[SharedDecl]:
        found = []
        for node in _walk(self.tree.root_node):
            if node.type not in ("declaration", "field_declaration") or not any(
                child.type == "__shared__" or (child.type == "type_qualifier" and self.text.of(child) == "__shared__")
                for child in node.children
            ):
                continue
            declarators = [c for i, c in enumerate(node.children) if node.field_name_for_child(i) == "declarator"]
            type_node = node.child_by_field_name("type")
            if type_node is None or not declarators:
                raise Unsupported(
                    "shared-syntax", f"__shared__ at {self._where(self.text.span(node)[0])}: not understood"
                )
            span = self.text.span(node)
            owner, _ = self._owner(node)
            qualifiers = [
                self.text.of(c) for c in node.children if c.type == "type_qualifier" and self.text.of(c) != "__shared__"
            ]
            found.append(
                SharedDecl(
                    names=tuple(self._declared_name(node)),
                    declarators=tuple(self.source[slice(*self.text.span(d))] for d in declarators),
                    type=" ".join([*qualifiers, self.source[slice(*self.text.span(type_node))]]),
                    dynamic=bool(re.search(r"\bextern\b", self.code[span[0] : span[1]])),
                    line=self.line(span[0]),
                    span=span,
                    function=owner,
                )
            )
        return found

    def symbols(self) -> list[Symbol]:
        found = []
        for item in self.items:
            if item.kind != "variable" or item.inner.type != "declaration":
                continue
            space = next((value for word, value in _SPACES.items() if word in item.head), None)
            if space is None:
                continue
            for name in self._declared_name(item.inner):
                found.append(
                    Symbol(name, "::".join((*item.namespace, name)), space, self.line(item.span[0]), item.span)
                )
        return found

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
            name = _WORD.match(rest)
            if word == "define" and name is not None:
                found[name.group()] = rest[name.end() :]
        return found

    def names(self) -> frozenset[str]:
        declared = {name for item in self.items if item.kind in ("variable", "type", "using") for name in item.names}
        return frozenset(declared | self.macros().keys())

    def errors(self) -> tuple[int, ...]:
        if not self.tree.root_node.has_error:
            return ()
        return tuple(sorted({n.start_point[0] + 1 for n in _walk(self.tree.root_node) if n.is_error or n.is_missing}))

    # ---- texts -----------------------------------------------------------------------------------------------------

    def _methods(self, item: _Item) -> Iterator[tuple[tree_sitter.Node, str]]:
        """Member functions with a body, and the text before it."""
        for node in _walk(item.inner):
            if node.type != "function_definition":
                continue
            body = node.child_by_field_name("body")
            if body is not None:
                start = self.text.span(node)[0]
                yield node, self.code[start : self.text.span(body)[0]]

    def _bodiless(self, node: tree_sitter.Node) -> Edit:
        """Turn a member function's definition into a declaration."""
        body = node.child_by_field_name("body")
        assert body is not None
        initialisers = next((c for c in node.children if c.type == "field_initializer_list"), body)
        return Edit(self.text.span(initialisers)[0], self.text.span(body)[1], ";")

    def host(self, kernels: Sequence[Kernel], launches: Sequence[Launch]) -> str:
        edits: list[Edit] = []
        for kernel in kernels:
            edits.append(Edit(*kernel.body_span, host_stub(kernel)))
        for launch in launches:
            start, _ = launch.span
            config = ", ".join(part for part in (launch.grid, launch.block, launch.shared, launch.stream) if part)
            edits.append(Edit(start, start, f"(::kw::push_launch({config}), "))
            edits.append(Edit(*launch.config_span))
            edits.append(Edit(launch.span[1], launch.span[1], ")"))
        definitions = {kernel.span for kernel in kernels}
        for item in self.items:
            if item.kind == "function" and item.on_device and item.span not in definitions:
                if "__host__" not in item.head and "__global__" not in item.head:
                    edits.append(Edit(*item.span))
                elif "__global__" in item.head and item.inner.child_by_field_name("body") is not None:
                    edits.append(Edit(*item.span))  # an explicit specialisation of a kernel: the stub is the template's
            elif item.kind == "type":
                edits.extend(
                    self._bodiless(node)
                    for node, head in self._methods(item)
                    if "__device__" in head and "__host__" not in head
                )
        for symbol in self.symbols():
            edits.append(Edit(symbol.span[1], symbol.span[1], f' KW_SYMBOL({symbol.name}, "{symbol.qualified}")'))
        edits.extend(Edit(*include.span) for include in self.includes())
        return apply_edits(self.source, edits)

    def device(self, kernels: Sequence[Kernel]) -> str:
        wanted = self._device_items(self._template_words(kernels))
        edits: list[Edit] = [Edit(*include.span) for include in self.includes()]
        for index, item in enumerate(self.items):
            if item.kind == "directive":
                continue
            if index not in wanted:
                edits.append(Edit(*item.span))
            elif item.kind == "type":
                edits.extend(self._bodiless(node) for node, head in self._methods(item) if not _runs_on_device(head))
        return apply_edits(self.source, edits)

    def _template_words(self, kernels: Sequence[Kernel]) -> set[str]:
        """Names in template arguments of kernels: the device's compiler will be asked for those instantiations."""
        words: set[str] = set()
        for kernel in kernels:
            if kernel.template_params:
                for match in re.finditer(rf"\b{kernel.name}\s*<([^<>;(){{}}]+)>", self.code):
                    words.update(_WORD.findall(match.group(1)))
        return words

    def _device_items(self, also: set[str]) -> set[int]:
        """Device code and, transitively, the types, constants and aliases at namespace scope that it names.

        Args:
            also: names that are wanted beside.
        """
        by_name: dict[str, list[int]] = {}
        for index, item in enumerate(self.items):
            for name in item.names:
                by_name.setdefault(name, []).append(index)
        macros = self.macros()
        wanted: set[int] = set()
        queue: list[int] = []

        def want(index: int) -> None:
            if index not in wanted:
                wanted.add(index)
                queue.append(index)

        for index, item in enumerate(self.items):
            if item.kind != "directive" and (item.on_device or self._has_device_members(item)):
                want(index)
            elif item.kind == "using" and item.inner.type in ("using_declaration", "namespace_alias_definition"):
                words = set(_WORD.findall(self.code[slice(*item.span)]))
                if not words & _HOST_WORDS:
                    wanted.add(index)
        seen: set[str] = set()
        words = set(also)
        while words or queue:
            if queue:
                words |= set(_WORD.findall(self.code[slice(*self.items[queue.pop()].span)]))
            for name in words & macros.keys() - seen:
                words |= set(_WORD.findall(macros[name]))
            for name in words - seen:
                seen.add(name)
                for index in by_name.get(name, ()):
                    other = self.items[index]
                    if other.kind == "function" and not _runs_on_device(other.head):
                        continue
                    want(index)
            words = set()
        return wanted

    def _has_device_members(self, item: _Item) -> bool:
        return item.kind == "type" and "__device__" in self.code[slice(*item.span)]


def _runs_on_device(head: str) -> bool:
    return bool(re.search(r"__global__|__device__|\bconstexpr\b", head))


def host_stub(kernel: Kernel) -> str:
    """The body that a kernel has on the host: it launches the kernel's device code with its own arguments."""
    template = ",".join(("..." if p.pack else "") + p.name for p in kernel.template_params)
    arguments = "".join(f", {p.name}{'...' if p.pack else ''}" for p in kernel.params)
    return f'{{ KW_KERNEL_STUB("{kernel.qualified}", "{template}"{arguments}); }}'


def split_text(source: str, line_map: LineMap | None = None) -> SplitSource:
    """Split one CUDA source.

    Args:
        source: CUDA C++ text; comments are blanked here.
        line_map: where its lines come from.

    Raises:
        Unsupported: a construct that the parser or this module does not understand; the compilers might.
    """
    line_map = line_map or LineMap()
    splitter = _Splitter(blank_comments(source), line_map)
    kernels = splitter.kernels()
    launches = splitter.launches()
    declared = len(re.findall(r"__global__", splitter.code_without_directives()))
    known = sum(item.head.count("__global__") for item in splitter.items)
    if declared != known:
        raise Unsupported("kernel-syntax", f"{declared} uses of __global__, of which {known} were understood")
    return SplitSource(
        source=splitter.source,
        host=splitter.host(kernels, launches),
        device=splitter.device(kernels),
        kernels=tuple(kernels),
        launches=tuple(launches),
        shared_decls=tuple(splitter.shared_decls()),
        symbols=tuple(splitter.symbols()),
        includes=tuple(splitter.includes()),
        line_map=line_map,
        names=splitter.names(),
        errors=splitter.errors(),
    )


def split(extension: ExtensionSource, preprocess: Callable[[str], str] | None = None) -> SplitSource:
    """Split an extension as one text: its C++ sources, the definition of its module, its CUDA sources.

    torch compiles the C++ and the CUDA sources apart. As one text, with the module's definition where torch puts it,
    the exported functions must be declared before it, as they must be there.

    Args:
        extension: what `load_inline` or `load` was called with.
        preprocess: expands macros (see `expand_macros`); needed where macros of the candidate hide kernels or launches.

    Raises:
        CompileFailure: no module of the extension's name is defined.
        Unsupported: see `split_text`.
    """
    pieces: list[tuple[str, str, int]] = []
    seen: set[str] = set()
    for index, (text, label) in enumerate(zip((*extension.cpp, *extension.cuda), extension.labels, strict=True)):
        if index == len(extension.cpp):
            pieces.extend(_exports(extension))
        pieces.extend(expand_includes(text, label, extension.headers, seen))
    if not extension.cuda:
        pieces.extend(_exports(extension))
    source, line_map = join_sources(*zip(*pieces, strict=True))
    code = blank_comments(source)
    _check_module(extension, blank_literals(code))
    if preprocess is not None and hides_cuda_in_macros(code):
        code, line_map = expand_macros(code, line_map, preprocess)
    return split_text(code, line_map)


def _exports(extension: ExtensionSource) -> list[tuple[str, str, int]]:
    """The module that exports the extension's `functions`, as torch writes it; nothing where there are none."""
    if not extension.functions:
        return []
    lines = "".join(f' m.def("{name}", &{name}, "{name}");' for name in extension.functions)
    return [(f"PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{{lines} }}", "functions", 1)]


def _check_module(extension: ExtensionSource, code: str) -> None:
    names = re.findall(r"\bPYBIND11_MODULE\s*\(\s*(\w+)", code)
    if not names:
        if re.search(r"\bTORCH_LIBRARY(?:_FRAGMENT|_IMPL)?\b", code):
            raise Unsupported("torch-library", "operators registered through TORCH_LIBRARY")
        raise CompileFailure(
            "no-module", f"extension {extension.name} exports nothing: no functions, no PYBIND11_MODULE"
        )
    for name in names:
        if name not in ("TORCH_EXTENSION_NAME", extension.name):
            raise CompileFailure("module-name", f"PYBIND11_MODULE({name}) in an extension named {extension.name}")
