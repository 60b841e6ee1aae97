"""The seam between the child and a way of running candidates (torch, Triton, CUDA on a GPU or an emulator)."""

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


class CompileFailure(Exception):
    """The candidate's source cannot be turned into a `ModelNew`.

    Attributes:
        reason: `syntax`, `exception`, `no-modelnew`, `compile`, ...; becomes the verdict's reason.
    """

    def __init__(self, reason: str, message: str, exception: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.exception = exception

    def __reduce__(self) -> tuple[Any, ...]:
        return CompileFailure, (self.reason, str(self), self.exception)


@dataclass(frozen=True, slots=True)
class LoadContext:
    """What an engine may use while it loads a source.

    Attributes:
        directory: the candidate's temporary directory, the only place it may write.
        device: the torch device string that the candidate will run on.
        options: what the judge passed to `ChildSession.load`, for engines that need more (a compile cache, an arch).
        compiling: a context in which a compiler works for the candidate: the judge's other clock runs meanwhile.
    """

    directory: Path
    device: str
    options: Mapping[str, Any] = field(default_factory=dict)
    compiling: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext


class Engine(Protocol):
    """One way of running candidates. Lives in the zygote and its children, never in the judge.

    An engine may have an attribute `descriptors`: those that a candidate's process inherits for it. It must close them
    before the candidate's code runs; every other descriptor is closed for it.

    An engine that only compiles has a method `compiled` with the findings of the last `load`: what code came out.
    """

    name: str

    def warm(self) -> None:
        """Import what candidates will need. Runs in the zygote before any fork; must not touch CUDA."""

    def paths(self) -> list[Path]:
        """Files and folders of our own that candidates must be able to read (headers)."""

    def load(self, source: str, context: LoadContext) -> Any:
        """Turn the source into its `ModelNew`.

        Raises:
            CompileFailure: it cannot be.
        """

    def configure(self, variant: Mapping[str, Any]) -> None:
        """Take the variant of the next run (a seeded schedule, a poison); {} is the plain one."""

    def findings(self) -> list[dict[str, Any]]:
        """What the last run showed beside its outputs: dictionaries with at least `code` and `message`."""


def load_module(source: str, context: LoadContext, name: str = "candidate") -> Any:
    """Import the source as a module from a file (Triton and tracebacks need one) and return its `ModelNew`.

    Raises:
        CompileFailure: it does not parse, raises, exits, or defines no `ModelNew`.
    """
    path = context.directory / f"{name}.py"
    try:
        path.write_bytes(source.encode("utf-8", "surrogatepass"))
        code = compile(source, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CompileFailure("syntax", describe(error), type(error).__name__) from None
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise CompileFailure("exception", f"no import machinery for {path.name}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        exec(code, module.__dict__)
    except MemoryError as error:
        raise CompileFailure("memory-limit", describe(error), type(error).__name__) from None
    except BaseException as error:  # SystemExit and KeyboardInterrupt are the candidate's as well
        reason = "exited" if isinstance(error, SystemExit) else "exception"
        raise CompileFailure(reason, describe(error), type(error).__name__) from None
    model = getattr(module, "ModelNew", None)
    if not callable(model):
        raise CompileFailure("no-modelnew", "the source defines no class ModelNew")
    return model


def describe(error: BaseException, limit: int = 2000) -> str:
    """Type, text and the candidate's own line, bounded. Never raises, whatever the exception's `__str__` does."""
    try:
        text = str(error)
    except BaseException as broken:
        text = f"(its text raised {type(broken).__name__})"
    where = ""
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename.endswith("candidate.py"):
            where = f" (candidate line {frame.tb_lineno})"
        frame = frame.tb_next
    if isinstance(error, SyntaxError) and error.lineno is not None:
        where = f" (candidate line {error.lineno})"
    return f"{type(error).__name__}: {text[:limit]}{where}"


class TorchEngine:
    """Plain PyTorch candidates."""

    name = "torch"

    def warm(self) -> None:
        """Import torch and what its models commonly pull in."""
        for module in ("torch", "torch.nn.functional", "torch.utils.cpp_extension", "numpy", "math"):
            importlib.import_module(module)

    def paths(self) -> list[Path]:
        """Nothing of ours."""
        return []

    def load(self, source: str, context: LoadContext) -> Any:
        """See `load_module`."""
        return load_module(source, context)

    def configure(self, variant: Mapping[str, Any]) -> None:
        """There is only the plain variant."""

    def findings(self) -> list[dict[str, Any]]:
        """Nothing beside the outputs."""
        return []


def _lazy(module: str, name: str) -> Callable[[], Engine]:
    def make() -> Engine:
        return getattr(importlib.import_module(module), name)()

    return make


_REWARD = __name__.rsplit(".", 2)[0]

ENGINES: Mapping[str, Callable[[], Engine]] = {
    "torch": TorchEngine,
    "triton": _lazy(f"{_REWARD}.triton.engine", "TritonEngine"),
    "triton-interpreter": _lazy(f"{_REWARD}.triton.engine", "InterpreterEngine"),
    "triton-compile": _lazy(f"{_REWARD}.triton.engine_compile", "TritonCompileEngine"),
    "cuda": _lazy(f"{_REWARD}.cuda.engine_gpu", "CudaEngine"),
    "cuda-emulator": _lazy(f"{_REWARD}.cuda.engine_cpu", "EmulatorEngine"),
    "cuda-compile": _lazy(f"{_REWARD}.cuda.engine_compile", "CompileEngine"),
}


_WITH_VARIANTS = {"cuda": f"{_REWARD}.cuda.engine_gpu", "cuda-emulator": f"{_REWARD}.cuda.engine_cpu"}


def variants(mode: str, strict: bool) -> list[dict[str, Any]]:
    """The variants that one entry is run under: only the emulator has several.

    Args:
        mode: a key of `ENGINES`.
        strict: with guards and poison, and on the emulator under several seeded schedules; else one plain run, as a GPU
            would do it.
    """
    if mode == "triton-interpreter" and not strict:
        return [{"guards": False}]
    if mode not in _WITH_VARIANTS:
        return [{}]
    return importlib.import_module(_WITH_VARIANTS[mode]).variants(strict)


def explanation(mode: str, strict: bool) -> dict[str, Any] | None:
    """The variant that tells why an answer was wrong, where the engine has one: run after such an answer only.

    Strictly judged, that is a plain run (is code that trusts a warp's lockstep right where it may? does the answer
    depend on when warps run?); else the emulator's race check.
    """
    if mode == "cuda" and strict:
        return {}
    if mode != "cuda-emulator":
        return None
    return importlib.import_module(f"{_REWARD}.cuda.engine_cpu").explanation(strict)
