"""The engine that judges CUDA candidates on a GPU (mode `cuda` of the sandbox).

Extensions are built by the fast path (`nvrtc`: g++ against our header, NVRTC, launches through the driver). What that
path cannot build goes to torch's own `load_inline`, and `findings` says which way each extension took and why.
"""

import contextlib
import importlib
import importlib.machinery
import importlib.util
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..sandbox import confinement, landlock
from ..sandbox.engine import CompileFailure, LoadContext, load_module
from . import builder as building
from .builder import Builder, Built
from .cache import BuildCache, default_root
from .device_code import INCLUDE_DIR
from .frontend import ExtensionSource, Interception, Unsupported
from .gpu_module import CudaDriver, Driver, GpuModule
from .lexical import point_into
from .nvrtc import NvrtcMissing, include_folders, nvrtc
from .toolchain import HostCompiler
from .workshop import BuilderClient, Confinement, connect, start_workshop

if TYPE_CHECKING:
    from .gpu_memory import GuardedDeviceMemory

HOST_FLAGS = ("-O0", "-DKERNELWARD_GPU", "-fvisibility=hidden")
HOST_PARTS = ("kernelward/host.cpp", "kernelward/ops.cpp", "kernelward/gpu.cpp")


def gpu_host_compiler(root: Path | None = None) -> HostCompiler:
    """The host compiler for extensions on a GPU; not prepared yet.

    Raises:
        Unsupported: CUDA's headers are not installed.
    """
    if not include_folders():
        raise Unsupported("cuda-headers", "CUDA's headers were not found (NVIDIA's wheels or a toolkit have them)")
    return HostCompiler((root or default_root()) / "host", INCLUDE_DIR, HOST_FLAGS, include_folders(), HOST_PARTS)


def open_workshop(root: Path) -> socket.socket:
    """Load NVRTC, prepare the host compiler (once per machine) and start the workshop (see `start_workshop`).

    Args:
        root: folder of the prepared compiler and of the builds.
    """
    host, missing = None, ""
    try:
        nvrtc()
        host = gpu_host_compiler(root).prepare()
    except (NvrtcMissing, Unsupported, CompileFailure) as error:
        missing = str(error)
    rules = confinement.readable("cpu", False, _readable(root))
    return start_workshop(
        lambda arch: Builder(host, arch, missing),
        BuildCache(root / "builds"),
        building.versions(host),
        Confinement(tuple(rules), landlock.abi()),
    )


def _readable(root: Path) -> list[Path]:
    return [INCLUDE_DIR, root / "host", *include_folders()]


class CudaEngine:
    """Mode `cuda`.

    Args:
        root: folder of the prepared compiler and of the builds.
        bench: connects, for an architecture, to a workshop that was started elsewhere. None: `warm` starts one.

    Attributes:
        name: `nvrtc`, or `load-inline` once an extension of the candidate had to take that path.
        descriptors: descriptors that a candidate's process must inherit; it closes them before the candidate's code
            runs.
    """

    def __init__(self, root: Path | None = None, bench: Callable[[str], BuilderClient] | None = None) -> None:
        self.name = "nvrtc"
        self.descriptors: tuple[int, ...] = ()
        self._root = root or default_root()
        self._bench = bench
        self._workshop: socket.socket | None = None
        self._workshop_inode = 0
        self._client: BuilderClient | None = None
        self._driver: Driver | None = None
        self._modules: list[GpuModule] = []
        self._paths: list[str] = []
        self._context = LoadContext(Path(), "cuda")
        self._strict = False  # whether strict runs may follow
        self._memory: GuardedDeviceMemory | None = None

    def warm(self) -> None:
        """Import torch, and start the workshop where there is none elsewhere."""
        for module in ("torch", "torch.nn.functional", "torch.utils.cpp_extension", "numpy", "math"):
            importlib.import_module(module)
        with contextlib.suppress(ImportError):  # the driver's bindings are not there on machines without a GPU
            importlib.import_module(f"{__package__}.gpu_memory")
        if self._bench is not None:
            return
        self._workshop = open_workshop(self._root)
        self.descriptors = (self._workshop.fileno(),)
        self._workshop_inode = os.fstat(self._workshop.fileno()).st_ino

    def paths(self) -> list[Path]:
        """What candidates' compilers read: our headers, the precompiled one, CUDA's."""
        return _readable(self._root)

    def load(self, source: str, context: LoadContext) -> Any:
        """Run the candidate's module with `load_inline` and `load` replaced, and return its `ModelNew`.

        Raises:
            CompileFailure: the candidate is broken.
        """
        import torch.utils.cpp_extension as cpp_extension

        self._modules, self._paths, self._context = [], [], context
        self._strict = context.options.get("strict") is True
        self._memory = _guarded_memory() if self._strict else None
        self.name = "nvrtc"
        self._client = self._start(context)
        failures: list[CompileFailure] = []

        def build(extension: ExtensionSource) -> Any:
            try:
                return self._build(extension)
            except CompileFailure as problem:
                sources = (*extension.cpp, *extension.cuda)
                failure = CompileFailure(problem.reason, point_into(str(problem), sources, extension.labels, source))
                failures.append(failure)
                # What torch raises; candidates that catch it and carry on without the extension may do so.
                raise RuntimeError(f"Error building extension '{extension.name}': {failure}") from None

        # For good: `ModelNew` may build its extension when it is constructed.
        Interception(build, cpp_extension).install()
        try:
            return load_module(source, context)
        except CompileFailure:
            if failures:
                raise _as_verdict(failures[-1]) from None
            raise

    def _start(self, context: LoadContext) -> BuilderClient:
        arch = str(context.options.get("arch") or _arch(context.device))
        if self._bench is not None:
            return self._bench(arch)
        if self._workshop is None or not self._holds_workshop():
            raise RuntimeError("the workshop's socket did not reach this process")
        client = connect(self._workshop, arch)
        self._workshop.close()
        self._workshop = None
        return client

    def _holds_workshop(self) -> bool:
        """Whether the socket survived the way into this process; its number may be another's by now."""
        assert self._workshop is not None
        with contextlib.suppress(OSError):
            return os.fstat(self._workshop.fileno()).st_ino == self._workshop_inode
        return False

    def _build(self, extension: ExtensionSource) -> Any:
        assert self._client is not None
        client = self._client
        with self._context.compiling():
            built = client.build(extension, self._strict)
        if built.path == "nvrtc":
            try:
                return self._fast(extension, built, client)
            except Unsupported as gap:
                return self._slow(extension, gap)
        return self._imported(extension, built)

    def _slow(self, extension: ExtensionSource, gap: Unsupported) -> Any:
        assert self._client is not None
        with self._context.compiling():
            built = self._client.slow(extension, f"{gap.feature}: {gap.message}")
        return self._imported(extension, built)

    def _imported(self, extension: ExtensionSource, built: Built) -> Any:
        self._paths.append(f"{extension.name}: load-inline ({built.why})")
        self.name = "load-inline"
        return import_extension(built, self._context.directory)

    def _fast(self, extension: ExtensionSource, built: Built, client: BuilderClient) -> GpuModule:
        if self._driver is None:
            try:
                self._driver = CudaDriver()
            except OSError as error:
                raise CompileFailure("unsupported", f"no CUDA driver on this machine: {error}") from None

        def more(names: Sequence[str]) -> Built:
            with self._context.compiling():
                return client.more(extension, names, self._strict)

        module = GpuModule(
            built,
            self._context.directory,
            self._driver,
            more=more,
            replace=lambda gap: self._slow(extension, gap),
            memory=self._memory,
        )
        self._modules.append(module)
        self._paths.append(f"{extension.name}: nvrtc{' (cached)' if built.cached else ''}")
        return module

    def configure(self, variant: Mapping[str, Any]) -> None:
        """Take the variant of the next run (`variants`); what is reported starts here."""
        strict = variant.get("strict") is True
        if self._memory is not None:
            self._memory.on = strict
            self._memory.damage.clear()
        for module in self._modules:
            module.begin(strict)

    def findings(self) -> list[dict[str, Any]]:
        """What the last run showed: `code`, `message`, `count`.

        `build-path`: how each extension was built. `launches`: how many kernels were launched. `never-launched`: the
        candidate has kernels, and none ran. `launch-error`: a launch or a call about kernels failed, and the candidate
        did not look. `launch-error-handled`: it did. `illegal-access`, `shared-out-of-bounds`: a strict run found
        poison written beside a tensor, or behind a block's shared memory.
        """
        found = [{"code": "build-path", "message": text, "count": 1} for text in self._paths]
        if not self._modules:
            return found
        launches = sum(module.launches for module in self._modules)
        found.append({"code": "launches", "message": f"{launches} kernel launches", "count": launches})
        if not launches and any(module.kernels for module in self._modules):
            found.append({"code": "never-launched", "message": "no kernel of the candidate was launched", "count": 1})
        if self._memory is not None:
            found += [{"code": "illegal-access", "message": text, "count": 1} for text in self._memory.damage]
        strays = sum(module.strays for module in self._modules)
        if strays:
            where = "a kernel wrote behind its block's shared memory"
            found.append({"code": "shared-out-of-bounds", "message": where, "count": strays})
        errors = [error for module in self._modules for error in module.errors]
        handled = [error for module in self._modules for error in module.handled]
        for code, failed in (("launch-error", errors), ("launch-error-handled", handled)):
            if failed:
                found.append({"code": code, "message": failed[0], "count": len(failed)})
        return found


def variants(strict: bool) -> list[dict[str, Any]]:
    """The variants that one entry is run under on a GPU.

    Args:
        strict: tensors end where nothing is mapped, unwritten memory is poisoned, and warps pause at barriers
            (`gpu_memory`, `instrument`), as far as the extension was built by the fast path; else one plain run.
    """
    return [{"strict": True}] if strict else [{}]


def _guarded_memory() -> "GuardedDeviceMemory":
    # In memory since `warm`, where there is a GPU.
    from .gpu_memory import GuardedDeviceMemory

    return GuardedDeviceMemory()


def import_extension(built: Built, directory: Path) -> Any:
    """Import an extension module that torch's own path has built.

    Raises:
        CompileFailure: it cannot be imported (a function that is declared and never defined).
    """
    path = directory / f"{built.name}.so"
    path.write_bytes(built.library)
    loader = importlib.machinery.ExtensionFileLoader(built.name, str(path))
    spec = importlib.util.spec_from_loader(built.name, loader)
    try:
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise CompileFailure("import", str(error)) from None
    return module


def _as_verdict(failure: CompileFailure) -> CompileFailure:
    """The failure with a reason that verdicts know: `compile`, or `unsupported` where the candidate is not at fault."""
    if failure.reason in ("unsupported", "builder", "host-api", "no-compiler"):
        return CompileFailure("unsupported", str(failure))
    return CompileFailure("compile", f"{failure.reason}: {failure}")


def _arch(device: str) -> str:
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"
