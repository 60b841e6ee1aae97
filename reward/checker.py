"""The judge: turns a task into a verdict, in this process, from any number of threads."""

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any, Self

import torch

from ..suites.draw import KEPT_ON_GPU, forget_models
from ..suites.errors import InputError
from ..suites.hashing import sha256_text, short
from ..suites.oracle import free_memory, give_back_memory
from ..suites.protocol import ProtocolSpec, load_protocol
from ..suites.tolerance import TolerancePolicy
from ..suites.validity import OUT_OF_MEMORY
from . import screen as screening
from .gate import ByteBudget, DeviceGate
from .kernelbench import OfficialChecker, find_checkout, second_opinion
from .plan import STATE_FACTOR, Plan, Planner, Question
from .sandbox.failure import ChildFailure
from .sandbox.limits import Limits
from .sandbox.session import Zygote
from .task import JudgeConfig, Task
from .timing import BATCH, SpeedTask, measure_speed
from .trial import Answer, Clock, Trial, decided
from .truth_cache import Reference, SideEffects, SingleFlight, compute_reference, side_effects
from .verdict import Outcome, Verdict

#: Modes by backend, without and with a GPU.
MODES = {
    "torch": ("torch", "torch"),
    "triton": ("triton-interpreter", "triton"),
    "cuda": ("cuda-emulator", "cuda"),
}
_MAY_LACK_MEMORY = frozenset({"out-of-memory", "device-memory", "judge-memory", "spawn"})
#: Modes that stand in for a GPU: their time means nothing.
SIMULATED = frozenset({"triton-interpreter", "cuda-emulator"})


class Checker:
    """Holds what is shared between candidates: zygotes, truth, suites.

    Args:
        config: how it is set up. Its `device` is this process's: `cpu`, or any `cuda` device, which is then the first
            one that this process sees.

    Raises:
        InputError: the configuration asks for something that this machine does not have.
    """

    def __init__(self, config: JudgeConfig | None = None) -> None:
        self.config = config or JudgeConfig()
        self.on_gpu = self.config.device.startswith("cuda")
        if self.on_gpu and not torch.cuda.is_available():
            raise InputError(f"device {self.config.device} was asked for, but torch sees no GPU here: use --device cpu")
        self.device = "cuda:0" if self.on_gpu else "cpu"
        if self.on_gpu:  # the gate takes what it may have: the rest is somebody else's
            most = self.config.memory_bytes + self.config.truth_bytes + KEPT_ON_GPU
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, most / total) if self.config.memory_bytes else 1.0, 0)
        self.policy = _policy(self.config)
        self.official = _official(self.config, self.device)
        try:
            self.limits = Limits(**dict(self.config.limits))  # type: ignore[arg-type]
        except TypeError as error:
            raise InputError(f"judge setting limits: {error}") from error
        suite_cache = Path(self.config.suite_cache) if self.config.suite_cache else None
        self.planner = Planner(self.device, self.policy, suite_cache)
        self._references: SingleFlight[Reference] = SingleFlight(self.config.truth_bytes, lambda r: r.nbytes)
        self._zygotes: dict[str, Zygote] = {}
        self.gate = DeviceGate()
        self.memory = ByteBudget(lambda used: self.config.memory_bytes or self._free_bytes() + used)
        self.own_kernel = self.config.screen.torch_ops == "deny"
        self._lock = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """End every candidate and every zygote."""
        with self._lock:
            self._closed = True
            zygotes, self._zygotes = list(self._zygotes.values()), {}
        for zygote in zygotes:
            zygote.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def describe(self) -> dict[str, Any]:
        """Versions and device, for logs and for `doctor`."""
        name = torch.cuda.get_device_name(0) if self.on_gpu else "cpu"
        return {"torch": torch.__version__, "device": self.device, "device_name": name, "policy": self.policy.name}

    # ---------------------------------------------------------------- what a trial asks of its host

    def zygote(self, mode: str) -> Zygote:
        """The zygote of a mode, started when it is first needed."""
        with self._lock:
            if self._closed:
                raise ChildFailure("infra_error", "closed", "the judge is closing", "spawn")
            if mode not in self._zygotes:
                spare = self.on_gpu and not self.config.memory_bytes  # its context takes memory
                self._zygotes[mode] = Zygote(mode, self.device, spare=spare)
            return self._zygotes[mode]

    def reference(
        self, task: Task, spec: ProtocolSpec, question: Question, seed: int, second: bool = False
    ) -> Reference:
        """One draw of an entry and what is right for it: computed once for all workers that ask."""
        key = (task.problem.hash, question.entry.id, seed, spec.hash, question.measured is not None, second)
        return self._references.get(
            key,
            lambda: compute_reference(
                task.problem, question.entry, seed, self.device, spec, question.measured, self.policy.ties, second
            ),
        )

    def side_effects(self, task: Task, question: Question, seed: int) -> SideEffects:
        """What the reference itself does to its inputs."""
        return side_effects(task.problem, question.entry, seed, self.device)

    # ---------------------------------------------------------------- judging

    def judge(self, task: Task) -> Verdict:
        """Judge one candidate. Blocks; thread-safe; a fault of the infrastructure is tried once more.

        Raises:
            InputError: the problem, protocol, suite or entry that the task names is wrong.
        """
        started = perf_counter()
        clock = Clock()
        spec = load_protocol(task.protocol) if isinstance(task.protocol, str) else task.protocol
        with clock.phase("screen"):
            backend, findings = self._screen(task)
        mode = MODES[backend][self.on_gpu]
        verdict = Verdict(
            Outcome.CORRECT,
            problem=task.problem.id,
            problem_hash=task.problem.hash,
            protocol=spec.name,
            backend=backend,
            engine=mode,
            device=self.device,
            candidate=sha256_text(task.candidate),
            epoch=task.epoch,
            notes=tuple(str(f) for f in findings if not f.hard),
        )
        hard = next((f for f in findings if f.hard), None)
        if hard is not None:
            return _timed(replace(verdict, verdict=hard.outcome, reason=hard.code, message=str(hard)), started, clock)
        with contextlib.suppress(ChildFailure):  # it warms up meanwhile; a failure is met when it is used
            self.zygote(mode)
        with self.gate.shared(), clock.phase("plan"):
            plan = self.planner.plan(task, spec, self._free_bytes)
            give_back_memory(torch.device(self.device))
        verdict = replace(verdict, suite=short(plan.suite), notes=(*verdict.notes, *plan.notes))
        if not plan.questions:
            return _timed(_nothing_to_ask(verdict, plan), started, clock)
        for attempt in range(2):
            try:
                return _timed(self._try(task, spec, plan, mode, verdict, clock), started, clock)
            except ChildFailure as failure:
                reason, message = failure.reason, failure.message
            except (MemoryError, torch.OutOfMemoryError) as error:
                reason, message = "out-of-memory", str(error)
            if reason in _MAY_LACK_MEMORY:
                with self.gate.shared():
                    forget_models()
                    give_back_memory(torch.device(self.device), keep=0)
            if attempt or self._closed:
                verdict = replace(verdict, verdict=Outcome.INFRA_ERROR, reason=reason, message=message)
        return _timed(verdict, started, clock)

    def _screen(self, task: Task) -> tuple[screening.Backend, Sequence[screening.Finding]]:
        findings = screening.screen(task.candidate, self.config.screen)
        if any(f.code in screening.STRUCTURAL for f in findings):
            return "torch", findings
        return screening.detect_backend(task.candidate), findings

    def _free_bytes(self) -> int:
        if self.config.memory_bytes:
            return self.config.memory_bytes
        return free_memory(torch.device(self.device))

    def _try(self, task: Task, spec: ProtocolSpec, plan: Plan, mode: str, verdict: Verdict, clock: Clock) -> Verdict:
        trial = Trial(task, spec, plan, mode, self, clock)
        try:
            answers = trial.run()
            verdict = _from_answers(verdict, answers, plan)
            if task.audit:
                verdict = _with_recipe(verdict, answers)
            if self.official is not None and not task.audit and verdict.verdict is Outcome.CORRECT:
                with self.gate.shared(), clock.phase("official"):
                    verdict = second_opinion(self.official, task.problem, task.candidate, verdict)
            if task.speed and verdict.verdict is Outcome.CORRECT:
                with clock.phase("speed"):
                    verdict = self._speed(trial, answers, verdict)
        finally:
            trial.close()
            with self.gate.shared():
                give_back_memory(torch.device(self.device))
        return replace(verdict, engine=trial.engine, notes=(*verdict.notes, *trial.notes))

    def _speed(self, trial: Trial, answers: Sequence[Answer], verdict: Verdict) -> Verdict:
        """Time a correct candidate at its largest declared-shape entry; wrong answers there undo the verdict."""
        if trial.mode in SIMULATED:
            note = f"speed not measured: the time of {trial.engine} says nothing about a GPU"
            return replace(verdict, notes=(*verdict.notes, note))
        declared = [a.question for a in answers if a.question.entry.declared_shape and a.result.outcome is not None]
        question = max(declared or [a.question for a in answers], key=lambda q: q.bytes)
        copies = STATE_FACTOR + 2 * BATCH
        if copies * question.bytes > self._free_bytes():
            note = f"speed not measured: it needs {copies * question.bytes / 2**20:.0f} MiB"
            return replace(verdict, notes=(*verdict.notes, note))
        task = trial.task
        wanted = SpeedTask(
            task.problem, question.entry, question.measured, trial.spec, task.run_key, task.epoch, self.policy.ties
        )
        with self.gate.exclusive():
            try:
                speed = measure_speed(wanted, trial.session(), self.zygote("torch"), self.limits, self.device)
            except ChildFailure as failure:
                if failure.kind == "infra_error":
                    raise
                outcome, reason, message = Outcome(failure.kind), failure.reason, f"while timed: {failure.message}"
                return replace(verdict, verdict=outcome, reason=reason, message=message, entry=question.entry.id)
        verdict = replace(verdict, notes=(*verdict.notes, *speed.notes))
        if speed.wrong:
            return replace(
                verdict,
                verdict=Outcome.INCORRECT,
                reason="wrong-when-timed",
                message=speed.wrong,
                entry=question.entry.id,
            )
        return replace(verdict, speedup=speed.speedup)


def _with_recipe(verdict: Verdict, answers: Sequence[Answer]) -> Verdict:
    """The verdict with the recipe of the entry that decided, which is in no suite."""
    entries = {a.question.entry.id: a.question.entry for a in answers}
    entry = entries.get(verdict.entry or "")
    return verdict if entry is None else replace(verdict, recipe=entry.to_dict())


def _official(config: JudgeConfig, device: str) -> OfficialChecker | None:
    if config.official is None:
        return None
    if device == "cpu":
        raise InputError("judge setting official: KernelBench's own evaluation needs a GPU; leave it out on a CPU")
    return OfficialChecker(find_checkout(config.official), device)


def _policy(config: JudgeConfig) -> TolerancePolicy:
    return TolerancePolicy.parse(config.precision + ("+ties=value" if config.ties == "value" else ""))


def _timed(verdict: Verdict, started: float, clock: Clock) -> Verdict:
    phases = {name: round(seconds, 6) for name, seconds in clock.phases.items()}
    return replace(verdict, seconds=perf_counter() - started, phases=phases)


def _nothing_to_ask(verdict: Verdict, plan: Plan) -> Verdict:
    if plan.missing_bytes:
        message = f"no entry fits: {plan.missing_bytes / 2**20:.0f} MiB more memory is needed for the smallest"
        return replace(verdict, verdict=Outcome.INFRA_ERROR, reason="out-of-memory", message=message)
    message = "no entry of this problem can judge a candidate: " + ("; ".join(plan.rejections) or "the suite is empty")
    if any(OUT_OF_MEMORY in text for text in plan.rejections):  # it may fit another time
        return replace(verdict, verdict=Outcome.INFRA_ERROR, reason="out-of-memory", message=message)
    return replace(verdict, verdict=Outcome.UNREFEREEABLE, reason="no-admissible-entry", message=message)


def _from_answers(verdict: Verdict, answers: Sequence[Answer], plan: Plan) -> Verdict:
    verdict = replace(verdict, entries=tuple(a.result for a in answers))
    answer = decided(answers)
    if answer is not None:
        result = answer.result
        assert result.outcome is not None
        return replace(
            verdict,
            verdict=result.outcome,
            reason=result.reason,
            message=result.message,
            entry=result.entry,
            err=result.err,
            tolerance=result.tolerance,
            seed=result.seed,
        )
    if any(a.infra for a in answers) or plan.missing_bytes:
        message = next((a.result.message for a in answers if a.infra), "entries were left out for want of memory")
        return replace(verdict, verdict=Outcome.INFRA_ERROR, reason="out-of-memory", message=message)
    refused = [a.result for a in answers if a.result.reason == "refused"]
    if refused:
        return replace(
            verdict,
            verdict=Outcome.INCORRECT,
            reason="refused",
            message=f"it refused every entry: {refused[0].message}",
            entry=refused[0].entry,
            seed=refused[0].seed,
        )
    result = answers[0].result
    return replace(verdict, verdict=Outcome.UNREFEREEABLE, reason=result.reason, message=result.message)
