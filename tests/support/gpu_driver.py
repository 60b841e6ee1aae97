"""The GPU path up to the driver's door: what tests of it share. A recorder stands where `cuLaunchKernel` would be."""

import ctypes
from typing import Any

import pytest
from kernelward.reward.cuda.frontend import ExtensionSource, Flags
from kernelward.reward.cuda.nvrtc import NvrtcMissing, include_folders, library_candidates, nvrtc


def _tools() -> bool:
    try:
        nvrtc()
    except NvrtcMissing:
        return False
    return bool(include_folders() and library_candidates("libcudart"))


needs_tools = pytest.mark.skipif(not _tools(), reason="needs NVRTC, CUDA's headers and libcudart (a toolkit or wheels)")

DECLARE = "torch::Tensor run(torch::Tensor x, int64_t n);"


def extension(cuda: str, cpp: str = DECLARE, functions: tuple[str, ...] = ("run",), **flags: Any) -> ExtensionSource:
    return ExtensionSource("e", (cpp,), (cuda,), functions, Flags(**flags), ("cpp_sources[0]", "cuda_sources[0]"))


_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    *[ctypes.c_uint] * 7,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
)
_FIT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
_GET = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.c_int, ctypes.c_void_p)
_SET = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)


class Recorder:
    """A driver that writes down what it is asked for; `code` is what its launches answer, after `codes`.

    `launched` has the image of each launch, as a number.
    """

    def __init__(self) -> None:
        self.functions: dict[int, str] = {}
        self.owners: dict[int, int] = {}
        self.launched: list[int] = []
        self.codes: list[int] = []
        self.calls: list[tuple[Any, ...]] = []
        self.images: list[bytes] = []
        self.code = 0
        self._launch = _LAUNCH(self._on_launch)
        self._set = _SET(self._on_set)
        self._get = _GET(self._on_get)
        self._fit = _FIT(self._on_fit)
        self.strays: dict[int, int] = {}

    def _on_launch(self, function: int, *rest: Any) -> int:
        sizes, arguments = rest[:7], rest[8]
        last = ctypes.cast(arguments[2], ctypes.POINTER(ctypes.c_int))[0]
        self.calls.append((self.functions[function], sizes[:3], sizes[3:6], sizes[6], last))
        self.launched.append(self.owners[function])
        return self.codes.pop(0) if self.codes else self.code

    def _on_get(self, value: Any, attribute: int, function: int) -> int:
        value[0] = {1: 64, 8: 49152}.get(attribute, 0)
        return 0

    def _on_fit(self, blocks: Any, function: int, block: int, shared: int) -> int:
        blocks[0] = 7 if shared else 8
        return 0

    def _on_set(self, function: int, attribute: int, value: int) -> int:
        self.calls.append((self.functions[function], attribute, value))
        return 0

    def address(self, name: str) -> int:
        others = {
            "cuFuncSetAttribute": self._set,
            "cuFuncGetAttribute": self._get,
            "cuOccupancyMaxActiveBlocksPerMultiprocessor": self._fit,
        }
        target = others.get(name, self._launch)
        return ctypes.cast(target, ctypes.c_void_p).value or 0

    def load(self, image: bytes) -> int:
        self.images.append(image)
        return len(self.images)

    def function(self, module: int, symbol: str) -> int:
        assert symbol.encode() + b"\0" in self.images[module - 1]
        handle = 1000 + len(self.functions)
        self.functions[handle] = symbol
        self.owners[handle] = module
        return handle

    def variable(self, module: int, symbol: str) -> tuple[int, int]:
        assert symbol.encode() + b"\0" in self.images[module - 1]
        return (module if symbol == "kw_strays" else 64), 16

    def take(self, address: int) -> int:
        return self.strays.pop(address, 0)
