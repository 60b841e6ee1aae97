"""Put kernels to many entries and record what each shows: rows of the kill matrix.

Kernels run in the sandbox, like any candidate (`kernel_run`). Here is what they share: draws and what is right for
them, memory, warm processes. A cell (`cell`) keeps the error against truth and the margin against the reference, so
that tolerances can be changed later without running anything (`matrix`).
"""

import contextlib
import importlib.metadata
import platform
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from typing import Any, Self

import torch

from ..reward.checker import MODES
from ..reward.gate import ByteBudget
from ..reward.plan import STATE_FACTOR
from ..reward.sandbox.limits import Limits
from ..reward.sandbox.session import Zygote
from ..reward.trial import REDRAWS, STRAIN
from ..reward.truth_cache import SingleFlight
from ..suites.draw import draw_entry, entry_bytes
from ..suites.entry import Entry
from ..suites.envelope import draw_errors, strain
from ..suites.hashing import derive_seed
from ..suites.oracle import OracleError, ReferenceFlags, compute_truth, free_memory, reference_outputs
from ..suites.problem import RNG_LOCK, Problem
from ..suites.version import version
from .cell import Draw, Question
from .device_shares import NEEDED, is_large, shares
from .kernel_run import KernelRun

OFFICIAL_FLAGS = ReferenceFlags(matmul_tf32=False, cudnn_tf32=True)  # torch's defaults, as the official check has them
#: A mutant that hangs costs its limit; the entries of a matrix are small.
LIMITS = Limits(run_s=10.0, build_s=20.0)
#: Triton compiles within a run, and a dozen kernels at a time may want the same GPU.
LIMITS_GPU = Limits(run_s=30.0, build_s=30.0, load_s=120.0)
#: A compiled kernel on a GPU takes milliseconds at the shapes of small entries, also where a dozen processes share it.
#: One that hangs is met in several calls, and holds up whatever shares the device with it.
HANGS_S, HANGS_BYTES = LIMITS.run_s, 16 << 20
#: Truth that is kept between rows, as a share of the device's free memory, and at most in bytes on a CPU.
TRUTH_SHARE, TRUTH_BYTES = 0.15, 2 << 30
LARGE_DRAW = 16 << 20  # bytes of a draw that a GPU makes itself where its entry says the CPU


class Evaluator:
    """Evaluates kernels on one device, from any number of threads.

    Args:
        device: `cpu`, or `cuda` (the first that this process sees).
        sharers: processes with an evaluator for this device; each keeps its part of the truths.
        pace: called before each cell, and may sleep.
        patience: times the limits of a kernel's calls, which count seconds on the wall.
        spare: on a GPU, have the next child made while one works: it holds a CUDA context while it waits.
    """

    def __init__(
        self,
        device: str = "cpu",
        sharers: int = 1,
        pace: Callable[[], None] | None = None,
        patience: float = 1.0,
        spare: bool = False,
    ) -> None:
        self.pace = pace
        self._spare = spare
        self.device = "cuda:0" if device.startswith("cuda") else "cpu"
        self.on_gpu = self.device != "cpu"
        limits = LIMITS_GPU if self.on_gpu else LIMITS
        self.limits = replace(
            limits,
            run_s=patience * limits.run_s,
            build_s=patience * limits.build_s,
            load_s=patience * limits.load_s,
        )
        self._patience = patience
        kept = int(TRUTH_SHARE * self._free()) if self.on_gpu else TRUTH_BYTES
        self._draws: SingleFlight[Draw] = SingleFlight(kept // sharers, lambda d: d.nbytes, _problem_of)
        self._redraws: dict[Hashable, int] = {}  # which of its draws a cell's was taken from, once that is known
        self.memory = ByteBudget(lambda used: self._free() + used)
        self._zygotes: SingleFlight[Zygote] = SingleFlight(1 << 30, lambda _: 0)
        self._started: list[Zygote] = []

    def close(self) -> None:
        """End all zygotes and their children."""
        for zygote in self._started:
            zygote.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _free(self) -> int:
        return free_memory(torch.device(self.device))

    def is_large(self, size: int) -> bool:
        """Whether a cell whose inputs, outputs and parameters are that many bytes waits for shares of the device."""
        return is_large(torch.device(self.device), size)

    @contextlib.contextmanager
    def room(self, size: int) -> Iterator[None]:
        """Memory for a cell whose inputs, outputs and parameters are that many bytes: waits for its turn.

        Large ones share a GPU with those of all processes, pools' gates included.
        """
        with contextlib.ExitStack() as stack:
            if self.is_large(size):
                stack.enter_context(shares(torch.device(self.device)).hold(NEEDED * size))
            stack.enter_context(self.memory.hold(STATE_FACTOR * size))
            yield

    def limit_s(self, mode: str, size: int) -> float:
        """Seconds that a forward call may take, in a mode, on a draw that is held in that many bytes."""
        quick = self.on_gpu and mode == "cuda" and size <= HANGS_BYTES  # Triton compiles within a call
        return self._patience * HANGS_S if quick else self.limits.run_s

    def mode(self, backend: str) -> str:
        """The sandbox mode that runs kernels of a backend here."""
        return MODES[backend][self.on_gpu]

    def zygote(self, mode: str) -> Zygote:
        """The warm process of a mode, started when it is first needed."""

        def start() -> Zygote:
            # A CUDA context is made under locks that all processes of the machine share: eight at a time made 5 a
            # second, and with one hardware queue each 13 (H200). No kernel here is timed, and CUDA promises no kernel
            # that another one runs beside it.
            zygote = Zygote(mode, self.device, spare=self._spare and self.on_gpu, queues=1 if self.on_gpu else None)
            self._started.append(zygote)
            return zygote

        return self._zygotes.get(mode, start)

    def draw(self, problem: Problem, question: Question, index: int) -> Draw:
        """One of a cell's draws and what is right for it, computed once for all kernels.

        Raises:
            OracleError: the reference cannot answer here.
        """
        entry, measured = self._drawn_here(problem, question.entry), question.measured
        key = (problem.hash, question.entry.id, index, measured is not None)

        def drawn_once(redraw: int, trusted: bool = False) -> tuple[float, Draw]:
            with RNG_LOCK:
                drawn = draw_entry(problem, entry, matrix_seed(problem, question.entry, index, redraw), self.device)
                state = {k: v.detach() for k, v in drawn.build_model().state_dict().items()}
                truth, worse = None, 0.0
                if measured is not None:
                    truth = compute_truth(drawn, scale_pool=measured.scale_pool)
                    worse = 0.0 if trusted else strain(draw_errors(drawn, truth), measured.tolerance)
                official = tuple(reference_outputs(drawn, OFFICIAL_FLAGS))
            return worse, Draw(drawn.inputs, drawn.init_inputs, state, drawn.seed, drawn.model_seed, truth, official)

        def compute() -> Draw:
            if key in self._redraws:  # it was dropped since
                return drawn_once(self._redraws[key], trusted=True)[1]
            fixed = measured is None or entry.seed_policy == "kernelbench"  # official draws are what they are
            found = [drawn_once(0)]
            while not fixed and found[-1][0] > 1.0 and len(found) < REDRAWS:
                found.append(drawn_once(len(found)))
            redraw = min(range(len(found)), key=lambda i: found[i][0])
            worse, draw = found[redraw]
            if not fixed and worse > STRAIN:
                raise OracleError("unlucky-draw", f"{REDRAWS} draws in a row on which float32 errs far more than usual")
            self._redraws[key] = redraw
            return draw

        return self._draws.get(key, compute)

    def _drawn_here(self, problem: Problem, entry: Entry) -> Entry:
        """The official draws are made on the CPU: at large shapes ten seconds each, for every mutant that needs one.

        There a GPU draws them itself: other numbers, from the same distribution.
        """
        if not self.on_gpu or entry.draw_device == "judge" or entry_bytes(problem, entry) < LARGE_DRAW:
            return entry
        return replace(entry, draw_device="judge")

    def open(self, source: str, backend: str, problem: Problem) -> KernelRun:
        """A kernel to put questions to; a context manager."""
        return KernelRun(self, source, backend, problem)


def _problem_of(key: Hashable) -> Hashable:
    assert isinstance(key, tuple)
    return key[0]


def matrix_seed(problem: Problem, entry: Entry, index: int, redraw: int = 0) -> int:
    """The seed of one of a cell's draws: public and fixed, so that two machines fill the same cell.

    Args:
        index: which draw of the cell.
        redraw: how often it was drawn before, worse conditioned than what the tolerance was measured on.
    """
    again = ("redraw", redraw) if redraw else ()
    return derive_seed(b"kernelward matrix", problem.hash, entry.id, index, *again)


def environment(evaluator: Evaluator, backend: str) -> dict[str, Any]:
    """What cells of a backend's kernels depend on here, beside kernel and entry: the matrix's environment."""
    mode = evaluator.mode(backend)
    found: dict[str, Any] = {
        "engine": mode,
        "device_class": "cuda" if evaluator.on_gpu else "cpu",
        "device": torch.cuda.get_device_name(0) if evaluator.on_gpu else platform.machine(),
        "kernelward": version(),
        "torch": str(torch.__version__),
    }
    if backend == "triton":
        found["triton"] = importlib.metadata.version("triton")
    if evaluator.on_gpu and mode != "cuda":
        found["variants"] = ["plain"]  # there is no other way to run there, so plain cells stand for strict ones
    return found
