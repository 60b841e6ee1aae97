"""The engines for Triton candidates: the compiler on a GPU, the interpreter on a CPU."""

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..sandbox.engine import LoadContext, TorchEngine, load_module


class TritonEngine(TorchEngine):
    """Triton on a GPU. Each candidate compiles into a cache of its own, so none can plant a kernel for another."""

    name = "triton"

    def warm(self) -> None:
        """Import torch and Triton; the driver is only looked up at the first launch."""
        super().warm()
        for module in ("triton", "triton.language", "triton.compiler", "triton.language.extra.cuda.libdevice"):
            importlib.import_module(module)


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
