"""Split CUDA C++ into what the host compiler and what the device compiler get, and describe its kernels and launches.

The source is parsed (tree-sitter-cuda), not matched. `source` keeps the candidate's text with comments blanked; every
`span` is a pair of offsets into it. The host text has kernel bodies replaced by stubs, as nvcc does, so that function
pointers, templates and attributes of kernels keep working; the device text has host-only code blanked. Both keep the
line numbers of `source`.
"""

import re
from collections.abc import Callable, Iterator, Sequence

import tree_sitter

from ..sandbox.engine import CompileFailure
from .describe import DescribedSource
from .frontend import ExtensionSource, Unsupported
from .lexical import (
    Edit,
    LineMap,
    apply_edits,
    blank_comments,
    blank_literals,
    expand_includes,
    expand_macros,
    hides_cuda_in_macros,
    join_sources,
)
from .source_tree import WORD, Item, walk
from .split_model import Kernel, Launch, SplitSource

_HOST_WORDS = frozenset(("torch", "at", "c10", "py", "pybind11", "Tensor", "cublasHandle_t", "cudnnHandle_t"))


class _Splitter(DescribedSource):
    """A described source that writes the text for each compiler."""

    def _methods(self, item: Item) -> Iterator[tuple[tree_sitter.Node, str]]:
        """Member functions with a body, and the text before it."""
        for node in walk(item.inner):
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
                    words.update(WORD.findall(match.group(1)))
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
                words = set(WORD.findall(self.code[slice(*item.span)]))
                if not words & _HOST_WORDS:
                    wanted.add(index)
        seen: set[str] = set()
        words = set(also)
        while words or queue:
            if queue:
                words |= set(WORD.findall(self.code[slice(*self.items[queue.pop()].span)]))
            for name in words & macros.keys() - seen:
                words |= set(WORD.findall(macros[name]))
            for name in words - seen:
                seen.add(name)
                for index in by_name.get(name, ()):
                    other = self.items[index]
                    if other.kind == "function" and not _runs_on_device(other.head):
                        continue
                    want(index)
            words = set()
        return wanted

    def _has_device_members(self, item: Item) -> bool:
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
