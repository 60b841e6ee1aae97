"""torch's own compilation of an extension, for what the fast path cannot build.

Runs in the builder's process, which must not run candidates' code: the result is not imported there.
"""

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..sandbox.engine import CompileFailure
from .frontend import ExtensionSource


def compile_extension(extension: ExtensionSource, key: str, arch: str, directory: Path) -> tuple[str, bytes]:
    """Compile with torch's `load_inline` or `load`, in a folder of its own, so that no lock is shared.

    Args:
        key: names the module; two builds never share a name unless they are the same build.
        arch: `sm_90`.

    Returns:
        The module's name and its shared library.

    Raises:
        CompileFailure: the compilers refuse it, or are not installed (`unsupported`).
    """
    import torch.utils.cpp_extension as cpp_extension

    # PYBIND11_MODULE with a literal name fixes the module's.
    literal = any(re.search(rf"PYBIND11_MODULE\s*\(\s*{re.escape(extension.name)}\b", t) for t in _texts(extension))
    name = extension.name if literal else f"kernelward_{key[:20]}"
    flags = extension.flags
    options: dict[str, Any] = {
        "extra_cflags": list(flags.cflags),
        "extra_cuda_cflags": list(flags.cuda_cflags),
        "extra_ldflags": list(flags.ldflags),
        "extra_include_paths": list(flags.include_paths),
        "with_cuda": True if extension.cuda else None,
    }
    with tempfile.TemporaryDirectory(dir=directory, prefix="load-inline-") as folder, _not_imported(cpp_extension):
        build = Path(folder)
        os.environ["TORCH_CUDA_ARCH_LIST"] = f"{arch[3:-1]}.{arch[-1]}"
        options["build_directory"] = folder
        try:
            if extension.origin == "load":
                cpp_extension.load(name, _files(extension, build), **options)
            else:
                functions = list(extension.functions) or None
                cpp_extension.load_inline(
                    name, list(extension.cpp), list(extension.cuda), functions=functions, **options
                )
        except (RuntimeError, OSError) as error:
            if not _nvcc_present(cpp_extension):
                raise CompileFailure("unsupported", f"torch's load_inline cannot compile CUDA here: {error}") from error
            raise CompileFailure("compile", _errors(str(error))) from error
        return name, (build / f"{name}.so").read_bytes()


def _nvcc_present(cpp_extension: Any) -> bool:
    home = cpp_extension.CUDA_HOME
    return bool(home) and (Path(home) / "bin" / "nvcc").is_file() and cpp_extension.is_ninja_available()


def _texts(extension: ExtensionSource) -> tuple[str, ...]:
    return (*extension.cpp, *extension.cuda)


def _files(extension: ExtensionSource, folder: Path) -> list[str]:
    """Write the sources and headers of a `load` where torch can read them."""
    folder = folder / "sources"
    folder.mkdir()
    for header, text in extension.headers.items():
        (folder / Path(header).name).write_text(text)
    paths = []
    for label, text in zip(extension.labels, _texts(extension), strict=True):
        path = folder / Path(label).name
        path.write_text(text)
        paths.append(str(path))
    return paths


@contextlib.contextmanager
def _not_imported(cpp_extension: Any) -> Iterator[None]:
    """torch imports what it built; here it must not."""
    saved = cpp_extension._import_module_from_library
    cpp_extension._import_module_from_library = lambda *args, **kwargs: None
    try:
        yield
    finally:
        cpp_extension._import_module_from_library = saved


def _errors(text: str) -> str:
    lines = [line for line in text.splitlines() if re.search(r"error|undefined", line)]
    return "\n".join(lines or text.splitlines()[-40:])[:8000]
