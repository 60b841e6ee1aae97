"""The engine that only compiles CUDA candidates and says what code came out (mode `cuda-compile` of the sandbox).

Nothing is launched and no GPU is needed: device code goes through NVRTC for a fixed architecture, host code through
g++ with the same header as on a GPU. What that path cannot build is translated for the CPU emulator and compiled
there. What neither can build is not compiled at all, and the reply says so.
"""

import ast
import contextlib
import hashlib
import json
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...suites.python_syntax import parse
from ..sandbox.engine import CompileFailure, LoadContext, TorchEngine, load_module
from .builder import Builder
from .compiled_code import code_hash
from .device_code import INCLUDE_DIR, instantiations
from .emulator_build import Toolchain, ToolchainError, default_folder, emulated_flags
from .emulator_translate import translate
from .engine_gpu import gpu_host_compiler
from .frontend import ExtensionSource, RecordedModule, Unsupported, intercepted
from .host_code import host_units
from .lexical import point_into
from .nvrtc import NvrtcMissing, include_folders, nvrtc
from .pretend import pretend_cuda
from .split import split
from .split_model import SplitSource
from .toolchain import PreparedHost, preprocess

ARCHITECTURE = "sm_90"


def prepare() -> tuple[PreparedHost | None, str, Toolchain | None]:
    """Make what compiling needs and is made once per machine (half a minute, more on a busy one).

    Returns:
        The host compiler of the GPU's path, or None and why there is none; the emulator's, or None without a C++
        compiler.
    """
    host, missing, toolchain = None, "", None
    try:
        nvrtc()
        host = gpu_host_compiler().prepare()
    except (NvrtcMissing, Unsupported, CompileFailure) as error:
        missing = str(error)
    with contextlib.suppress(ToolchainError):
        toolchain = Toolchain.prepare()
    return host, missing, toolchain


class CompileEngine(TorchEngine):
    """Mode `cuda-compile`. One session may load many candidates: host code that was compiled before is not again."""

    name = "compile"

    def __init__(self) -> None:
        self._host: PreparedHost | None = None
        self._missing = ""
        self._toolchain: Toolchain | None = None
        self._parts: dict[str, str] = {}
        self._host_code: dict[str, str] = {}
        self._compiled: list[dict[str, Any]] = []

    def warm(self) -> None:
        """Import torch, load NVRTC, prepare both host compilers."""
        super().warm()
        self._host, self._missing, self._toolchain = prepare()

    def paths(self) -> list[Path]:
        """Headers and prepared compilers."""
        root = [self._host.folder] if self._host is not None else []
        return [INCLUDE_DIR, default_folder(), *root, *include_folders()]

    def load(self, source: str, context: LoadContext) -> Any:
        """Run the candidate's module with `load_inline` and `load` replaced by compiling; nothing can be launched.

        An option `host_code` maps what `compiled` said of host code before to the hash it gave: that is not compiled.

        Raises:
            CompileFailure: the module does not run, or an extension of it does not compile.
        """
        self._compiled = []
        self._host_code |= context.options.get("host_code", {})
        extensions: list[ExtensionSource] = []
        failures: list[CompileFailure] = []

        def build(extension: ExtensionSource) -> RecordedModule:
            extensions.append(extension)
            try:
                with context.compiling():
                    self._compiled.append(self._compile(extension, context.directory))
            except CompileFailure as problem:
                sources = (*extension.cpp, *extension.cuda)
                message = point_into(str(problem), sources, extension.labels, source)
                failures.append(CompileFailure("compile", f"{problem.reason}: {message}"))
                raise failures[-1] from None
            return RecordedModule(extension)

        pretend_cuda()
        try:
            with intercepted(build):
                model = load_module(source, context)
        except CompileFailure:
            if failures:
                raise failures[-1] from None
            raise
        if failures:  # the candidate caught it and would do without
            raise failures[-1]
        self._compiled.append({"code": "python", "message": python_hash(source, extensions)})
        return model

    def compiled(self) -> list[dict[str, Any]]:
        """What the last load made: one finding per extension (`code` is `nvrtc`, `emulator` or `source`) and one for
        the Python part; `message` is the hash. Where g++ took the host code, `host_text` names its text and `host_code`
        is the hash of the library."""
        return self._compiled

    def _compile(self, extension: ExtensionSource, directory: Path) -> dict[str, Any]:
        about = [extension.functions, extension.flags.cflags, extension.flags.cuda_cflags, extension.flags.ldflags]
        try:
            text, device, rest = self._fast(extension, directory)
            host = self._host_code[text]
            found = {"host_text": text, "host_code": host}
            if not rest:
                return _finding("nvrtc", about, host, device) | found
            why = "kernels are templates whose arguments only the running host code knows"
            return _finding("source", about, host, device, rest) | found | {"why": why}
        except Unsupported as gap:
            why = f"{gap.feature}: {gap.message}"
        try:
            return _finding("emulator", about, self._emulated(extension, directory)) | {"why": why}
        except Unsupported as gap:
            texts = [*extension.cpp, *extension.cuda]
            return _finding("source", about, *texts) | {"why": f"{why}; {gap.feature}: {gap.message}"}

    def _fast(self, extension: ExtensionSource, directory: Path) -> tuple[str, str, str]:
        """Which host text, the hash of the device code, and the device text where kernels of it are left out.

        Raises:
            CompileFailure: the code is wrong. Unsupported: this path cannot say.
        """
        if self._host is None:
            raise Unsupported("not-installed", self._missing)
        builder = Builder(self._host, ARCHITECTURE, device_options=_precompiled(directory))
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            work = Path(scratch)
            parts = split(extension, lambda text: preprocess(text, work))
            units = host_units(extension, parts)
            # Checks put their line into the code (`C10_CUDA_KERNEL_LAUNCH_CHECK`), which is no part of what it does.
            units = replace(units, defines={**units.defines, "__LINE__": "0"})
            cubin = builder.compile_device(extension, parts, instantiations(parts))
            host = _digest(*units.together, json.dumps(dict(units.defines)), *units.link)
            if host not in self._host_code:
                self._host_code[host] = code_hash(builder.compile_host(units, work))
        rest = "" if _all_instantiated(parts, cubin.symbols) else " ".join(parts.device.split())
        return host, code_hash(cubin.image) if cubin.image else "", rest

    def _emulated(self, extension: ExtensionSource, directory: Path) -> str:
        unit = translate(extension)
        if self._toolchain is None:
            raise Unsupported("toolchain", "the emulator's compiler is not prepared")
        flags = (*extension.flags.cflags, *extension.flags.cuda_cflags)
        key = _digest(unit.text, *flags)
        if key not in self._parts:
            try:
                library = self._toolchain.build(unit, directory, emulated_flags(flags))
            except ToolchainError as error:
                raise Unsupported("toolchain", str(error)) from None
            self._parts[key] = code_hash(library.read_bytes())
            library.unlink()
        return self._parts[key]


def _precompiled(directory: Path) -> tuple[str, ...]:
    """NVRTC's options for keeping what the headers parse to: the candidate's next compilation reads them no more."""
    if nvrtc().version < (12, 8):
        return ()
    folder = directory / "headers"
    folder.mkdir(exist_ok=True)
    return ("--pch", f"--pch-dir={folder}", "--pch-messages=false", "--pch-verbose=false")


def _all_instantiated(parts: SplitSource, expressions: Collection[str]) -> bool:
    """Whether the compiled expressions hold every kernel that the host code can launch.

    A template that is compiled only when it is launched would make every fault in it look equivalent.
    """
    templates = {kernel.name: kernel.qualified for kernel in parts.kernels if kernel.template_params}
    if any(not any(e.startswith(f"{name}<") for e in expressions) for name in templates.values()):
        return False
    for launch in parts.launches:
        name = launch.kernel.split("<")[0].split("::")[-1].strip()
        if not templates or name in (kernel.name for kernel in parts.kernels if not kernel.template_params):
            continue
        asked = f"{templates.get(name, '')}<{', '.join(launch.template_args)}>"
        if name not in templates or (asked not in expressions and "scalar_t" not in launch.template_args):
            return False
    return True


def _finding(how: str, about: Sequence[Any], *hashes: str) -> dict[str, Any]:
    return {"code": how, "message": _digest(json.dumps(about), *hashes)}


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()


def python_hash(
    source: str, extensions: Sequence[ExtensionSource] = (), compiled: Collection[str] = frozenset()
) -> str:
    """Hash of a module's syntax tree: layout, comments and docstrings do not count.

    Args:
        source: Python that parses.
        extensions: string constants that equal a source text of theirs do not count either: compiling speaks for them.
        compiled: functions whose bodies do not count, for the same reason.
    """
    texts = {text for extension in extensions for text in (*extension.cpp, *extension.cuda)}
    tree = parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in texts:
            node.value = ""
        elif isinstance(node, ast.FunctionDef) and node.name in compiled:
            node.body = [ast.Pass()]
        elif isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return hashlib.sha256(ast.dump(tree).encode("utf-8", "surrogatepass")).hexdigest()
