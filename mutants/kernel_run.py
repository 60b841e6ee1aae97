"""One kernel and the children that run it, one after the other, while entries are put to it."""

import contextlib
import math
import time
from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from ..reward.cuda.emulator import RACE_VARIANT
from ..reward.sandbox.buffers import OutputSpec
from ..reward.sandbox.engine import variants
from ..reward.sandbox.failure import ChildFailure
from ..reward.sandbox.session import ChildSession
from ..suites.draw import entry_bytes, entry_dtype
from ..suites.oracle import OracleError
from ..suites.problem import Problem
from .cell import SEEDS, CellClass, CellResult, Draw, Question, judged, merged

if TYPE_CHECKING:
    from .evaluate import Evaluator

RESTARTS = 4  # children of one kernel that may die before what is left of its row is left out
#: The same for children in which CUDA reported an error. It would report it for whatever is asked of them later.
GIVEN_UP = 50
#: Before a cell is tried again that did not fit beside what others hold of a GPU. A mean over 8 GiB took 71 GiB for
#: some seconds; 371 mutants were left without an answer when nobody waited.
MEMORY_WAITS_S = (2.0, 5.0, 10.0, 15.0)
_ALIKE = 0.9  # how much of a cell's size its shares have to be for; there is room to spare in `NEEDED`
_RACE = RACE_VARIANT.to_json()
_POISONS = (0xFF, 0x42)  # a NaN as float32, and about 48


class KernelBroken(Exception):
    """The kernel could not be loaded, or died too often: the rest of its row stays empty."""


class KernelRun:
    """One kernel and its child; another child takes over where one died. Not thread-safe.

    Args:
        host: draws, zygotes, limits.
        source: a candidate's source.
        backend: `cuda`, `triton` or `torch`.
        problem: what it is for.

    Attributes:
        races: whether the race check showed something. From then on every strict question runs it, as the reward does
            for each of its entries.
    """

    def __init__(self, host: "Evaluator", source: str, backend: str, problem: Problem) -> None:
        self.host = host
        self.source = source
        self.problem = problem
        self.mode = host.mode(backend)
        self.deaths = 0
        self.given_up = 0
        self.races = False
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

    def _open(self, question: Question, draw: Draw) -> ChildSession:
        if self._session is None:
            self._session = self.host.zygote(self.mode).spawn(self.host.limits)
            self._session.load(self.source, {"strict": True})
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

    def _ask(self, question: Question, draw: Draw) -> CellResult:
        session = self._open(question, draw)
        specs = [OutputSpec(tuple(t.shape), t.dtype) for t in draw.official]
        limit_s = self.host.limit_s(self.mode, draw.nbytes)
        answers: list[CellResult] = []
        for i, variant in enumerate(self._variants(question)):
            reply = session.run(draw.inputs, specs, draw.seed, variant, _POISONS[i % 2], i % 2 == 1, limit_s)
            answers.append(judged(question, draw, reply))
            if answers[-1].killed:
                self.races |= variant == _RACE
            if reply.damaged:
                self._close()
            if reply.damaged or answers[-1].killed:
                break
        worst = max(answers, key=lambda a: (a.killed, max(a.errs, default=0.0)))
        if worst.cls == "value" and len(answers) > 1:
            worst = replace(worst, cls="race", detail=f"right under {len(answers) - 1} other schedules or poisons")
        self.races |= worst.cls == "race"
        return replace(worst, seconds=sum(a.seconds for a in answers))

    def _variants(self, question: Question) -> list[dict[str, Any]]:
        found = variants(self.mode, question.variant == "strict")
        if self.mode == "cuda-emulator" and question.variant == "strict" and not (question.races or self.races):
            return [v for v in found if v != _RACE]
        return found

    def _failed(self, question: Question, draw: Draw, failure: ChildFailure) -> CellResult | None:
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
