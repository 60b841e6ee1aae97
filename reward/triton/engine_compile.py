"""The engine that only compiles Triton candidates and says what code came out (mode `triton-compile` of the sandbox).

No GPU is needed and nothing is computed: the candidate's model is constructed and called on tensors without data, and
every launch is compiled to PTX for a fixed target instead of being made. Integers and addresses are compiled as any
value, so that the code does not depend on what the declared shapes happen to be divisible by.
"""

import contextlib
import hashlib
import importlib
import re
from collections.abc import Mapping
from typing import Any

import torch

from ..sandbox.engine import CompileFailure, LoadContext, TorchEngine, describe, load_module

HOOKS = (
    ("triton.knobs", "compilation.disable_line_info"),
    ("triton.backends.compiler", "GPUTarget"),
    ("triton.backends.nvidia.compiler", "CUDABackend.add_stages"),
    ("triton.runtime", "driver.set_active"),
    ("triton.runtime.jit", "JITFunction.run"),
    ("triton.runtime.jit", "JITFunction._do_compile"),
)
"""What Triton has to have for this engine: module and attribute. Versions 3.6.0 and 3.7.1 have all of it."""
CAPABILITY = 90
SHARED_BYTES = 227 << 10
"""Shared memory that a block of that target can have."""


class _Driver:
    """What Triton asks of a driver before it launches."""

    class utils:
        """Questions about the device."""

        @staticmethod
        def get_device_properties(_device: int) -> dict[str, int]:
            """Those of the target."""
            return {"multiprocessor_count": 132, "max_shared_mem": SHARED_BYTES, "warpSize": 32, "max_num_regs": 65536}

    def get_current_target(self) -> Any:
        """Fixed."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", CAPABILITY, 32)

    def get_current_device(self) -> int:
        """The only one."""
        return 0

    def get_current_stream(self, _device: int) -> int:
        """The only one."""
        return 0

    def get_active_torch_device(self) -> torch.device:
        """Where tensors have no data."""
        return torch.device("meta")

    def get_benchmarker(self) -> Any:
        """A tuner's: every configuration is compiled once, and all are as fast."""

        def bench(call: Any, **_: Any) -> list[float]:
            call()
            return [1.0, 1.0, 1.0]

        return bench


class TritonCompileEngine(TorchEngine):
    """Mode `triton-compile`. The option `call` of a load names what the model is constructed and called with."""

    name = "compile"

    def __init__(self) -> None:
        self._compiled: list[dict[str, Any]] = []
        self._lacking = ""

    def warm(self) -> None:
        """Import torch and Triton, and let launches compile. Nothing is compiled here: LLVM's threads end with a fork.

        Where this version of Triton compiles in another way, nothing will be compiled at all.
        """
        super().warm()
        self._lacking = lacking_hook()
        if self._lacking:
            return
        for module in ("triton", "triton.language", "triton.compiler", "triton.language.extra.cuda.libdevice"):
            importlib.import_module(module)
        from triton import knobs
        from triton.backends.nvidia.compiler import CUDABackend
        from triton.runtime import driver
        from triton.runtime.jit import JITFunction

        knobs.compilation.disable_line_info = True  # not by the environment: a candidate's is another
        driver.set_active(_Driver())
        # What the first compilation would do else: a hash of the whole installation, imports.
        getattr(importlib.import_module("triton.runtime.cache"), "triton_key", int)()
        with contextlib.suppress(ImportError):
            importlib.import_module("triton.experimental.gluon")
        with torch.device("meta"):
            torch.empty_like(torch.zeros(2)).contiguous().add(1)
        stages, run, compiling = CUDABackend.add_stages, JITFunction.run, JITFunction._do_compile

        def add_stages(backend: Any, found: dict[str, Any], *arguments: Any) -> None:
            stages(backend, found, *arguments)
            found["cubin"] = lambda *_: b""  # the code is known by then, and the assembler takes as long again

        def compile_only(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
            for parameter in kernel.params:
                parameter.do_not_specialize = not parameter.is_constexpr
            made = run(kernel, *arguments, grid=grid, warmup=True, **options)
            self._note(kernel, made)
            return made

        def do_compile(kernel: Any, *arguments: Any, **options: Any) -> Any:
            try:
                return compiling(kernel, *arguments, **options)
            except Exception as error:
                lines = [line.strip() for line in describe(error).splitlines() if line.strip()]
                message = f"error: kernel {kernel.__name__}: {lines[-1]} ({lines[0]})"  # between them: the source
                raise CompileFailure("compile", message) from None

        CUDABackend.add_stages = add_stages
        JITFunction.run = compile_only
        JITFunction._do_compile = do_compile

    def _note(self, kernel: Any, made: Any) -> None:
        if made.metadata.shared > SHARED_BYTES:
            message = f"error: kernel {kernel.__name__} needs {made.metadata.shared} bytes of shared memory"
            raise CompileFailure("compile", message)
        text = f"{made.metadata.num_warps} {made.metadata.shared} {_plain(made.asm['ptx'])}"
        given = made.src.signature
        absent = any(given.get(p.name) == "constexpr" and not p.is_constexpr for p in kernel.params)
        found = {"code": "ptx", "message": hashlib.sha256(text.encode()).hexdigest(), "kernel": kernel.__name__}
        found["always"] = "no" if absent else "yes"
        if found not in self._compiled:
            self._compiled.append(found)

    def load(self, source: str, context: LoadContext) -> Any:
        """Import the candidate, construct its model and call it without data.

        The option `call` has `init` (plain values) and `inputs` (plain values, or `{"shape": ..., "dtype": ...}`).

        Raises:
            CompileFailure: the module does not run (`exception`, ...); a kernel does not compile (`compile`).
        """
        self._compiled = []
        model = load_module(source, context)
        if self._lacking:
            why = f"this version of Triton has no {self._lacking}"
            self._compiled.append({"code": "source", "message": "", "why": why})
            return model
        call = context.options["call"]
        failures: list[CompileFailure] = []
        try:
            with torch.device("meta"), torch.no_grad():
                model(*call["init"])(*(_without_data(value) for value in call["inputs"]))
        except CompileFailure as failure:
            failures.append(failure)
        except Exception as error:  # the candidate's own, or it needs what tensors without data cannot tell
            self._compiled.append({"code": "source", "message": "", "why": describe(error, 200)})
        if failures:
            raise failures[0]
        return model

    def compiled(self) -> list[dict[str, Any]]:
        """What the last load made: one finding per kernel and configuration. `message` is the hash of its PTX, `kernel`
        its name; `always` is `no` where an argument is absent, so that other calls may be compiled otherwise. A finding
        with the code `source` says why there are no more."""
        return self._compiled


def lacking_hook() -> str:
    """The first of `HOOKS` that this version of Triton does not have; "" where all are there."""
    for module, path in HOOKS:
        try:
            found: Any = importlib.import_module(module)
            for name in path.split("."):
                found = getattr(found, name)
        except (ImportError, AttributeError):
            return f"{module}.{path}"
    return ""


def _without_data(value: Any) -> Any:
    if isinstance(value, Mapping):
        return torch.empty(value["shape"], dtype=getattr(torch, value["dtype"]), device="meta")
    return value


def _plain(ptx: str) -> str:
    """PTX without what is there for people."""
    lines = (re.sub(r"//.*", "", line).strip() for line in ptx.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith((".file", ".loc")))
