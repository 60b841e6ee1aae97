"""The engine that judges CUDA candidates on a machine without a GPU."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.utils.cpp_extension as cpp_extension

from ..sandbox.engine import CompileFailure, LoadContext, load_module
from .emulator import PLAIN_VARIANT, RACE_VARIANT, STRICT_VARIANTS, EmulatedModule, Variant
from .emulator_build import INCLUDE, Toolchain, default_folder
from .frontend import ExtensionSource, Interception, Unsupported
from .pretend import pretend_cuda


@dataclass(slots=True)
class EmulatorEngine:
    """Mode `cuda-emulator` of the sandbox.

    Attributes:
        name: what verdicts call it.
    """

    name: str = "cpu-emulator"
    _toolchain: Toolchain | None = None
    _modules: list[EmulatedModule] | None = None
    _variant: Variant = PLAIN_VARIANT

    def warm(self) -> None:
        """Import torch and make the toolchain (about ten seconds, once per machine and version)."""
        self._toolchain = Toolchain.prepare()

    def paths(self) -> list[Path]:
        """Headers and the toolchain: candidates' compilers read both."""
        return [INCLUDE, default_folder()]

    def load(self, source: str, context: LoadContext) -> Any:
        """Run the candidate's module with `load_inline` and `load` replaced, and return its `ModelNew`.

        Raises:
            CompileFailure: the candidate is broken, or needs what only a GPU has (`gaps.py` tells the judge first).
        """
        self._modules = []
        toolchain = self._toolchain or Toolchain.prepare()
        modules = self._modules

        def build(extension: ExtensionSource) -> EmulatedModule:
            with context.compiling():
                module = EmulatedModule.create(extension, toolchain, context.directory)
            module.configure(self._variant)
            modules.append(module)
            return module

        failures: list[CompileFailure] = []
        pretend_cuda()
        # For good: `ModelNew` may build its extension when it is constructed.
        Interception(_remembering(build, failures), cpp_extension).install()
        try:
            return load_module(source, context)
        except CompileFailure:
            if failures:
                raise failures[-1] from None
            raise

    def configure(self, variant: Mapping[str, Any]) -> None:
        """Take the variant of the next run; {} is the plain one. A kernel that died in an earlier run is forgotten."""
        self._variant = Variant.from_json(variant)
        for module in self._modules or ():
            module.reset()
            module.configure(self._variant)

    def findings(self) -> list[dict[str, Any]]:
        """What the last run showed: `code`, `message`, `count`; and `launches` once, with the number of launches."""
        found: list[dict[str, Any]] = []
        launches, kernels = 0, 0
        for module in self._modules or ():
            report = module.report()
            launches += report["launches"]
            kernels += module.unit.kernels
            found += [{"code": f.code, "message": f.message, "count": f.count} for f in report["findings"]]
        if kernels and not launches:
            found.append({"code": "never-launched", "message": "no kernel of the candidate was launched", "count": 1})
        return found


def _remembering(
    build: Callable[[ExtensionSource], EmulatedModule], failures: list[CompileFailure]
) -> Callable[[ExtensionSource], EmulatedModule]:
    """`build`, with its failures kept: the candidate's module turns them into exceptions of its own."""

    def remembering(extension: ExtensionSource) -> EmulatedModule:
        try:
            return build(extension)
        except (CompileFailure, Unsupported) as failure:
            kind = failure.feature if isinstance(failure, Unsupported) else failure.reason
            message = str(failure) if kind == "compile" else f"{failure} [{kind}]"
            failures.append(CompileFailure("compile", message))
            raise failures[-1] from None

    return remembering


def variants(strict: bool) -> list[dict[str, Any]]:
    """What the judge runs an entry under: strict schedules and the race check, or one plain run."""
    if not strict:
        return [PLAIN_VARIANT.to_json()]
    return [v.to_json() for v in (*STRICT_VARIANTS, RACE_VARIANT)]


def explanation(strict: bool) -> dict[str, Any]:
    """See `sandbox.engine.explanation`."""
    return (PLAIN_VARIANT if strict else RACE_VARIANT).to_json()
