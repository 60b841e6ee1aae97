"""What one candidate may use."""

from dataclasses import asdict, dataclass
from typing import Any, Self

MIB = 1 << 20
GIB = 1 << 30
EMULATOR_COMPILE_S = 120.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one child, per phase where they are times.

    Attributes:
        load_s, build_s, run_s: wall-clock seconds for importing the source, for constructing `ModelNew`, and for one
            forward call. The judge's clock counts, from request to reply, less what compilers take.
        compile_s: wall-clock seconds for compilers that our engines start for the candidate's CUDA extensions, over
            the child's whole life: torch's own `load_inline` takes one to two minutes for each. The emulator, whose
            compiler needs a second, gets at most `EMULATOR_COMPILE_S`.
        memory_bytes: private memory that the candidate may add to the warm interpreter, over all its processes.
        device_bytes: device memory that the candidate may use beside the buffers; only decides whether an
            out-of-memory on a GPU was its own doing.
        tmp_bytes: its temporary directory (held in memory).
        output_bytes: how much of stdout and stderr together is kept; the rest is read and dropped.
        processes: processes and threads at one time.
    """

    load_s: float = 60.0
    compile_s: float = 600.0
    build_s: float = 30.0
    run_s: float = 30.0
    memory_bytes: int = 8 * GIB
    device_bytes: int = 8 * GIB
    tmp_bytes: int = 1 * GIB
    output_bytes: int = 16 << 10
    processes: int = 256

    def compiling(self, mode: str) -> float:
        """Seconds for compilers in one of the sandbox's modes; where our engines start none, there is no such time."""
        if mode == "cuda-emulator":
            return min(self.compile_s, EMULATOR_COMPILE_S)
        return self.compile_s if mode in ("cuda", "cuda-compile") else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the wire."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Inverse of `to_dict`."""
        return cls(**data)
