"""Put one kernel to many entries and record what each shows: one row of the kill matrix.

The kernel runs in the sandbox, like any candidate. A cell keeps the error against truth and the margin against the
reference, so that tolerances can be changed later without running anything (`mutants.matrix`).
"""

import contextlib
import importlib.metadata
import math
import platform
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor

from ..reward.checker import MODES
from ..reward.compare_reply import FINDINGS
from ..reward.cuda.emulator import RACE_VARIANT
from ..reward.gate import ByteBudget
from ..reward.plan import STATE_FACTOR
from ..reward.sandbox.buffers import OutputSpec
from ..reward.sandbox.engine import variants
from ..reward.sandbox.failure import ChildFailure
from ..reward.sandbox.limits import Limits
from ..reward.sandbox.session import ChildSession, RunReply, Zygote
from ..reward.trial import REDRAWS, STRAIN
from ..reward.truth_cache import SingleFlight
from ..reward.verdict import Outcome
from ..suites.compare import allclose_margin, normalised_error
from ..suites.draw import draw_entry, entry_bytes, entry_dtype
from ..suites.entry import Entry
from ..suites.envelope import draw_errors, strain
from ..suites.hashing import derive_seed
from ..suites.oracle import OracleError, ReferenceFlags, Truth, compute_truth, free_memory, reference_outputs
from ..suites.problem import RNG_LOCK, Problem
from ..suites.validity import Measured
from ..suites.version import version
from .device_shares import NEEDED, is_large, shares

CellClass = Literal["pass", "value", "crash", "hang", "race", "refused"]
Variant = Literal["plain", "strict"]

SEEDS = 3  # a kill has to hold in so many of so many draws
OFFICIAL_FLAGS = ReferenceFlags(matmul_tf32=False, cudnn_tf32=True)  # torch's defaults, as the official check has them
#: A mutant that hangs costs its limit; the entries of a matrix are small.
LIMITS = Limits(run_s=10.0, build_s=20.0)
#: Triton compiles within a run, and a dozen kernels at a time may want the same GPU.
LIMITS_GPU = Limits(run_s=30.0, build_s=30.0, load_s=120.0)
#: A compiled kernel on a GPU takes milliseconds at the shapes of small entries, also where a dozen processes share it.
#: One that hangs is met in several calls, and holds up whatever shares the device with it.
HANGS_S, HANGS_BYTES = LIMITS.run_s, 16 << 20
RESTARTS = 4  # children of one kernel that may die before what is left of its row is left out
#: The same for children in which CUDA reported an error. It would report it for whatever is asked of them later.
GIVEN_UP = 50
OFFICIAL_TOLERANCE = 1e-2
#: Truth that is kept between rows, as a share of the device's free memory, and at most in bytes on a CPU.
TRUTH_SHARE, TRUTH_BYTES = 0.15, 2 << 30
#: Before a cell is tried again that did not fit beside what others hold of a GPU. A mean over 8 GiB took 71 GiB for
#: some seconds; 371 mutants were left without an answer when nobody waited.
MEMORY_WAITS_S = (2.0, 5.0, 10.0, 15.0)
LARGE_DRAW = 16 << 20  # bytes of a draw that a GPU makes itself where its entry says the CPU
_ALIKE = 0.9  # how much of a cell's size its shares have to be for; there is room to spare in `NEEDED`
_POISONS = (0xFF, 0x42)  # a NaN as float32, and about 48
_SEVERITY = {"pass": 0, "refused": 1, "value": 2, "race": 3, "hang": 4, "crash": 5}


@dataclass(frozen=True, slots=True)
class Question:
    """One entry as it is put to a kernel.

    Attributes:
        entry: the recipe.
        measured: the gate's measurements; None for the entries of official protocols.
        variant: `plain`: one run as a GPU would do it; `strict`: adversarial schedules, poison, guards.
        races: whether a strict question also runs the race check, which costs a compilation of its own. What races
            depends on the shape and hardly on the values, so one entry of each shape asks for it.
    """

    entry: Entry
    measured: Measured | None = None
    variant: Variant = "strict"
    races: bool = False


@dataclass(frozen=True, slots=True)
class CellResult:
    """What one entry showed about one kernel.

    Attributes:
        entry: id.
        variant: as the question's.
        seeds: over how many draws.
        cls: what happened. `value`: an error above our tolerance (or, without one, a margin above 1e-2); `refused`: it
            raised at a changed shape before any output.
        errs: normalised error against truth per output, the least over the draws; inf for another shape or a crash;
            none where the entry has no tolerance of ours.
        margin: `max |reference - y| / (1 + |y|)` against the fp32 reference, the least over the draws.
        seconds: spent in forward calls.
        detail: for people: a crash's message, a race's two lines.
    """

    entry: str
    variant: Variant
    seeds: int
    cls: CellClass
    errs: tuple[float, ...]
    margin: float
    seconds: float
    detail: str = ""

    @property
    def killed(self) -> bool:
        """Whether it shows the kernel wrong."""
        return self.cls not in ("pass", "refused")


@dataclass(frozen=True, slots=True)
class _Draw:
    inputs: list[object]
    init_inputs: list[object]
    state: dict[str, Tensor]
    seed: int
    model_seed: int
    truth: Truth | None  # None where no tolerance of ours is held against it
    official: tuple[Tensor, ...]

    @property
    def nbytes(self) -> int:
        held = [t for t in (*self.inputs, *self.state.values(), *self.official) if isinstance(t, Tensor)]
        return sum(t.numel() * t.element_size() for t in held) + (self.truth.nbytes if self.truth else 0)


class KernelBroken(Exception):
    """The kernel could not be loaded, or died too often: the rest of its row stays empty."""


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
        self._draws: SingleFlight[_Draw] = SingleFlight(kept // sharers, lambda d: d.nbytes, _problem_of)
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

    def draw(self, problem: Problem, question: Question, index: int) -> _Draw:
        """One of a cell's draws and what is right for it, computed once for all kernels.

        Raises:
            OracleError: the reference cannot answer here.
        """
        entry, measured = self._drawn_here(problem, question.entry), question.measured
        key = (problem.hash, question.entry.id, index, measured is not None)

        def drawn_once(redraw: int, trusted: bool = False) -> tuple[float, _Draw]:
            with RNG_LOCK:
                drawn = draw_entry(problem, entry, matrix_seed(problem, question.entry, index, redraw), self.device)
                state = {k: v.detach() for k, v in drawn.build_model().state_dict().items()}
                truth, worse = None, 0.0
                if measured is not None:
                    truth = compute_truth(drawn, scale_pool=measured.scale_pool)
                    worse = 0.0 if trusted else strain(draw_errors(drawn, truth), measured.tolerance)
                official = tuple(reference_outputs(drawn, OFFICIAL_FLAGS))
            return worse, _Draw(drawn.inputs, drawn.init_inputs, state, drawn.seed, drawn.model_seed, truth, official)

        def compute() -> _Draw:
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

    def open(self, source: str, backend: str, problem: Problem) -> "KernelRun":
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


class KernelRun:
    """One kernel and its child; another child takes over where one died. Not thread-safe.

    Args:
        host: draws, zygotes, limits.
        source: a candidate's source.
        backend: `cuda`, `triton` or `torch`.
        problem: what it is for.
    """

    def __init__(self, host: Evaluator, source: str, backend: str, problem: Problem) -> None:
        self.host = host
        self.source = source
        self.problem = problem
        self.mode = host.mode(backend)
        self.deaths = 0
        self.given_up = 0
        self._proved = False  # an entry ended a child in all of its draws
        self._ends: dict[Hashable, bool] = {}  # by shape: whether all entries that were asked crashed a child
        self._session: ChildSession | None = None
        self._built: object = None
        self._room: tuple[int, contextlib.ExitStack] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
        self._leave()

    def _enter(self, size: int) -> None:
        """Take shares of the device for a large cell, and keep them for those that follow: the child, which holds as
        much in its allocator, can stay, and another one would cost a second each time."""
        if self._room is not None and self._room[0] >= _ALIKE * size:
            return
        self._leave()
        stack = contextlib.ExitStack()
        stack.enter_context(self.host.room(size))
        self._room = size, stack

    def _leave(self) -> None:
        if self._room is not None:
            self._close()
            torch.cuda.empty_cache()
            self._room[1].close()
            self._room = None

    def _close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
        self._built = None

    def cell(self, question: Question, draws: int = 1) -> CellResult | None:
        """Put one question, with that many draws or up to the first one that the kernel survives.

        Once an entry ended a child in `SEEDS` draws (a CUDA error, a hang), one more such end decides each later entry:
        it costs a process, and is hardly a matter of luck.

        Returns:
            None where it says nothing about the kernel (the engine here cannot run this dtype, for one).

        Raises:
            KernelBroken: it does not load, died more than `RESTARTS` times, or had more than `GIVEN_UP` CUDA errors.
            ChildFailure: `infra_error` only.
            OracleError: the reference cannot answer an entry that the gate admitted.
        """
        if self.host.pace is not None:
            self.host.pace()
        for wait_s in MEMORY_WAITS_S if self.host.on_gpu else ():
            before = self.deaths, self.given_up
            try:
                return self._fitting(question, draws)
            except ChildFailure as failure:
                if failure.reason not in ("device-memory", "judge-memory"):
                    raise
                self.deaths, self.given_up = before  # it begins again
            self._leave()
            self._close()
            torch.cuda.empty_cache()
            time.sleep(wait_s)
        return self._fitting(question, draws)

    def _fitting(self, question: Question, draws: int) -> CellResult | None:
        measured = question.measured
        size = measured.bytes if measured is not None else entry_bytes(self.problem, question.entry)
        try:
            if self.host.is_large(size):
                self._enter(size)
                return self._cell(question, draws)
            self._leave()
            with self.host.room(size):
                return self._cell(question, draws)
        except (OracleError, MemoryError, torch.OutOfMemoryError) as error:
            if isinstance(error, OracleError) and error.reason != "out-of-memory":
                raise
            raise ChildFailure("infra_error", "device-memory", f"it does not fit now: {error}", "run") from None

    def _cell(self, question: Question, draws: int) -> CellResult | None:
        found: list[CellResult] = []
        before = self._ended
        for index in range(draws):
            if self.deaths > RESTARTS:
                raise KernelBroken(f"it ended its process {self.deaths} times")
            if self.given_up > GIVEN_UP:
                raise KernelBroken(f"CUDA reported an error in {self.given_up} processes")
            draw = self.host.draw(self.problem, question, index)
            try:
                found.append(self._ask(question, draw))
            except ChildFailure as failure:
                cell = self._failed(question, draw, failure)
                if cell is None:
                    return None
                found.append(cell)
            if not found[-1].killed:
                break  # a kill has to hold in every draw
            if self._proved and self._ended > before:
                break
        self._proved |= self._ended - before == draws == SEEDS
        shape = question.entry.constants
        cell = merged(found)
        self._ends[shape] = self._ends.get(shape, True) and cell.cls == "crash" and self._ended > before
        return cell

    def ends_at(self, question: Question) -> bool:
        """Whether the kernel is known to crash processes, and did so in every entry of this one's shape that was asked.

        On a GPU only: elsewhere an error costs none.
        """
        return self.host.on_gpu and self._proved and self._ends.get(question.entry.constants, False)

    def known_to_crash(self, shape: Hashable) -> None:
        """Take over from an earlier row that it crashed in all draws of an entry, and in what was asked at a shape."""
        self._proved = self._ends[shape] = True

    @property
    def _ended(self) -> int:
        return self.deaths + self.given_up

    def _open(self, question: Question, draw: _Draw) -> ChildSession:
        if self._session is None:
            self._session = self.host.zygote(self.mode).spawn(self.host.limits)
            self._session.load(self.source)
        plain = not any(isinstance(v, Tensor) for v in draw.init_inputs)
        key = (
            question.entry.constants,
            question.entry.dtype,
            repr(draw.init_inputs) if plain else None,
            draw.model_seed if draw.state or not plain else None,
        )
        if key != self._built:
            self._built = None
            self._session.build(draw.init_inputs, draw.state, draw.model_seed, entry_dtype(question.entry))
            self._built = key
        return self._session

    def _ask(self, question: Question, draw: _Draw) -> CellResult:
        session = self._open(question, draw)
        specs = [OutputSpec(tuple(t.shape), t.dtype) for t in draw.official]
        limit_s = self.host.limit_s(self.mode, draw.nbytes)
        answers: list[CellResult] = []
        for i, variant in enumerate(self._variants(question)):
            reply = session.run(draw.inputs, specs, draw.seed, variant, _POISONS[i % 2], i % 2 == 1, limit_s)
            answers.append(_judged(question, draw, reply))
            if answers[-1].killed:
                break
        worst = max(answers, key=lambda a: (a.killed, max(a.errs, default=0.0)))
        if worst.cls == "value" and len(answers) > 1:
            worst = replace(worst, cls="race", detail=f"right under {len(answers) - 1} other schedules or poisons")
        return replace(worst, seconds=sum(a.seconds for a in answers))

    def _variants(self, question: Question) -> list[dict[str, Any]]:
        found = variants(self.mode, question.variant == "strict")
        if self.mode == "cuda-emulator" and question.variant == "strict" and not question.races:
            return [v for v in found if v != RACE_VARIANT.to_json()]
        return found

    def _failed(self, question: Question, draw: _Draw, failure: ChildFailure) -> CellResult | None:
        """The cell that a failure in the child stands for; None where it says nothing about this entry."""
        if failure.kind == "infra_error":
            raise failure
        if not failure.alive:
            self._close()
            self.deaths += 1
        elif failure.reason == "cuda-error" and self.host.on_gpu:  # on the emulator it ends with the run
            self._close()
            self.given_up += 1
        if failure.phase == "load" and failure.kind != "timeout":
            raise KernelBroken(failure.message or failure.reason)
        if failure.kind == "unrefereeable":
            return None
        cls: CellClass = "crash"
        if failure.kind == "timeout":
            cls = "hang"
        elif failure.kind == "incorrect":
            cls = "value"
        elif failure.reason == "refused" and not question.entry.declared_shape:
            cls = "refused"
        worst = (math.inf,) * (len(draw.official) if draw.truth is not None else 0)
        detail = f"{failure.reason}: {failure.message}"[:500]
        return CellResult(question.entry.id, question.variant, 1, cls, worst, math.inf, 0.0, detail)


def _judged(question: Question, draw: _Draw, reply: RunReply) -> CellResult:
    """One forward call as a cell."""
    truth = draw.truth
    errs: tuple[float, ...] = ()
    margin = max(allclose_margin(r, y) for r, y in zip(draw.official, reply.outputs, strict=True))
    if truth is None or question.measured is None:
        wrong = margin > OFFICIAL_TOLERANCE
    else:
        errs = tuple(
            normalised_error(y, t, s, truth.selection(i))
            for i, (y, t, s) in enumerate(zip(reply.outputs, truth.outputs, truth.scales, strict=True))
        )
        wrong = any(e > t for e, t in zip(errs, question.measured.tolerance, strict=True))
    cls: CellClass = "value" if wrong else "pass"
    detail = ""
    if question.variant == "strict":
        codes = {f["code"]: f["message"] for f in reply.findings}
        decisive = next((code for code in FINDINGS if code in codes), None)
        if decisive is not None:
            cls, detail = _class_of_finding(decisive), f"{decisive}: {codes[decisive]}"
        if reply.inputs_changed:
            errs, margin, cls, detail = (math.inf,) * len(errs), math.inf, "value", "an input was changed"
    return CellResult(question.entry.id, question.variant, 1, cls, errs, margin, reply.seconds, detail)


def _class_of_finding(code: str) -> CellClass:
    if code == "deadlock":
        return "hang"
    return "race" if FINDINGS[code] is Outcome.INCORRECT else "crash"


def merged(cells: Sequence[CellResult]) -> CellResult:
    """One cell of several draws: the one most favourable to the kernel, because a kill has to hold in all of them."""
    mildest = min(cells, key=lambda c: (_SEVERITY[c.cls], max(c.errs, default=0.0)))
    return replace(
        mildest,
        seeds=len(cells),
        errs=tuple(min(errs) for errs in zip(*(c.errs for c in cells), strict=True)),
        margin=min(c.margin for c in cells),
        seconds=sum(c.seconds for c in cells),
    )


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
    if evaluator.on_gpu:
        found["variants"] = ["plain"]  # there is no other way to run there, so plain cells stand for strict ones
    return found
