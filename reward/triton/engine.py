"""The engines for Triton candidates: the compiler on a GPU, the interpreter on a CPU."""

import importlib
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..sandbox.engine import LoadContext, TorchEngine, load_module


class TritonEngine(TorchEngine):
    """Triton on a GPU. Each candidate compiles into a cache of its own, so none can plant a kernel for another.

    The C module that Triton compiles for its driver is the same for all, so it is built once, before any candidate is
    there, and put into each cache.
    """

    name = "triton"

    def __init__(self) -> None:
        self._prebuilt: dict[str, bytes] = {}

    def warm(self) -> None:
        """Import torch and Triton; the driver is only looked up at the first launch."""
        super().warm()
        for module in ("triton", "triton.language", "triton.compiler", "triton.language.extra.cuda.libdevice"):
            importlib.import_module(module)
        self._prebuilt = _build_driver_module()

    def load(self, source: str, context: LoadContext) -> Any:
        """See `load_module`."""
        cache = Path(os.environ["TRITON_CACHE_DIR"])
        for name, data in self._prebuilt.items():
            path = cache / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return super().load(source, context)


def _build_driver_module() -> dict[str, bytes]:
    """Let Triton compile its driver module; the files of its cache, or nothing where there is no driver or compiler."""
    from triton.backends.nvidia.driver import CudaUtils

    with tempfile.TemporaryDirectory(prefix="kernelward-") as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        try:
            CudaUtils()  # dlopens the driver, does not initialise it
        except (OSError, RuntimeError, ImportError, AssertionError, subprocess.SubprocessError):
            return {}  # each candidate then compiles its own, and tells what is wrong
        finally:
            del os.environ["TRITON_CACHE_DIR"]
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}


class InterpreterEngine:
    """Triton's interpreter on CPU tensors, with guards. The zygote sets TRITON_INTERPRET=1 before the import.

    Variants: {} is strict; `{"guards": False}` lets stray lanes pass unnoticed, as a GPU mostly does.
    """

    name = "triton-interpreter"

    def warm(self) -> None:
        """Import everything and install the guards.

        Raises:
            RuntimeError: the interpreter is not switched on in this process.
        """
        if os.environ.get("TRITON_INTERPRET") != "1":
            raise RuntimeError("TRITON_INTERPRET=1 must be set when this process starts")
        TorchEngine().warm()
        from . import interpreter, libdevice

        interpreter.install()
        libdevice.install()
        self._guard = interpreter.guard

    def paths(self) -> list[Path]:
        """Nothing of ours."""
        return []

    def load(self, source: str, context: LoadContext) -> Any:
        """See `load_module`."""
        return load_module(source, context)

    def configure(self, variant: Mapping[str, Any]) -> None:
        """Guards are on unless the variant says otherwise."""
        self._guard.strict = bool(variant.get("guards", True))
        self._guard.findings.clear()

    def findings(self) -> list[dict[str, Any]]:
        """Out-of-bounds accesses of the last run."""
        return list(self._guard.findings)
