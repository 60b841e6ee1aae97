"""NVRTC as a library: CUDA C++ to a cubin in about a tenth of a second, and no GPU needed.

NVRTC is the same compiler as nvcc's device side, so what it accepts is valid CUDA and what it generates is what nvcc
generates.
"""

import ctypes
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from ..sandbox.engine import CompileFailure


class NvrtcMissing(RuntimeError):
    """No NVRTC library on this machine; the message says how to get one."""


@dataclass(frozen=True, slots=True)
class DeviceProgram:
    """One translation unit for the device.

    Attributes:
        source: CUDA C++ (`device_code.device_program` makes it from a candidate's).
        arch: real architecture, `sm_90`.
        options: further NVRTC options.
        headers: header text by the name it is included with.
        expressions: C++ expressions that name kernels (`scale<float, 4>`): each is instantiated, its symbol returned.
    """

    source: str
    arch: str
    options: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    expressions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cubin:
    """Compiled device code: the image, the symbol of every requested expression, the compiler's warnings."""

    image: bytes
    symbols: dict[str, str]
    log: str = ""


# ---- where things are ------------------------------------------------------------------------------------------------


def _wheel_folders(part: str) -> list[Path]:
    """Folders named `part` (`lib`, `include`) inside NVIDIA's wheels, the unified CUDA 13 layout first."""
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(p) for p in (spec.submodule_search_locations or ())] if spec else []
    found: list[Path] = []
    for root in roots:
        found.extend(sorted(root.glob(f"cu[0-9]*/{part}"), reverse=True))
        found.extend(sorted(root.glob(f"*/{part}")))
    return [path for path in dict.fromkeys(found) if path.is_dir()]


def _toolkit_roots() -> list[Path]:
    roots = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), "/usr/local/cuda"]
    return [Path(root) for root in roots if root and Path(root).is_dir()]


@lru_cache(maxsize=1)
def include_folders() -> tuple[Path, ...]:
    """Folders with CUDA's own headers: NVIDIA's wheels, then an installed toolkit; empty where there are none.

    The runtime's wheel has `cuda_fp16.h` without the `nv/target` that it includes (libcu++ is a wheel of its own); a
    small one of ours stands in.
    """
    folders: list[Path] = []
    for folder in [*_wheel_folders("include"), *(root / "include" for root in _toolkit_roots())]:
        if any((folder / name).is_file() for name in ("cuda_fp16.h", "cublas_v2.h", "curand_kernel.h", "cudnn.h")):
            folders += [path for path in (folder, folder / "cccl") if path.is_dir()]
    folders = list(dict.fromkeys(path.resolve() for path in folders))
    if not any((folder / "cuda_fp16.h").is_file() for folder in folders):
        return ()
    if not any((folder / "nv" / "target").is_file() for folder in folders):
        folders.append(Path(__file__).parent / "include" / "compat")
    return tuple(folders)


def library_candidates(stem: str) -> list[Path]:
    """Shared libraries of that name in NVIDIA's wheels and in a toolkit, newest first."""
    folders = [*_wheel_folders("lib"), *(root / "lib64" for root in _toolkit_roots())]
    return [path for folder in folders for path in sorted(folder.glob(f"{stem}.so*"), reverse=True)]


class Nvrtc:
    """NVRTC through ctypes. Construction loads the library, so that forked children find it loaded.

    Raises:
        NvrtcMissing: no library.
    """

    def __init__(self) -> None:
        library = self._load()
        self._library = library
        for name in ("nvrtcGetErrorString", "nvrtcVersion", "nvrtcCreateProgram", "nvrtcDestroyProgram"):
            getattr(library, name)
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        library.nvrtcGetErrorString.argtypes = [ctypes.c_int]
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        self.version = (major.value, minor.value)

    @staticmethod
    def _load() -> ctypes.CDLL:
        errors = []
        for path in library_candidates("libnvrtc"):
            if ".alt" in path.name:
                continue
            try:
                # NVRTC opens its builtins by bare name, which finds them only if they are loaded already.
                for builtins in sorted(path.parent.glob("libnvrtc-builtins.so*"), reverse=True):
                    if ".alt" not in builtins.name:
                        ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
                        break
                return ctypes.CDLL(str(path))
            except OSError as error:
                errors.append(str(error))
        raise NvrtcMissing(
            "NVRTC was not found: install the package nvidia-cuda-nvrtc, or a CUDA toolkit"
            + (f" ({'; '.join(errors)})" if errors else "")
        )

    def _check(self, code: int) -> None:
        if code:
            raise RuntimeError(f"NVRTC: {self._library.nvrtcGetErrorString(code).decode()}")

    def _log(self, program: ctypes.c_void_p) -> str:
        size = ctypes.c_size_t()
        self._check(self._library.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        self._check(self._library.nvrtcGetProgramLog(program, buffer))
        return buffer.value.decode("utf-8", "replace")

    def architectures(self) -> tuple[str, ...]:
        """Architectures that this version compiles for, `("sm_75", ...)`."""
        count = ctypes.c_int()
        self._check(self._library.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
        values = (ctypes.c_int * count.value)()
        self._check(self._library.nvrtcGetSupportedArchs(values))
        return tuple(f"sm_{value}" for value in values)

    def compile(self, program: DeviceProgram) -> Cubin:
        """Compile to a cubin.

        Raises:
            CompileFailure: `device-compile`, with NVRTC's log.
        """
        library = self._library
        handle = ctypes.c_void_p()
        names = list(program.headers)
        texts = (ctypes.c_char_p * len(names))(*(program.headers[name].encode() for name in names))
        keys = (ctypes.c_char_p * len(names))(*(name.encode() for name in names))
        source = program.source.encode()
        self._check(library.nvrtcCreateProgram(ctypes.byref(handle), source, b"kernelward.cu", len(names), texts, keys))
        try:
            for expression in program.expressions:
                self._check(library.nvrtcAddNameExpression(handle, expression.encode()))
            options = [f"--gpu-architecture={program.arch}", *program.options]
            arguments = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            code = library.nvrtcCompileProgram(handle, len(options), arguments)
            log = self._log(handle)
            if code:
                message = log or library.nvrtcGetErrorString(code).decode()
                raise CompileFailure("device-compile", message[:20000])
            symbols = {}
            for expression in program.expressions:
                name = ctypes.c_char_p()
                self._check(library.nvrtcGetLoweredName(handle, expression.encode(), ctypes.byref(name)))
                symbols[expression] = (name.value or b"").decode()
            size = ctypes.c_size_t()
            self._check(library.nvrtcGetCUBINSize(handle, ctypes.byref(size)))
            image = ctypes.create_string_buffer(size.value)
            self._check(library.nvrtcGetCUBIN(handle, image))
            return Cubin(image.raw, symbols, log)
        finally:
            library.nvrtcDestroyProgram(ctypes.byref(handle))


@lru_cache(maxsize=1)
def nvrtc() -> Nvrtc:
    """The process's NVRTC.

    Raises:
        NvrtcMissing: no library.
    """
    return Nvrtc()
