"""The judge's side: a warm zygote, and one session per candidate.

    with Zygote("torch", "cpu") as zygote, zygote.spawn(Limits()) as child:
        child.load(source)
        child.build(init_inputs, state, seed)
        reply = child.run(inputs, [OutputSpec(shape, dtype)], seed)

Every call returns or raises `ChildFailure`, within its limit.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import torch

from ..cuda.gaps import emulator_gap
from ..triton.gaps import interpreter_gap
from . import process
from .arena import Arena, Slot
from .buffers import OutputSpec
from .conversation import Conversation
from .failure import ChildFailure, Phase
from .isolation import IsolationReport, Strictness, refusal
from .limits import Limits
from .replies import (
    BuildReply,
    LoadReply,
    RunReply,
    TimeReply,
    checked_findings,
    checked_names,
    checked_outputs,
    checked_values,
    described,
    fault_of,
    is_damage,
)
from .wire import DTYPE_NAMES, UnsupportedValueError, encode_value, parse_object

READY_S = 120.0  # a cold import of torch on a busy machine
NARROW = frozenset({torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2})


class Zygote:
    """A warm process that candidates of one mode are forked from. Thread-safe; restarted if it dies.

    Args:
        mode: a key of `engine.ENGINES`.
        device: the judge's torch device string that buffers live on (`cpu`, `cuda:1`).
        isolation: `best-effort` leaves out layers that the machine lacks (see `report`), `strict` refuses to spawn.
        without: layers of `isolation.LAYERS` to leave out.
        spare: have the next child made while the last one works. Its CUDA context takes 0.2 s to make and some hundred
            MiB of the device while it waits.
        queues: of the hardware, for the CUDA context of a child; None = what the driver gives it, whatever this
            process has in CUDA_DEVICE_MAX_CONNECTIONS. With one, kernels of different streams wait for each other.

    Raises:
        ChildFailure: `infra_error` if it cannot be started.
    """

    def __init__(
        self,
        mode: str,
        device: str = "cpu",
        isolation: Strictness = "best-effort",
        without: Collection[str] = (),
        spare: bool = False,
        queues: int | None = None,
    ) -> None:
        self.mode = mode
        self._queues = queues
        self._keeps_spare = spare
        self._spare: ChildSession | None = None
        self._making: threading.Thread | None = None
        self._promised = False  # whether somebody waits for what is being made
        self._strictness: Strictness = isolation
        self._without = tuple(without)
        self.device = torch.device(device)
        if self.device.type == "cuda" and self.device.index is None:
            self.device = torch.device("cuda", 0)
        self._lock = threading.Lock()
        self._closed = False
        self._start()

    def _start(self) -> None:
        try:
            self._process, self._control, self._errors = process.start_zygote(
                self.mode, str(self.device), self._without, self._queues
            )
        except OSError as error:
            raise ChildFailure("infra_error", "zygote", str(error), "spawn") from None
        self._ready = False

    def _ensure(self) -> None:
        """Wait until it is warm; start another one if it has died."""
        for _ in range(2):
            if self._process.poll() is not None:
                self._discard()
                self._start()
            if self._ready:
                return
            deadline = time.monotonic() + READY_S
            if process.wait_readable([self._control.fileno()], deadline):
                hello = self._control.recv(1 << 16)
                if hello:
                    self._report = IsolationReport.from_dict(parse_object(hello)["isolation"])
                    lacking = refusal(self._report, self._strictness)
                    if lacking:
                        raise ChildFailure("infra_error", "isolation", lacking, "spawn")
                    self._ready = True
                    return
            self._process.kill()
            self._process.wait()
        raise ChildFailure("infra_error", "zygote", f"it did not start: {self._stderr()[-2000:]}", "spawn")

    def _stderr(self) -> str:
        size = os.fstat(self._errors).st_size
        return os.pread(self._errors, 4000, max(0, size - 4000)).decode("utf-8", "replace")

    def _discard(self) -> None:
        self._control.close()
        with contextlib.suppress(OSError):
            os.close(self._errors)

    def spawn(self, limits: Limits | None = None) -> "ChildSession":
        """A fresh child for one candidate, isolated and ready to load.

        Raises:
            ChildFailure: `infra_error`: no process could be made.
        """
        limits = limits or Limits()
        session = self._take_spare(limits) or self._fresh(limits)
        if self._keeps_spare:
            self._make_spare(limits)
        return session

    def _take_spare(self, limits: Limits) -> "ChildSession | None":
        with self._lock:
            making, self._promised = None if self._promised else self._making, True
        if making is not None:
            making.join()  # it began earlier than one that would begin now
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is None or (spare.limits == limits and spare.waits()):
            return spare
        spare.close()
        return None

    def _make_spare(self, limits: Limits) -> None:
        def make() -> None:
            try:
                spare = self._fresh(limits)
            except ChildFailure:  # whoever needs a child next is told why there is none
                return
            with self._lock:
                if self._closed or self._spare is not None:
                    unwanted: ChildSession | None = spare
                else:
                    self._spare, unwanted = spare, None
            if unwanted is not None:
                unwanted.close()

        with self._lock:
            if self._closed or self._spare is not None or (self._making is not None and self._making.is_alive()):
                return
            self._promised = False
            self._making = threading.Thread(target=make, name="spare child", daemon=True)
            self._making.start()

    def _fresh(self, limits: Limits) -> "ChildSession":
        control, theirs_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        channel, theirs_channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with self._lock:
                if self._closed:
                    raise ChildFailure("infra_error", "zygote", "it was closed", "spawn")
                self._send_spawn(limits, theirs_control, theirs_channel)
        except BaseException:
            control.close()
            channel.close()
            raise
        finally:
            theirs_control.close()
            theirs_channel.close()
        session = ChildSession(self.mode, self.device, limits, control, channel)
        session.hello()
        return session

    def _send_spawn(self, limits: Limits, control: socket.socket, channel: socket.socket) -> None:
        message = process.spawn_message(limits)
        for attempt in range(2):
            self._ensure()
            try:
                socket.send_fds(self._control, [message], [control.fileno(), channel.fileno()])
                return
            except OSError as error:
                self._process.kill()
                self._process.wait()
                if attempt:
                    raise ChildFailure("infra_error", "zygote", str(error), "spawn") from None

    @property
    def report(self) -> IsolationReport:
        """The layers of isolation in force; waits until the zygote is warm.

        Raises:
            ChildFailure: `infra_error`: it does not start, or isolation is strict and something is missing.
        """
        with self._lock:
            self._ensure()
            return self._report

    @property
    def pid(self) -> int:
        """The zygote's process id."""
        return self._process.pid

    def close(self) -> None:
        """End the zygote and every candidate of it."""
        with self._lock:
            closed, self._closed = self._closed, True
            spare, self._spare = self._spare, None
        if spare is not None:
            spare.close()
        if self._making is not None:
            self._making.join()
        with self._lock:
            if not closed:
                process.end_zygote(self._process, self._control, grace_s=5.0 if self._ready else 0.0)
                self._discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ChildSession:
    """One candidate's child, seen from the judge. Not thread-safe; ends everything it started on `close`."""

    def __init__(
        self, mode: str, device: torch.device, limits: Limits, control: socket.socket, channel: socket.socket
    ) -> None:
        self.mode = mode
        self.device = device
        self.limits = limits
        self._talk = Conversation(control, channel, limits.compiling(mode))
        self._state, self._given, self._taken = (Slot(name, device) for name in ("state", "given", "taken"))

    def waits(self) -> bool:
        """Whether the child is there, with nothing asked of it."""
        return self._talk.waits()

    def hello(self) -> None:
        """Wait until the child is there.

        Raises:
            ChildFailure: `infra_error`: it never was.
        """
        self._talk.hello()

    def _call(self, phase: Phase, message: dict[str, Any], fds: Sequence[int], seconds: float) -> dict[str, Any]:
        reply = self._talk.call(phase, message, fds, seconds)
        if reply.get("ok") is not True:
            raise self._raised(phase, reply)
        return reply

    def _expect(self, *arenas: Arena) -> None:
        slots = {self._state, self._given, self._taken} | {arena.slot for arena in arenas}
        self._talk.expect(sum(slot.size for slot in slots))

    def _raised(self, phase: Phase, reply: Mapping[str, Any]) -> ChildFailure:
        failure = described(phase, reply, self.device, self.limits)
        failure.output = self.output()
        return failure

    def _refuse_half(self, phase: Phase, dtypes: Iterable[torch.dtype]) -> None:
        """Triton's interpreter is silently wrong in bf16 and fp8."""
        if self.mode == "triton-interpreter":
            for dtype in dtypes:
                if dtype in NARROW:
                    message = f"Triton's interpreter cannot compute in {dtype}; a GPU can judge this entry"
                    raise ChildFailure("unrefereeable", "interpreter", message, phase, alive=True)

    def load(self, source: str, options: Mapping[str, Any] | None = None) -> LoadReply:
        """Import the candidate's source.

        Raises:
            ChildFailure: `compile_error` (`syntax`, `exception`, `exited`, `no-modelnew`, `compile`), `runtime_error`
                if the process died, `timeout`.
        """
        gap = interpreter_gap(source) if self.mode == "triton-interpreter" else None
        if gap is not None:
            why = f"Triton's interpreter cannot run {gap}; a GPU can judge this candidate"
            raise ChildFailure("unrefereeable", "interpreter", why, "load", alive=True)
        gap = emulator_gap(source) if self.mode == "cuda-emulator" else None
        if gap is not None:
            why = f"the CPU emulator cannot run {gap}; a GPU can judge this candidate"
            raise ChildFailure("unrefereeable", "emulator", why, "load", alive=True)
        started = time.monotonic()
        data = source.encode("utf-8", "surrogatepass")
        with self._allocated("load"):
            fd = os.memfd_create("source", os.MFD_CLOEXEC)
        try:
            with open(fd, "wb", closefd=False) as file:
                file.write(data)
            message = {"op": "load", "size": len(data), "options": dict(options or {})}
            # The child reads from the start of its own description of the file.
            reader = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                reply = self._call("load", message, [reader], self.limits.load_s)
            finally:
                os.close(reader)
        finally:
            os.close(fd)
        compiled = checked_findings(reply.get("compiled"))
        return LoadReply(str(reply.get("engine", ""))[:64], time.monotonic() - started, compiled)

    def build(
        self,
        init_inputs: Sequence[Any],
        state: Mapping[str, torch.Tensor] | None = None,
        seed: int = 0,
        dtype: torch.dtype | None = None,
    ) -> BuildReply:
        """Construct `ModelNew(*init_inputs)` under the seed, move it to device and dtype, copy in the parameters.

        Args:
            init_inputs: what the problem's `get_init_inputs` returned.
            state: the reference's parameters and buffers by name; those whose name and shape agree are copied in.
            seed: of torch's generators during construction.
            dtype: floating-point parameters are converted to it; None leaves them.

        Raises:
            ChildFailure: `runtime_error` (`refused`, `exception`, `segfault`, ...), `timeout`.
        """
        started = time.monotonic()
        tensors: list[torch.Tensor] = []
        state = state or {}
        with self._allocated("build"):
            arguments = encode_value(list(init_inputs), tensors)
            names = {name: len(tensors) + i for i, name in enumerate(state)}
            tensors.extend(state.values())
            self._refuse_half("build", [*(t.dtype for t in tensors), *([dtype] if dtype else [])])
            arena = Arena.of_tensors(self.device, tensors, slot=self._state)
        with arena:
            arena.synchronize()
            message = {
                "op": "build",
                "buffers": [arena.slot.described()],
                "tensors": arena.references(),
                "arguments": arguments,
                "state": names,
                "seed": seed,
                "dtype": DTYPE_NAMES[dtype] if dtype is not None else None,
            }
            self._expect(arena)
            reply = self._call("build", message, arena.slot.descriptors(), self.limits.build_s)
        missing, unexpected, mismatched = (checked_names(reply.get(k)) for k in ("missing", "unexpected", "mismatched"))
        return BuildReply(missing, unexpected, mismatched, time.monotonic() - started)

    def run(
        self,
        inputs: Sequence[Any],
        outputs: Sequence[OutputSpec],
        seed: int = 0,
        variant: Mapping[str, Any] | None = None,
        poison: int = 0xFF,
        moved: bool = False,
        limit_s: float | None = None,
    ) -> RunReply:
        """One forward call on copies of the inputs.

        Args:
            inputs: what the problem's `get_inputs` returned; the judge's own tensors are never shared.
            outputs: the shapes and dtypes that the reference returns.
            seed: of torch's generators right before the call.
            variant: one of `engine.variants`.
            poison: the byte that outputs, guards and freshly allocated memory hold before they are written.
            moved: inputs and outputs lie at other addresses than in a call of the same size that is not moved. What was
                kept from there by reference is not what is given here; what was kept by address is noticed without.
            limit_s: seconds on the wall; by default `Limits.run_s`.

        Raises:
            ChildFailure: `incorrect` (`shape`, `dtype`, `count`, `type`, `layout`, `device`), `runtime_error`,
                `timeout`, `rejected` (`protocol`).
        """
        tensors: list[torch.Tensor] = []
        with self._allocated("run"):
            arguments = encode_value(list(inputs), tensors)
            self._refuse_half("run", [*(t.dtype for t in tensors), *(o.dtype for o in outputs)])
            given = Arena.of_tensors(self.device, tensors, poison, slot=self._given, moved=moved)
            try:
                taken = Arena.of_outputs(self.device, outputs, poison, slot=self._taken, moved=moved)
            except BaseException:
                self._given.close()
                raise
        with given, taken:
            taken.synchronize()
            message = {
                "op": "run",
                "buffers": [self._given.described(), self._taken.described()],
                "tensors": given.references(),
                "arguments": arguments,
                "outputs": taken.references(),
                "seed": seed,
                "variant": dict(variant or {}),
                "poison": poison,
            }
            self._expect(given, taken)
            started = time.monotonic()
            fds = [*self._given.descriptors(), *self._taken.descriptors()]
            reply = self._call("run", message, fds, self.limits.run_s if limit_s is None else limit_s)
            seconds = time.monotonic() - started
            findings = list(checked_findings(reply.get("findings")))
            try:
                fault = fault_of(reply, "run")
                if fault is not None:
                    raise fault
                aliases = checked_outputs(reply, outputs, "run")
                copies = checked_values(taken.copies(), "run")
            except ChildFailure as failure:
                failure.alive &= not is_damage(findings)
                raise
            if any(aliases):
                findings.append({"code": "output-aliases-input", "message": "an output is an input's own memory"})
            if not (given.guards_intact() and taken.guards_intact()):
                findings.append({"code": "out-of-bounds-write", "message": "memory beside an input was written"})
            changed = not given.unchanged()
        child_seconds = reply.get("seconds")
        return RunReply(
            outputs=copies,
            inputs_changed=changed,
            findings=tuple(findings),
            seconds=seconds,
            child_seconds=child_seconds if isinstance(child_seconds, float) else 0.0,
        )

    def time(
        self, batch: Sequence[Sequence[Any]], outputs: Sequence[OutputSpec], seed: int = 0, poison: int = 0xFF
    ) -> TimeReply:
        """Run K unseen inputs into K poisoned buffers and time it by the judge's clock.

        The child maps its buffers first, with poison where the inputs will be. The clock starts, the inputs are copied
        in, the child runs all of them, and the clock stops when the judge has copied every output. What this costs
        beside the candidate's work is measured by timing a trusted, empty candidate in a session of its own.

        Raises:
            ChildFailure: as `run`.
        """
        tensors: list[torch.Tensor] = []
        calls = []
        specs: list[OutputSpec] = []
        with self._allocated("time"):
            spans = []
            for inputs in batch:
                start = len(tensors)
                arguments = encode_value(list(inputs), tensors)
                spans.append((start, arguments))
                specs.extend(outputs)
            given = Arena.of_tensors(self.device, tensors, poison, write=False)
            try:
                taken = Arena.of_outputs(self.device, specs, poison)
            except BaseException:
                given.close()
                raise
        with given, taken:
            given_refs, taken_refs = given.references(), taken.references()
            for k, (_, arguments) in enumerate(spans):
                calls.append(
                    {
                        "arguments": arguments,
                        "tensors": given_refs,
                        "outputs": taken_refs[k * len(outputs) : (k + 1) * len(outputs)],
                    }
                )
            taken.synchronize()
            message = {"op": "stage", "sizes": [given.layout.size, taken.layout.size], "calls": calls}
            self._expect(given, taken)
            self._call("time", message, [given.buffer.fd, taken.buffer.fd], self.limits.run_s)
            given.synchronize()
            started = time.perf_counter()
            given.write()
            given.synchronize()
            reply = self._call("time", {"op": "go", "seed": seed}, [], self.limits.run_s)
            copies = taken.copies()
            taken.synchronize()
            seconds = time.perf_counter() - started
            fault = fault_of(reply, "time")
            if fault is not None:
                raise fault
            copies = checked_values(copies, "time")
        width = len(outputs)
        return TimeReply(seconds, tuple(copies[k * width : (k + 1) * width] for k in range(len(spans))))

    def output(self) -> str:
        """What the candidate has printed so far (bounded: its beginning and its end)."""
        return self._talk.output()

    @contextlib.contextmanager
    def _allocated(self, phase: Phase) -> Any:
        """Our own allocations and encodings: their failure is never the candidate's."""
        try:
            yield
        except UnsupportedValueError as error:
            raise ChildFailure("infra_error", "unsupported-value", str(error), phase, alive=True) from None
        except (OSError, MemoryError, torch.OutOfMemoryError) as error:
            raise ChildFailure("infra_error", "judge-memory", str(error)[:500], phase, alive=True) from None

    @property
    def alive(self) -> bool:
        """Whether the child can still be asked."""
        return not self._talk.closed

    def close(self) -> None:
        """End the candidate and everything it started; returns when it is gone."""
        self._talk.close()
        for slot in (self._state, self._given, self._taken):
            slot.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
