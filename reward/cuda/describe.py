"""Kernels, launches, shared memory and device variables of a CUDA source, described."""

import re
from collections.abc import Iterator

import tree_sitter

from .frontend import Unsupported
from .source_tree import SourceTree, find_declarator, walk
from .split_model import Kernel, Launch, Param, SharedDecl, Symbol, TemplateParam

_SPACES = {"__constant__": "constant", "__managed__": "managed", "__device__": "device"}


class DescribedSource(SourceTree):
    """A source tree that describes what matters for a launch."""

    def kernels(self) -> list[Kernel]:
        found = []
        for item in self.items:
            if item.kind != "function" or "__global__" not in item.head:
                continue
            body = item.inner.child_by_field_name("body")
            declarator = find_declarator(item.inner, ["function_declarator"])
            if body is None or declarator is None:
                continue
            name_node = declarator.child_by_field_name("declarator")
            if name_node is None or name_node.type != "identifier":
                # An explicit specialisation: it is a definition, but adds no kernel of its own.
                if name_node is not None and name_node.type == "template_function":
                    continue
                raise Unsupported("kernel-declarator", f"kernel at line {self.where(item.span[0])}: unusual declarator")
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
            names = [self.text.of(n) for n in walk(inside) if n.type == "identifier" and not n.is_missing]
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
                names = [self.text.of(n) for n in walk(child) if n.type == "type_identifier"]
                yield TemplateParam(names[-1] if names else "", "template", pack)
            else:
                names = [self.text.of(n) for n in walk(child) if n.type == "identifier"]
                yield TemplateParam(names[0] if names else "", "value", pack)

    def launches(self) -> list[Launch]:
        found = []
        for node in walk(self.tree.root_node):
            if node.type != "kernel_call_syntax" or node.parent is None:
                continue
            call = node.parent
            function = call.child_by_field_name("function")
            arguments = call.child_by_field_name("arguments")
            if function is None or arguments is None:
                raise Unsupported("launch-syntax", f"launch at {self.where(self.text.span(node)[0])}: not understood")
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
        for node in walk(function):
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
                owner = next(iter(self.declared_name(current)), "")
            current = current.parent
        return owner, dispatch

    def shared_decls(self) -> list[SharedDecl]:
        found = []
        for node in walk(self.tree.root_node):
            if node.type not in ("declaration", "field_declaration") or not any(
                child.type == "__shared__" or (child.type == "type_qualifier" and self.text.of(child) == "__shared__")
                for child in node.children
            ):
                continue
            declarators = [c for i, c in enumerate(node.children) if node.field_name_for_child(i) == "declarator"]
            type_node = node.child_by_field_name("type")
            if type_node is None or not declarators:
                raise Unsupported(
                    "shared-syntax", f"__shared__ at {self.where(self.text.span(node)[0])}: not understood"
                )
            span = self.text.span(node)
            owner, _ = self._owner(node)
            qualifiers = [
                self.text.of(c) for c in node.children if c.type == "type_qualifier" and self.text.of(c) != "__shared__"
            ]
            found.append(
                SharedDecl(
                    names=tuple(self.declared_name(node)),
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
            for name in self.declared_name(item.inner):
                found.append(
                    Symbol(name, "::".join((*item.namespace, name)), space, self.line(item.span[0]), item.span)
                )
        return found
