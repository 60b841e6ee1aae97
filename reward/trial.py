"""One candidate before its judge: its child process, and the entries that are put to it one after another."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor

from ..suites.draw import entry_dtype
from ..suites.envelope import strain
from ..suites.hashing import derive_seed
from ..suites.oracle import OracleError
from ..suites.protocol import ProtocolSpec
from .compare_reply import Judged, differs, judge_reply
from .gate import ByteBudget, DeviceGate
from .plan import STATE_FACTOR, Plan, Question
from .sandbox.buffers import OutputSpec
from .sandbox.engine import explanation, variants
from .sandbox.failure import ChildFailure
from .sandbox.limits import Limits
from .sandbox.session import ChildSession, RunReply, Zygote
from .task import Task
from .truth_cache import Reference, SideEffects
from .verdict import EntryResult, Outcome

#: Draws that are tried where a draw is worse conditioned than those that the tolerance was measured on, and how much
#: worse the best of them may be.
REDRAWS = 4
STRAIN = 2.0
#: The byte that fresh memory holds in the first run (a NaN as float32) and in a repetition (about 48).
POISON, REPEAT_POISON = 0xFF, 0x42
#: Findings that are handed on as notes where they do not decide.
NOTED = frozenset({"never-launched", "build-path"})
#: Failures at a changed shape that are tried again at the declared one: those of the values, and exceptions. A crash or
#: a stray access stays what it is.
SPECIALISABLE = frozenset({"value", "nan", "shape", "dtype", "count", "exception"})


class Host(Protocol):
    """What a trial needs of its judge."""

    limits: Limits
    gate: DeviceGate
    memory: ByteBudget
    own_kernel: bool  # whether a candidate has to launch a kernel of its own

    def zygote(self, mode: str) -> Zygote:
        """The warm process that candidates of this mode are forked from."""

    def reference(
        self, task: Task, spec: ProtocolSpec, question: Question, seed: int, second: bool = False
    ) -> Reference:
        """One draw and what is right for it; raises OracleError."""

    def side_effects(self, task: Task, question: Question, seed: int) -> SideEffects:
        """What the reference itself does to its inputs."""


@dataclass
class Clock:
    """Seconds by phase."""

    phases: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time that the block takes to a phase."""
        started = perf_counter()
        try:
            yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + perf_counter() - started


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of putting one question.

    Attributes:
        result: goes into the verdict.
        question, reference, outputs: kept where a repetition may follow.
        infra: the question could not be put, for want of memory.
    """

    result: EntryResult
    question: Question
    reference: Reference | None = None
    outputs: tuple[Tensor, ...] = ()
    infra: bool = False

    @property
    def ratio(self) -> float:
        """err / tolerance: how close it came to failing."""
        err, tolerance = self.result.err, self.result.tolerance
        return 0.0 if not err or err is None or not tolerance else err / tolerance


class Trial:
    """Runs a plan against one candidate.

    Args:
        task: the candidate and what is asked.
        spec: the protocol.
        plan: the questions.
        mode: which zygote, and so which engine.
        host: references, zygotes and limits.
        clock: gets the seconds of each phase.

    Raises (every method that talks to the child):
        ChildFailure: of kind `infra_error` only; every other failure is the candidate's and becomes a result.
    """

    def __init__(self, task: Task, spec: ProtocolSpec, plan: Plan, mode: str, host: Host, clock: Clock) -> None:
        self.task = task
        self.spec = spec
        self.plan = plan
        self.mode = mode
        self.host = host
        self.clock = clock
        self.engine = mode
        self.notes: list[str] = []
        self._session: ChildSession | None = None
        self._opening: Future[None] | None = None
        self._built: tuple[Any, ...] | None = None
        self._asked_twice = False
        self._damaged = False  # the child wrote where nothing is its own: the next question gets another one
        self._variants = variants(mode, spec.adversarial)
        self._explanation = explanation(mode, spec.adversarial)

    def close(self) -> None:
        """End the child and everything it started."""
        if self._opening is not None:
            self._opening.exception()  # nobody needs it any more, only its end
            self._opening = None
        if self._session is not None:
            with self.clock.phase("close"):
                self._session.close()
            self._session = None
            self._built = None
            self._damaged = False

    def session(self) -> ChildSession:
        """The candidate's child, started and loaded where it is not there."""
        if self._opening is not None:
            opening, self._opening = self._opening, None
            opening.result()
        if self._session is None:
            self._open()
        assert self._session is not None
        return self._session

    def _open(self) -> None:
        with self.clock.phase("spawn"):
            self._session = self.host.zygote(self.mode).spawn(self.host.limits)
        with self.clock.phase("load"):
            options = {**self.spec.flags, "strict": self.spec.adversarial}
            self.engine = self._session.load(self.task.candidate, options).engine

    def _open_meanwhile(self) -> None:
        """Let compilers work while the first question's truth is computed; `session` waits for it."""
        opening = self._opening = Future[None]()

        def work() -> None:
            try:
                self._open()
            except BaseException as error:
                opening.set_exception(error)
            else:
                opening.set_result(None)

        threading.Thread(target=work, name="load candidate", daemon=True).start()

    def run(self) -> list[Answer]:
        """Put the questions in order, up to the first failure unless the task wants all."""
        if self.plan.questions:
            self._open_meanwhile()
        answers: list[Answer] = []
        queue = list(self.plan.questions)
        asked = {q.entry.id for q in queue}
        last: Answer | None = None
        while queue:
            answer = self.ask(queue.pop(0))
            outcome = answer.result.outcome
            twin = answer.question.twin
            if outcome is None:
                if answer.result.reason == "refused" and twin is not None and twin.entry.id not in asked:
                    asked.add(twin.entry.id)
                    queue.append(twin)
            elif outcome is not Outcome.CORRECT:
                answer = self._explain(answer)
            else:
                last = answer
            answers.append(answer)
            if outcome not in (None, Outcome.CORRECT) and not self.task.all_entries:
                return answers
        if last is not None and self.spec.repeat and all(a.result.outcome in (None, Outcome.CORRECT) for a in answers):
            answers[answers.index(last)] = self._repeat_correct(last)
        return answers

    def ask(self, question: Question) -> Answer:
        """Put one question: draw, build where necessary, run under every variant, compare."""
        with self.host.memory.hold(STATE_FACTOR * question.bytes):
            return self._ask(question)

    def _ask(self, question: Question) -> Answer:
        try:
            seed, reference = self._reference(question)
        except OracleError as error:
            return _skipped(question, error.reason, str(error), infra=error.reason == "out-of-memory")
        except MemoryError as error:
            return _skipped(question, "out-of-memory", str(error), infra=True)
        if reference is None:
            return _skipped(
                question, "unlucky-draw", f"{REDRAWS} draws in a row on which float32 errs far more than usual"
            )
        if self.spec.skip_nonfinite and not reference.finite:
            return _skipped(question, "nonfinite-reference", "the reference's own output holds NaN or Inf")
        try:
            self._prepare(question, reference)
            judged, outputs = self._run(question, reference, seed)
            if judged.ok and self.spec.repeat and not self._asked_twice:
                judged, outputs, reference = self._ask_twice(question, seed, judged, outputs, reference)
        except ChildFailure as failure:
            return Answer(self._failed(question, seed, failure), question, reference)
        result = EntryResult(
            question.entry.id,
            Outcome.CORRECT if judged.ok else judged.outcome,
            judged.reason,
            judged.err,
            judged.tolerance,
            seed,
            judged.seconds,
            judged.message,
        )
        return Answer(result, question, reference, outputs)

    def seed(self, question: Question, redraw: int = 0) -> int:
        """The secret seed of a question's draw."""
        task = self.task
        parts = (task.problem.hash, question.entry.id, task.epoch)
        return derive_seed(task.run_key, *parts, *(("redraw", redraw) if redraw else ()))

    def _reference(self, question: Question) -> tuple[int, Reference | None]:
        with self.host.gate.shared(), self.clock.phase("truth"):
            if self.task.seed is not None:
                return self.task.seed, self.host.reference(self.task, self.spec, question, self.task.seed)
            best: tuple[float, int, Reference] | None = None
            for redraw in range(REDRAWS):
                seed = self.seed(question, redraw)
                reference = self.host.reference(self.task, self.spec, question, seed)
                worse = strain(reference.draw_errors, _tolerances(question))
                if best is None or worse < best[0]:
                    best = worse, seed, reference
                if worse <= 1.0:
                    break
            assert best is not None
            return best[1], best[2] if best[0] <= STRAIN else None

    def _prepare(self, question: Question, reference: Reference) -> None:
        if self._damaged:
            self.close()
        session = self.session()
        key = _build_key(question, reference)
        if key != self._built:
            self._built = None
            with self.clock.phase("build"):
                session.build(reference.init_inputs, reference.state, reference.model_seed, entry_dtype(question.entry))
            self._built = key

    def _run(
        self, question: Question, reference: Reference, seed: int, *, once: bool = False, again: bool = False
    ) -> tuple[Judged, tuple[Tensor, ...]]:
        """Every variant of one question (or the first one only); a race where only some of them fail."""
        worst: Judged | None = None
        outputs: tuple[Tensor, ...] = ()
        passed = failed = 0
        for variant in self._variants[:1] if once else self._variants:
            judged, reply = self._put(question, reference, seed, variant, again)
            passed, failed = passed + judged.ok, failed + (not judged.ok)
            if worst is None or judged.severity > worst.severity:
                worst, outputs = judged, tuple(reply.outputs)
            if not judged.ok and judged.crash:
                break
        assert worst is not None
        if passed and failed and not worst.crash:
            message = f"wrong under {failed} of {passed + failed} thread schedules: {worst.message}"
            worst = replace(worst, reason="race", message=message)
        return worst, outputs

    def _put(
        self, question: Question, reference: Reference, seed: int, variant: Mapping[str, Any], again: bool
    ) -> tuple[Judged, RunReply]:
        """One question under one variant; `again`: with another poison, at other addresses."""
        specs = [OutputSpec(tuple(t.shape), d) for t, d in zip(reference.outputs, reference.dtypes, strict=True)]
        assert self._session is not None
        with self.host.gate.shared(), self.clock.phase("run"):
            poison = REPEAT_POISON if again else POISON
            reply = self._session.run(reference.inputs, specs, reference.seed, variant, poison, moved=again)
        self._note(reply.findings)
        self._damaged |= reply.damaged
        with self.clock.phase("compare"):
            judged = judge_reply(reply, reference, question.measured, self.spec, own_kernel=self.host.own_kernel)
            if judged.reason in ("input-mutated", "aliased") and self._reference_does_too(judged, question, seed):
                judged = judge_reply(reply, reference, question.measured, self.spec, side_effects=False)
        return judged, reply

    def _note(self, findings: Sequence[Mapping[str, str]]) -> None:
        """Keep what an engine says beside the results for the verdict's reader."""
        notes = [f"{f['code']}: {f['message']}" for f in findings if f["code"] in NOTED]
        self.notes.extend(n for n in dict.fromkeys(notes) if n not in self.notes)

    def _ask_twice(
        self, question: Question, seed: int, first: Judged, outputs: tuple[Tensor, ...], reference: Reference
    ) -> tuple[Judged, tuple[Tensor, ...], Reference]:
        """Put other inputs of the same shape to the same ModelNew: an answer kept from the first ones is wrong now.

        Done once per candidate, at its cheapest question. Returns what decides: the first run, or the second one where
        it is wrong.
        """
        with self.host.gate.shared(), self.clock.phase("truth"):
            try:
                other = self.host.reference(self.task, self.spec, question, seed, second=True)
            except (OracleError, MemoryError):
                return first, outputs, reference
        if strain(other.draw_errors, _tolerances(question)) > STRAIN:
            return first, outputs, reference
        self._asked_twice = True
        judged, again = self._run(question, other, seed, once=True)
        if judged.ok:
            return first, outputs, reference
        kept = all(map(torch.equal, outputs, again))
        message = f"right on the first inputs, not on the next ones of the same shape: {judged.message}"
        return replace(judged, reason="reused-answer" if kept else judged.reason, message=message), again, other

    def _reference_does_too(self, judged: Judged, question: Question, seed: int) -> bool:
        effects = self.host.side_effects(self.task, question, seed)
        return effects.mutates if judged.reason == "input-mutated" else effects.aliasing

    def _failed(self, question: Question, seed: int, failure: ChildFailure) -> EntryResult:
        """The result that a failure in the child stands for; drops a child that cannot go on."""
        if failure.reason == "unsupported-value":  # the problem hands over what cannot be sent to a child
            return EntryResult(question.entry.id, None, failure.reason, message=failure.message)
        if failure.kind == "infra_error":
            raise failure
        if failure.kind == "unrefereeable" and failure.phase != "load":  # this entry here, not the candidate
            return EntryResult(question.entry.id, None, failure.reason, message=failure.message)
        if not failure.alive:
            self.close()
        outcome: Outcome | None = Outcome(failure.kind)
        reason = failure.reason
        message = failure.message
        if reason == "refused":
            if question.entry.declared_shape:
                reason = "exception"
            else:
                outcome = None
                message = f"refused the shape {_shape(question)}: {message}"
        if failure.phase in ("load", "build") and outcome is Outcome.TIMEOUT:
            message = f"{failure.phase} took too long. {message}"
        return EntryResult(question.entry.id, outcome, reason, None, None, seed, 0.0, message)

    def _explain(self, answer: Answer) -> Answer:
        """Look once more at a failure: is it one of the changed shape alone, is it a race, and does it repeat?"""
        result, question = answer.result, answer.question
        # What warps do at one shape may come right at another by luck, so on a GPU this is asked first.
        first = self.spec.adversarial and self.mode == "cuda"
        explained = self._explained(answer) if first else None
        if explained is not None:
            return explained
        if question.twin is not None and not question.entry.declared_shape and result.reason in SPECIALISABLE:
            declared = self.ask(question.twin).result
            if declared.outcome is Outcome.CORRECT:
                message = f"right at the declared shape, not at {_shape(question)}: {result.message}"
                return replace(answer, result=replace(result, reason="shape-specialised", message=message))
        explained = None if first else self._explained(answer)
        if explained is not None:
            return explained
        repeatable = self.spec.repeat and result.reason in ("value", "nan") and answer.reference is not None
        if repeatable and self._unsteady(answer):
            return replace(answer, result=replace(result, reason="nondeterministic"))
        return answer

    def _explained(self, answer: Answer) -> Answer | None:
        """With a better reason, where there is one."""
        emulated = self.mode == "cuda-emulator"
        unexplained = ("warp-synchronous",) if self.spec.adversarial and emulated else ("value", "nan")
        if self._explanation is None or answer.result.reason not in unexplained:
            return None
        explained = self._run_explanation(answer)
        return None if explained is None else replace(answer, result=explained)

    def _run_explanation(self, answer: Answer) -> EntryResult | None:
        """A better reason for a failure, from the variant that explains; once per candidate.

        On the emulator: where the protocol asks for no race check, a race explains wrong values. Where it does, code
        that trusts a warp's lockstep is wrong by value if a plain run, which keeps it, is wrong as well.
        On a GPU: values that are right in a plain run depend on when warps run, or on memory that nobody wrote.
        """
        variant, self._explanation = self._explanation, None
        result, reference, seed = answer.result, answer.reference, answer.result.seed
        assert variant is not None
        assert reference is not None
        assert seed is not None
        try:
            with self.host.memory.hold(STATE_FACTOR * answer.question.bytes):
                self._prepare(answer.question, reference)
                judged, reply = self._put(answer.question, reference, seed, variant, again=False)
        except ChildFailure as failure:
            self._failed(answer.question, seed, failure)
            return None
        if self.spec.adversarial and result.reason in ("value", "nan"):
            if not judged.ok:
                return None
            why = "right in a plain run, wrong where warps pause at barriers and unwritten memory is poisoned"
            return replace(result, reason="race", message=f"{why}: {result.message}")
        if self.spec.adversarial:
            if judged.ok:
                return None
            message = f"{judged.message}; besides, {result.message}"
            return replace(
                result,
                outcome=judged.outcome,
                reason=judged.reason,
                message=message,
                err=judged.err,
                tolerance=judged.tolerance,
            )
        race = next((str(f["message"]) for f in reply.findings if f["code"] == "race"), "")
        return replace(result, reason="race", message=f"{race}; {result.message}") if race else None

    def _unsteady(self, answer: Answer) -> bool:
        """Whether a wrong answer comes out differently on buffers that are written anew."""
        again = self._again(answer)
        if again is None:
            return True
        judged, outputs = again
        assert answer.reference is not None
        return judged.ok or differs(answer.outputs, outputs, answer.reference, answer.question.measured)

    def _repeat_correct(self, answer: Answer) -> Answer:
        """A right answer must come out right again on buffers that are written anew."""
        again = self._again(answer)
        if again is not None and again[0].ok:
            return answer
        if again is None:
            message = "failed when it was run again on the same inputs"
        else:
            message = f"another answer when it was run again on the same inputs: {again[0].message}"
        err = again[0].err if again else None
        return replace(
            answer,
            result=replace(
                answer.result, outcome=Outcome.INCORRECT, reason="nondeterministic", message=message, err=err
            ),
        )

    def _again(self, answer: Answer) -> tuple[Judged, tuple[Tensor, ...]] | None:
        """Run a question once more, at other addresses with another poison; None where that raises."""
        reference, seed = answer.reference, answer.result.seed
        assert reference is not None
        assert seed is not None
        try:
            with self.host.memory.hold(STATE_FACTOR * answer.question.bytes):
                self._prepare(answer.question, reference)
                return self._run(answer.question, reference, seed, once=True, again=True)
        except ChildFailure as failure:
            self._failed(answer.question, seed, failure)
            return None


def _tolerances(question: Question) -> tuple[float, ...]:
    return () if question.measured is None else question.measured.tolerance


def _build_key(question: Question, reference: Reference) -> tuple[Any, ...]:
    """Two questions with equal keys can be put to one ModelNew."""
    plain = not any(isinstance(v, Tensor) for v in reference.init_inputs)
    drawn = bool(reference.state) or not plain
    entry = question.entry
    return entry.constants, entry.dtype, repr(reference.init_inputs) if plain else "", drawn and reference.model_seed


def _skipped(question: Question, reason: str, message: str, infra: bool = False) -> Answer:
    return Answer(EntryResult(question.entry.id, None, reason, message=message), question, infra=infra)


def _shape(question: Question) -> str:
    return ", ".join(f"{name}={value}" for name, value in question.entry.constants) or "declared"


def decided(answers: Sequence[Answer]) -> Answer | None:
    """The answer that decides: the first failure, else the one that came closest to failing; None where none counts."""
    counted = [a for a in answers if a.result.outcome is not None]
    failures = [a for a in counted if a.result.outcome is not Outcome.CORRECT]
    if failures:
        return failures[0]
    return max(counted, key=lambda a: a.ratio, default=None)
