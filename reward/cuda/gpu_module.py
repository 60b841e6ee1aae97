"""An extension built by the fast path, loaded on a GPU: kernels from the cubin, launches through the driver."""

import ctypes
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

from .binding import Extension, Memory
from .builder import Built
from .demangle import expression_of
from .frontend import Unsupported
from .nvrtc import library_candidates

_RESOLVE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p)
_TWIN = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_SYMBOL = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t)
)
_is_initialized = torch.cuda.is_initialized  # as they were before the candidate
_is_capturing = torch.cuda.is_current_stream_capturing
LAUNCHING = (
    "cuLaunchKernel",
    "cuLaunchCooperativeKernel",
    "cuFuncSetAttribute",
    "cuFuncGetAttribute",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuOccupancyMaxPotentialBlockSize",
)
"""Driver functions that host code calls, in the order of `kw::Gpu`."""


class _Table(ctypes.Structure):
    _fields_ = (
        ("resolve", _RESOLVE),
        ("symbol", _SYMBOL),
        *((name, ctypes.c_void_p) for name in LAUNCHING),
        ("twin", _TWIN),
    )


class Driver(Protocol):
    """What of the CUDA driver is used."""

    def address(self, name: str) -> int:
        """Address of a function in `LAUNCHING`."""

    def load(self, image: bytes) -> int:
        """Load a cubin into the current context; a module."""

    def function(self, module: int, symbol: str) -> int:
        """A kernel of a module."""

    def variable(self, module: int, symbol: str) -> tuple[int, int]:
        """Device address and size in bytes of a variable of a module."""

    def take(self, address: int) -> int:
        """Read an unsigned 32-bit number in device memory and clear it."""


class CudaDriver:
    """libcuda through ctypes.

    Raises:
        OSError: no driver is installed.
    """

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")

    def _check(self, code: int, what: str) -> None:
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(code, ctypes.byref(text))
            raise RuntimeError(f"CUDA driver error: {what}: {(text.value or b'unknown').decode()}")

    def address(self, name: str) -> int:
        """See `Driver`."""
        return ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value or 0

    def load(self, image: bytes) -> int:
        """See `Driver`."""
        module = ctypes.c_void_p()
        self._check(self._library.cuModuleLoadData(ctypes.byref(module), image), "loading compiled device code")
        return module.value or 0

    def function(self, module: int, symbol: str) -> int:
        """See `Driver`."""
        function = ctypes.c_void_p()
        code = self._library.cuModuleGetFunction(ctypes.byref(function), ctypes.c_void_p(module), symbol.encode())
        self._check(code, f"kernel {symbol}")
        return function.value or 0

    def variable(self, module: int, symbol: str) -> tuple[int, int]:
        """See `Driver`."""
        address, size = ctypes.c_void_p(), ctypes.c_size_t()
        code = self._library.cuModuleGetGlobal_v2(
            ctypes.byref(address), ctypes.byref(size), ctypes.c_void_p(module), symbol.encode()
        )
        self._check(code, f"variable {symbol}")
        return address.value or 0, size.value

    def take(self, address: int) -> int:
        """See `Driver`."""
        number = ctypes.c_uint32()
        code = self._library.cuMemcpyDtoH_v2(ctypes.byref(number), ctypes.c_void_p(address), ctypes.c_size_t(4))
        self._check(code, "reading a counter")
        if number.value:
            self._check(self._library.cuMemsetD32_v2(ctypes.c_void_p(address), 0, ctypes.c_size_t(1)), "clearing one")
        return number.value


def capturing() -> bool:
    """Whether a CUDA graph is being recorded: nothing may be waited for then."""
    return _is_initialized() and bool(_is_capturing())


def _mapped(stem: str) -> list[Path]:
    """Shared libraries of that name which this process has loaded."""
    with open("/proc/self/maps") as file:
        lines = [line.split(maxsplit=5)[-1].strip() for line in file if f"/{stem}.so" in line]
    return [Path(line) for line in dict.fromkeys(lines)]


def preload(name: str) -> None:
    """Make a CUDA library's functions visible to extensions; the one that torch has loaded comes first.

    Raises:
        Unsupported: it is not installed.
    """
    for path in [*_mapped(f"lib{name}"), *library_candidates(f"lib{name}")]:
        try:
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
            return
        except OSError:
            continue
    raise Unsupported("cuda-library", f"lib{name} was not found")


More = Callable[[list[str]], Built]
"""Compiles further kernels by expression."""
Replace = Callable[[Unsupported], Any]
"""Builds the extension another way, when it turns out at run time that this way cannot run it."""


class GpuModule:
    """Stands in for the Python module that torch would build: the exported functions are attributes.

    Args:
        built: the fast path's result.
        directory: where the library is put.
        driver: the CUDA driver.
        more: compiles kernels that only the running host code could name.
        replace: takes over for good where a kernel turns out to be beyond this path.
        memory: where its tensors live.

    Attributes:
        launches: kernel launches since `begin`.
        errors: launches and calls about kernels that failed since `begin`, and nobody looked.
        handled: those where the candidate asked for the error; it may have had another way ready.
        strays: calls since `begin` in which a kernel wrote behind its block's shared memory.

    Raises:
        Unsupported: the library needs something that is not there.
    """

    def __init__(
        self,
        built: Built,
        directory: Path,
        driver: Driver,
        more: More,
        replace: Replace,
        memory: Memory | None = None,
    ) -> None:
        self._driver = driver
        self._more = more
        self._replace = replace
        self._replacement: Any = None
        self._images = [(built.image, dict(built.symbols))] if built.image else []
        self._modules: list[tuple[int, dict[str, str]]] = []
        self._strict_images = [built.strict_image] if built.image else []  # as many as there are of the others
        self._strict_modules: dict[int, int] = {}  # by index
        self._found: dict[int, tuple[int, str]] = {}  # function -> index of its module, symbol
        self._variables = built.variables
        self._trouble: Exception | None = None
        self.kernels = bool(built.image)
        self.launches = 0
        self.errors: list[str] = []
        self.handled: list[str] = []
        self.strays = 0
        self._strict = False
        for name in ("cudart", *built.libraries):
            preload(name)
        path = directory / f"extension-{hashlib.sha256(built.library).hexdigest()[:20]}.so"
        path.write_bytes(built.library)
        try:
            self._extension = Extension(path, memory)
        except OSError as error:
            raise Unsupported("undefined-symbol", str(error)) from error
        library = self._extension.library
        library.kw_gpu_report.argtypes = (
            ctypes.POINTER(ctypes.c_int64),
            ctypes.POINTER(ctypes.c_int64),
            ctypes.POINTER(ctypes.c_int),
            ctypes.POINTER(ctypes.c_char_p),
        )
        addresses = (ctypes.c_void_p(driver.address(name)) for name in LAUNCHING)
        self._table = _Table(_RESOLVE(self._resolve), _SYMBOL(self._symbol), *addresses, _TWIN(self._twin))
        library.kw_gpu_bind(ctypes.byref(self._table))

    def begin(self, strict: bool = False) -> None:
        """Forget launches and errors; before a run that will be reported on.

        Args:
            strict: launch the instrumented kernels, where there are any.
        """
        self._strict = strict
        self.strays = 0
        self.launches = 0
        self.errors = []
        self.handled = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__") or name not in self.__dict__["_extension"].names:
            raise AttributeError(f"extension has no function {name!r}")

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._call(name, args, kwargs)

        call.__name__ = name
        return call

    def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._replacement is not None:
            return getattr(self._replacement, name)(*args, **kwargs)
        # What a graph records is replayed in other runs, timed ones among them: it is the code as it was written.
        strict = self._strict and not capturing()
        self._extension.library.kw_gpu_strict(int(strict))
        self._extension.library.kw_gpu_begin()
        self._trouble = None
        try:
            result = self._extension.invoke(name, args, kwargs)
        except Exception as error:
            self._collect()
            if isinstance(self._trouble, Unsupported):
                self._replacement = self._replace(self._trouble)
                return getattr(self._replacement, name)(*args, **kwargs)
            if self._trouble is not None:
                raise self._trouble from error
            raise
        unseen = self._collect()
        for module in self._strict_modules.values() if strict else ():
            self.strays += self._driver.take(self._driver.variable(module, "kw_strays")[0]) > 0
        if unseen:
            # The candidate did not look at cudaGetLastError; torch would find the error at its own next launch.
            raise RuntimeError(f"CUDA error: {unseen} (not checked by the candidate)")
        return result

    def _collect(self) -> str:
        """Add up what the call did; the error that nobody has looked at, or nothing."""
        launches, failures, unseen, first = ctypes.c_int64(), ctypes.c_int64(), ctypes.c_int(), ctypes.c_char_p()
        self._extension.library.kw_gpu_report(
            ctypes.byref(launches), ctypes.byref(failures), ctypes.byref(unseen), ctypes.byref(first)
        )
        self.launches += launches.value
        text = (first.value or b"").decode("utf-8", "replace")
        if failures.value:
            (self.errors if unseen.value else self.handled).append(text)
        return text if unseen.value else ""

    # ---- called by host code; an exception must not cross the border -----------------------------------------------

    def _resolve(self, name: bytes, parameters: bytes, signature: bytes) -> int:
        try:
            return self._function(name.decode(), parameters.decode(), signature.decode())
        except Exception as error:
            self._trouble = error
            return 0

    def _function(self, name: str, parameters: str, signature: str) -> int:
        expression = expression_of(name, parameters, signature)
        if expression is None:
            raise Unsupported("kernel-arguments", f"a kernel instantiated with a local type: {signature}")
        self._load()
        for index, (_, symbols) in enumerate(self._modules):
            if expression in symbols:
                return self._named(index, symbols[expression])
        if self._variables:
            # A second cubin would have variables of its own.
            raise Unsupported("late-instantiation", f"{expression}, in code with variables in device memory")
        built = self._more([expression])
        self._images.append((built.image, dict(built.symbols)))
        self._strict_images.append(built.strict_image)
        self._load()
        return self._named(len(self._modules) - 1, self._modules[-1][1][expression])

    def _named(self, index: int, symbol: str) -> int:
        function = self._driver.function(self._modules[index][0], symbol)
        self._found[function] = index, symbol
        return function

    def _twin(self, function: int) -> int:
        try:
            index, symbol = self._found[function]
            if not self._strict_images[index]:
                return 0
            if index not in self._strict_modules:
                self._strict_modules[index] = self._driver.load(self._strict_images[index])
            return self._driver.function(self._strict_modules[index], symbol)
        except Exception as error:
            self._trouble = error
            return 0

    def _load(self) -> None:
        while self._images:
            image, symbols = self._images.pop(0)
            self._modules.append((self._driver.load(image), symbols))

    def _symbol(self, name: bytes, address: Any, size: Any) -> int:
        try:
            self._load()
            module, symbols = self._modules[0]
            address[0], size[0] = self._driver.variable(module, symbols[f"&{name.decode()}"])
            return 0
        except Exception as error:
            self._trouble = error
            return 1
