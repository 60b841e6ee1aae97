"""What splitting a CUDA source yields: its kernels, launches, shared memory, variables and includes, and both texts."""

from dataclasses import dataclass

from .lexical import LineMap

Span = tuple[int, int]
"""Offsets into `SplitSource.source`."""


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
