"""Catch the extensions a candidate builds, by standing in for `torch.utils.cpp_extension` while it is imported.

The text of a candidate says little about what reaches the compiler (sources are concatenated, formatted, read from
lists, written to files and loaded from there), so nothing is guessed from it: `load_inline` and `load` are replaced
before the candidate runs, and what they are called with is handed to a builder, which returns the module object.
"""

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from ..sandbox.engine import CompileFailure

MAX_SOURCE_BYTES = 1_000_000
"""Limit on all source text of one extension. The largest of 1,122 public solutions has 21 kB."""
MAX_EXTENSIONS = 32
"""Limit on the extensions one candidate builds."""
MAX_NAME = 200

_CUDA_SUFFIXES = (".cu", ".cuh")
_CPP_SUFFIXES = (".cpp", ".cc", ".cxx", ".c")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_MODULE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*\Z")


class Unsupported(Exception):
    """The code may be valid, but this path cannot build it. The caller takes another path and reports why.

    Attributes:
        feature: short code of what is missing (`sycl`, `torch-library`, `overloaded-kernel`, ...).
    """

    def __init__(self, feature: str, message: str) -> None:
        super().__init__(message)
        self.feature = feature
        self.message = message

    def __reduce__(self) -> tuple[Any, ...]:
        return Unsupported, (self.feature, self.message)


@dataclass(frozen=True, slots=True)
class Flags:
    """Compiler options that the candidate asked for.

    Attributes:
        cflags: for the host compiler (`extra_cflags`).
        cuda_cflags: for nvcc (`extra_cuda_cflags`).
        ldflags: for the linker (`extra_ldflags`).
        include_paths: `extra_include_paths`.
    """

    cflags: tuple[str, ...] = ()
    cuda_cflags: tuple[str, ...] = ()
    ldflags: tuple[str, ...] = ()
    include_paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExtensionSource:
    """What one call of `load_inline` or `load` would compile.

    Attributes:
        name: the extension's name as the candidate gave it.
        cpp: C++ sources, one translation unit in the given order (`load_inline`) or one unit each (`load`).
        cuda: CUDA sources, likewise.
        functions: names to export; empty where the sources hold their own `PYBIND11_MODULE`.
        flags: the candidate's compiler options.
        labels: one name per source, C++ first, for compiler messages (`cuda_sources[0]`, or the file's name).
        origin: `load_inline` or `load`.
        headers: text of header files beside the sources (`load` only), by the name they are included with.
    """

    name: str
    cpp: tuple[str, ...] = ()
    cuda: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    flags: Flags = Flags()
    labels: tuple[str, ...] = ()
    origin: str = "load_inline"
    headers: Mapping[str, str] = field(default_factory=dict)


Builder = Callable[[ExtensionSource], Any]
"""Builds an extension and returns the object that stands in for its Python module."""


def _strings(value: Any, what: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, (str, os.PathLike)):
        value = [value]
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{what} must be a string or a list of strings, not {type(value).__name__}")
    texts = []
    for item in value:
        if isinstance(item, os.PathLike):
            item = os.fspath(item)
        if not isinstance(item, str):
            raise TypeError(f"{what} must hold strings, not {type(item).__name__}")
        texts.append(str(item))
    return tuple(texts)


def _words(value: Any, what: str) -> tuple[str, ...]:
    """Options, split as a shell would (candidates write "-O3 --use_fast_math" in one string as well)."""
    words: list[str] = []
    for text in _strings(value, what):
        words.extend(shlex.split(text))
    return tuple(words)


def _functions(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        names = [value]
    elif isinstance(value, (list, dict)):
        names = list(value)
    else:
        raise ValueError(f"Expected 'functions' to be a list or dict, but was {type(value)}")
    for name in names:
        if not isinstance(name, str) or not all(_IDENTIFIER.match(part) for part in name.split("::")):
            raise CompileFailure("bad-function-name", f"functions: {name!r} is not a C++ name")
    return tuple(dict.fromkeys(names))


def _name(value: Any) -> str:
    if not isinstance(value, str) or len(value) > MAX_NAME or not _MODULE_NAME.match(value):
        raise CompileFailure("bad-extension-name", f"name: {value!r} cannot name an extension module")
    return value


def _check_size(sources: tuple[str, ...]) -> None:
    size = sum(len(text) for text in sources)
    if size > MAX_SOURCE_BYTES:
        raise CompileFailure(
            "source-too-large", f"the extension's sources hold {size:,} characters; the limit is {MAX_SOURCE_BYTES:,}"
        )


def inline_source(
    name: Any,
    cpp_sources: Any,
    cuda_sources: Any = None,
    sycl_sources: Any = None,
    functions: Any = None,
    extra_cflags: Any = None,
    extra_cuda_cflags: Any = None,
    extra_sycl_cflags: Any = None,
    extra_ldflags: Any = None,
    extra_include_paths: Any = None,
    build_directory: Any = None,
    verbose: bool = False,
    with_cuda: bool | None = None,
    with_sycl: bool | None = None,
    is_python_module: bool = True,
    with_pytorch_error_handling: bool = True,
    keep_intermediates: bool = True,
    use_pch: bool = False,
    no_implicit_headers: bool = False,
) -> ExtensionSource:
    """`load_inline`'s arguments as a value. The signature is torch's, so that wrong calls fail as they do there.

    Raises:
        CompileFailure: a name or size that no compiler should see.
        Unsupported: SYCL, or a module that is not a Python module.
    """
    del extra_sycl_cflags, build_directory, verbose, with_cuda, with_pytorch_error_handling
    del keep_intermediates, use_pch, no_implicit_headers  # they change how torch builds, not what the code computes
    if sycl_sources or with_sycl:
        raise Unsupported("sycl", "SYCL sources")
    if not is_python_module:
        raise Unsupported("torch-library", "is_python_module=False (operators registered through TORCH_LIBRARY)")
    cpp, cuda = _strings(cpp_sources, "cpp_sources"), _strings(cuda_sources, "cuda_sources")
    _check_size(cpp + cuda)
    labels = [f"cpp_sources[{i}]" for i in range(len(cpp))] + [f"cuda_sources[{i}]" for i in range(len(cuda))]
    flags = Flags(
        _words(extra_cflags, "extra_cflags"),
        _words(extra_cuda_cflags, "extra_cuda_cflags"),
        _words(extra_ldflags, "extra_ldflags"),
        _strings(extra_include_paths, "extra_include_paths"),
    )
    return ExtensionSource(_name(name), cpp, cuda, _functions(functions), flags, tuple(labels))


def file_source(
    name: Any,
    sources: Any,
    extra_cflags: Any = None,
    extra_cuda_cflags: Any = None,
    extra_sycl_cflags: Any = None,
    extra_ldflags: Any = None,
    extra_include_paths: Any = None,
    build_directory: Any = None,
    verbose: bool = False,
    with_cuda: bool | None = None,
    with_sycl: bool | None = None,
    is_python_module: bool = True,
    is_standalone: bool = False,
    keep_intermediates: bool = True,
) -> ExtensionSource:
    """`load`'s arguments as a value: the listed files and the headers beside them are read here, inside the sandbox.

    Raises:
        CompileFailure: a file is missing or too large.
        Unsupported: SYCL, standalone programs, operator libraries, files of another kind.
    """
    del extra_sycl_cflags, build_directory, verbose, with_cuda, keep_intermediates
    if with_sycl:
        raise Unsupported("sycl", "SYCL sources")
    if not is_python_module or is_standalone:
        raise Unsupported("torch-library", "an extension that is not a Python module")
    cpp: list[tuple[str, str]] = []
    cuda: list[tuple[str, str]] = []
    headers: dict[str, str] = {}
    room = MAX_SOURCE_BYTES
    for text in _strings(sources, "sources"):
        path = Path(text)
        if path.suffix in _CUDA_SUFFIXES:
            group = cuda
        elif path.suffix in _CPP_SUFFIXES:
            group = cpp
        else:
            raise Unsupported("source-kind", f"source file {path.name} is neither C++ nor CUDA")
        content = _read_source(path, room)
        room -= len(content)
        group.append((path.name, content))
        for header in sorted(path.resolve().parent.iterdir()):
            if header.suffix in (".h", ".hpp", ".cuh", ".inl") and header.is_file() and header.name not in headers:
                headers[header.name] = _read_source(header, room)
                room -= len(headers[header.name])
    flags = Flags(
        _words(extra_cflags, "extra_cflags"),
        _words(extra_cuda_cflags, "extra_cuda_cflags"),
        _words(extra_ldflags, "extra_ldflags"),
        _strings(extra_include_paths, "extra_include_paths"),
    )
    return ExtensionSource(
        _name(name),
        tuple(content for _, content in cpp),
        tuple(content for _, content in cuda),
        (),
        flags,
        tuple(label for label, _ in cpp + cuda),
        "load",
        headers,
    )


def _read_source(path: Path, room: int) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(room + 1)
    except OSError as error:
        raise CompileFailure("missing-source", f"source file {path.name}: {error.strerror}") from error
    if len(data) > room:
        raise CompileFailure("source-too-large", f"the extension's sources hold more than {MAX_SOURCE_BYTES:,} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CompileFailure("source-encoding", f"source file {path.name} is not UTF-8") from error


class Interception:
    """The functions that replace torch's, and what they have seen.

    Attributes:
        sources: every extension asked for, in order, whether or not it could be built.
    """

    def __init__(self, build: Builder, module: ModuleType) -> None:
        self._build = build
        self._module = module
        self._saved: dict[str, Any] = {}
        self.sources: list[ExtensionSource] = []

    def _take(self, source: ExtensionSource) -> Any:
        if not source.cpp and not source.cuda:
            raise CompileFailure("no-source", f"extension {source.name}: no sources")
        if len(self.sources) >= MAX_EXTENSIONS:
            raise CompileFailure("too-many-extensions", f"more than {MAX_EXTENSIONS} extensions in one candidate")
        self.sources.append(source)
        return self._build(source)

    def load_inline(self, *args: Any, **kwargs: Any) -> Any:
        """Stands in for `torch.utils.cpp_extension.load_inline`."""
        return self._take(inline_source(*args, **kwargs))

    def load(self, *args: Any, **kwargs: Any) -> Any:
        """Stands in for `torch.utils.cpp_extension.load`."""
        return self._take(file_source(*args, **kwargs))

    def _no_setuptools(self, *args: Any, **kwargs: Any) -> Any:
        raise Unsupported("setuptools", "extensions built through setuptools (CUDAExtension, CppExtension)")

    def install(self) -> None:
        """Replace torch's functions."""
        replacements: dict[str, Any] = {"load_inline": self.load_inline, "load": self.load}
        for name in ("CUDAExtension", "CppExtension"):
            replacements[name] = self._no_setuptools
        for name, function in replacements.items():
            self._saved[name] = getattr(self._module, name)
            setattr(self._module, name, function)

    def uninstall(self) -> None:
        """Put torch's functions back."""
        for name, function in self._saved.items():
            setattr(self._module, name, function)
        self._saved.clear()


@contextmanager
def intercepted(build: Builder) -> Iterator[Interception]:
    """Within the block, `torch.utils.cpp_extension.load_inline` and `load` hand their sources to `build`."""
    import torch.utils.cpp_extension as module

    interception = Interception(build, module)
    interception.install()
    try:
        yield interception
    finally:
        interception.uninstall()


class RecordedModule:
    """Stands in for a built extension where only the sources are wanted: every attribute is a function that refuses."""

    def __init__(self, source: ExtensionSource) -> None:
        self._source = source

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)

        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise RuntimeError(f"extension {self._source.name} was recorded, not built")

        return refuse


def record(candidate: str) -> tuple[list[ExtensionSource], Exception | None]:
    """Execute a candidate's module level and return what it would build, with the exception that ended it, if any.

    The candidate's code runs in this process: call it only inside a sandboxed child.
    """
    with intercepted(RecordedModule) as interception:
        namespace: dict[str, Any] = {"__name__": "candidate"}
        try:
            exec(compile(candidate, "candidate.py", "exec"), namespace)
        except Exception as error:
            return interception.sources, error
    return interception.sources, None
