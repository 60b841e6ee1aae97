"""Running a CUDA extension on the CPU: schedules, poisons, errors as CUDA reports them, and findings."""

import ctypes
import json
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from .binding import Extension
from .emulator_build import Toolchain, emulated_flags
from .emulator_memory import GuardedMemory
from .emulator_translate import Unit, translate
from .frontend import ExtensionSource

NAN_POISON = 0xFF
"""Every float type reads NaN, integers read -1."""
LARGE_POISON = 0x7B
"""Large and finite in every float type: what `fmaxf` would drop as NaN shows with it."""
PLAIN = -1
"""No poison: zeros, no guards, as a GPU's memory usually is."""


class Order(IntEnum):
    """In which order the threads of a block run between two synchronisation points.

    `TIMED` stands in for a GPU: warps in lockstep, interleaved by a model of latencies (`emu/timed.cpp`).
    """

    ASCENDING = 0
    REVERSED = 1
    RANDOM_THREADS = 2
    RANDOM_WARPS = 3
    GREEDY_WARP = 4
    GREEDY_REVERSED = 5
    TIMED = 6


@dataclass(frozen=True, slots=True)
class Variant:
    """One way of running a call.

    Attributes:
        order: the schedule; blocks run ascending, descending or shuffled to match.
        poison: byte of fresh memory; `PLAIN` stands for a GPU.
        at_end: tensors end at a guard page; else they begin after one.
        races: check accesses. Not together with `TIMED`.
        seed: of the random schedules.
    """

    order: Order = Order.TIMED
    poison: int = PLAIN
    at_end: bool = True
    races: bool = False
    seed: int = 1

    def to_json(self) -> dict[str, Any]:
        """Inverse of `from_json`."""
        return asdict(self) | {"order": int(self.order)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Variant":
        """{} is the plain variant."""
        values = dict(data)
        return cls(**values | ({"order": Order(values["order"])} if "order" in values else {}))


PLAIN_VARIANT = Variant()
STRICT_VARIANTS = (
    Variant(Order.ASCENDING, LARGE_POISON, at_end=True),
    Variant(Order.GREEDY_WARP, NAN_POISON, at_end=False),
    Variant(Order.RANDOM_THREADS, NAN_POISON, at_end=True, seed=2),
)
"""Together they see every removed barrier of our kernels; no single one does."""
RACE_VARIANT = Variant(Order.ASCENDING, NAN_POISON, at_end=False, races=True)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something a run showed beside its outputs.

    Attributes:
        code: `race`, `warp-synchronous`, `illegal-access`, `shared-out-of-bounds`, `deadlock`, `divergent-barrier`,
            `divergent-warp`, `launch-error`, `shared-memory-limit`, `stack-overflow`, `integer-division`, `misaligned`,
            `device-assert`, `trap`, `warp-mask`, `unsupported`, `never-launched`.
        message: what and where.
        count: how often.
    """

    code: str
    message: str
    count: int = 1


class CudaError(RuntimeError):
    """A kernel failed or could not be launched: what torch would raise at the next synchronisation."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"CUDA error: {message}")
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        return CudaError, (self.code, str(self).removeprefix("CUDA error: "))


class _Variant(ctypes.Structure):
    _fields_ = (
        ("order", ctypes.c_int32),
        ("poison", ctypes.c_int32),
        ("placement", ctypes.c_int32),
        ("races", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
    )


class EmulatedExtension(Extension):
    """A loaded extension whose kernels run on the emulator."""

    def __init__(self, path: Path) -> None:
        self._guarded = GuardedMemory()
        super().__init__(path, self._guarded)
        self.library.kw_emu_report.restype = ctypes.c_char_p
        self.library.kw_emu_host.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        self._guarded.register_host = self.library.kw_emu_host
        self._variant = PLAIN_VARIANT
        self.configure(PLAIN_VARIANT)

    def configure(self, variant: Variant) -> None:
        """Take the variant of the next calls and forget the findings of earlier ones."""
        self._variant = variant
        self._guarded.poison, self._guarded.at_end = variant.poison, variant.at_end
        self._guarded.damage.clear()
        raw = _Variant(variant.order, variant.poison, not variant.at_end, variant.races, variant.seed)
        self.library.kw_emu_configure(ctypes.byref(raw))

    def invoke(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """See `Extension.invoke`.

        Raises:
            CudaError: a kernel died, or a launch failed and the function did not report it.
        """
        try:
            result = super().invoke(name, args, kwargs)
        except Exception:
            self._raise_pending(sticky_only=True)
            raise
        self._raise_pending()
        return result

    def _raise_pending(self, sticky_only: bool = False) -> None:
        message = ctypes.c_char_p()
        code = self.library.kw_emu_take_error(ctypes.byref(message))
        if code and (code >= 700 or not sticky_only):
            raise CudaError(code, (message.value or b"").decode("utf-8", "replace"))

    def report(self) -> dict[str, Any]:
        """Launch counts and findings since `configure`."""
        data = json.loads(self.library.kw_emu_report())
        findings = [Finding(f["kind"], located(f["message"], self.path), f["count"]) for f in data["findings"]]
        findings += [Finding("illegal-access", text) for text in self._guarded.damage]
        return {"launches": data["launches"], "threads": data["threads"], "findings": findings}

    def reset(self) -> None:
        """Forget a dead kernel, which a real process could not."""
        self.library.kw_emu_reset()


_ADDRESS = re.compile(r"@([0-9a-f]+)")


def located(message: str, library: Path) -> str:
    """`message` with code addresses (`@1a2b`) replaced by source names and lines, where binutils are installed."""
    addresses = _ADDRESS.findall(message)
    if not addresses:
        return message
    try:
        done = subprocess.run(
            ["addr2line", "-e", str(library), *addresses], capture_output=True, text=True, timeout=20, check=False
        )
        lines = done.stdout.split("\n")
    except (OSError, subprocess.TimeoutExpired):
        lines = []
    names = {
        a: Path(text.partition(" (discriminator")[0]).name for a, text in zip(addresses, lines, strict=False) if text
    }
    return _ADDRESS.sub(lambda m: names.get(m.group(1), f"code +0x{m.group(1)}"), message)


@dataclass(slots=True)
class EmulatedModule:
    """An extension as candidates see it: its functions are attributes.

    Attributes:
        unit: the translated source.
        extension: its library.
    """

    unit: Unit
    extension: EmulatedExtension

    @classmethod
    def create(cls, source: ExtensionSource, toolchain: Toolchain, directory: Path) -> "EmulatedModule":
        """Translate, compile and load an extension.

        Raises:
            CompileFailure: the code is not valid. Unsupported: it needs a GPU.
        """
        unit = translate(source)
        flags = emulated_flags([*source.flags.cflags, *source.flags.cuda_cflags])
        return cls(unit, EmulatedExtension(toolchain.build(unit, directory, flags)))

    def configure(self, variant: Variant) -> None:
        """Take the variant of the next calls."""
        self.extension.configure(variant)

    def report(self) -> dict[str, Any]:
        """See `EmulatedExtension.report`."""
        return self.extension.report()

    def reset(self) -> None:
        """See `EmulatedExtension.reset`."""
        self.extension.reset()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.extension, name)
