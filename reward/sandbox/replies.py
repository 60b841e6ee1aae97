"""What a child says, checked, and what the judge makes of it. Every reply is treated as written by the candidate."""

import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .buffers import OutputSpec
from .failure import ChildFailure, Kind, Phase
from .limits import Limits
from .process import signal_name
from .wire import DTYPE_NAMES

TEXT = 4000
FAULTS = frozenset({"shape", "dtype", "count", "type", "layout", "device", "structure"})
COMPILE_REASONS = frozenset({"syntax", "exception", "exited", "no-modelnew", "compile", "refused", "cuda-error"})
SIGNALS = {int(signal.SIGSEGV): "segfault", int(signal.SIGBUS): "segfault", int(signal.SIGABRT): "abort"}
RUN_REASONS = frozenset({"exception", "refused", "exited", "cuda-error", "memory-limit"})
#: Findings that say why a kernel broke off, in this order; they are more precise than the exception that follows.
BROKE_OFF: Mapping[str, Kind] = {
    "unsupported": "unrefereeable",
    "out-of-bounds": "runtime_error",
    "illegal-access": "runtime_error",
    "shared-out-of-bounds": "runtime_error",
    "misaligned": "runtime_error",
    "deadlock": "timeout",
    "divergent-barrier": "runtime_error",
    "shared-memory-limit": "runtime_error",
    "launch-error": "runtime_error",
    "stack-overflow": "runtime_error",
    "device-assert": "runtime_error",
    "trap": "runtime_error",
}


@dataclass(frozen=True, slots=True)
class LoadReply:
    """A loaded source: which engine took it, its seconds; `compiled`: what an engine that only compiles made of it."""

    engine: str
    seconds: float
    compiled: tuple[dict[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class BuildReply:
    """A constructed model; names of parameters and buffers that were not taken over from the reference."""

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    mismatched: tuple[str, ...]
    seconds: float


_DAMAGE = ("shared-out-of-bounds",)  # beside tensors and buffers lie guards that nobody else uses


def is_damage(findings: Iterable[Mapping[str, str]]) -> bool:
    """Whether one of the findings says that a process overwrote what may be its own or the engine's."""
    return any(finding["code"] in _DAMAGE for finding in findings)


@dataclass(frozen=True, slots=True)
class RunReply:
    """One forward call.

    Attributes:
        outputs: private copies with exactly the shapes and dtypes that were asked for, on the session's device.
        inputs_changed: some input's bytes differ from what was sent.
        findings: `{"code", "message"}`: `output-aliases-input`, `out-of-bounds-write`, and the engine's own. They come
            from the child or are read in its buffers; they may lower a verdict, never raise it.
        seconds: the judge's clock from request to reply.
        child_seconds: the child's own word for the forward call alone; for display.
    """

    outputs: tuple[torch.Tensor, ...]
    inputs_changed: bool
    findings: tuple[dict[str, str], ...]
    seconds: float
    child_seconds: float

    @property
    def damaged(self) -> bool:
        """Whether memory was written that is nobody's to write: what else was overwritten, and so what the same process
        answers next, cannot be known."""
        return is_damage(self.findings)


@dataclass(frozen=True, slots=True)
class TimeReply:
    """A timed batch: seconds from handing over the inputs until every output had been copied, and the outputs."""

    seconds: float
    outputs: tuple[tuple[torch.Tensor, ...], ...]


def text(value: Any, limit: int = TEXT) -> str:
    """A bounded string; "" for anything that is not one."""
    return value[:limit] if isinstance(value, str) else ""


def checked_names(value: Any) -> tuple[str, ...]:
    """At most 64 bounded names."""
    return tuple(text(v, 200) for v in value[:64] if isinstance(v, str)) if isinstance(value, list) else ()


def checked_findings(value: Any) -> tuple[dict[str, str], ...]:
    """At most 64 findings, each with `code` and `message`; other keys are kept as bounded text."""
    if not isinstance(value, list):
        return ()
    findings = []
    for item in value[:64]:
        if isinstance(item, dict) and isinstance(item.get("code"), str):
            kept = {text(k, 40): text(v if isinstance(v, str) else str(v), 500) for k, v in list(item.items())[:16]}
            findings.append({"message": ""} | kept)
    return tuple(findings)


def fault_of(reply: Mapping[str, Any], phase: Phase) -> ChildFailure | None:
    """The failure that the child admits about its outputs, if any."""
    fault = reply.get("fault")
    if not isinstance(fault, dict):
        return None
    reason = fault.get("reason")
    return ChildFailure(
        "incorrect", reason if reason in FAULTS else "structure", text(fault.get("message")), phase, alive=True
    )


def checked_outputs(reply: Mapping[str, Any], outputs: Sequence[OutputSpec], phase: Phase) -> list[bool]:
    """For each output whether it aliases an input; the rest of the header must agree with what was asked for.

    Raises:
        ChildFailure: `incorrect` where shapes or dtypes differ, `rejected` where the header is malformed.
    """
    header = reply.get("outputs")
    if not isinstance(header, list) or any(not isinstance(h, dict) for h in header):
        raise ChildFailure("rejected", "protocol", "a header without outputs", phase)
    if len(header) != len(outputs):
        raise ChildFailure("incorrect", "count", f"{len(header)} outputs, expected {len(outputs)}", phase, alive=True)
    for index, (claim, spec) in enumerate(zip(header, outputs, strict=True)):
        if claim.get("shape") != list(spec.shape):
            raise ChildFailure("incorrect", "shape", f"output {index}: expected {list(spec.shape)}", phase, alive=True)
        if claim.get("dtype") != DTYPE_NAMES[spec.dtype]:
            raise ChildFailure("incorrect", "dtype", f"output {index}: expected {spec.dtype}", phase, alive=True)
    return [claim.get("aliases_input") is True for claim in header]


def checked_values(copies: tuple[torch.Tensor, ...], phase: Phase) -> tuple[torch.Tensor, ...]:
    """Bools arrive as bytes: anything but 0 and 1 was not written as one.

    Raises:
        ChildFailure: `incorrect` (`unwritten`).
    """
    outputs = []
    for index, copy in enumerate(copies):
        if copy.dtype == torch.bool:
            raw = copy.view(torch.uint8)
            if bool((raw > 1).any()):
                raise ChildFailure("incorrect", "unwritten", f"output {index} was not written", phase, alive=True)
            copy = raw == 1
        outputs.append(copy)
    return tuple(outputs)


def described(phase: Phase, reply: Mapping[str, Any], device: torch.device, limits: Limits) -> ChildFailure:
    """The failure for an exception that the child reports."""
    reason = reply.get("reason")
    message = text(reply.get("message"))
    exception = text(reply.get("exception"), 100) or None
    findings = checked_findings(reply.get("findings"))
    found = {finding["code"]: finding["message"] for finding in findings}
    broke_off = next((code for code in BROKE_OFF if code in found), None) if phase != "load" else None
    kind: Kind
    if broke_off is not None:
        kind, reason = BROKE_OFF[broke_off], broke_off
        message = found[broke_off] or message
    elif reason == "unsupported":
        kind = "unrefereeable"
    elif reason == "device-memory":
        kind, reason = device_memory(device, limits)
    elif reason == "compile" or (phase == "load" and reason in COMPILE_REASONS):
        kind = "compile_error"
    elif reason in FAULTS:
        kind = "incorrect"
    else:
        kind = "runtime_error"
        reason = reason if reason in RUN_REASONS else "exception"
    return ChildFailure(kind, reason, message, phase, exception=exception, alive=not is_damage(findings))


def device_memory(device: torch.device, limits: Limits) -> tuple[Kind, str]:
    """Whose fault an out-of-memory on the device is, by the judge's own look at what is free."""
    if device.type == "cuda":
        free, _total = torch.cuda.mem_get_info(device)
        if free < limits.device_bytes:
            return "infra_error", "device-memory"
    return "runtime_error", "memory-limit"


def death(event: Mapping[str, Any] | None, phase: Phase) -> ChildFailure:
    """The failure for a child that is gone, from its supervisor's report."""
    if event is None:
        return ChildFailure("runtime_error", "channel-closed", "it closed its channel to the judge", phase)
    if event["event"] == "failed":
        return ChildFailure("infra_error", "spawn", str(event.get("message", "")), phase)
    if event["event"] == "lost":
        return ChildFailure("infra_error", "supervisor", "the supervisor died", phase)
    output = str(event.get("output", ""))
    by = event.get("by")
    if by in ("memory-limit", "processes", "disk"):
        reason = {"memory-limit": "memory-limit", "processes": "process-limit", "disk": "disk-limit"}[by]
        return ChildFailure("runtime_error", reason, f"over its limit of {by}", phase, output=output)
    if by == "zygote":
        return ChildFailure("infra_error", "zygote", "the zygote died", phase)
    status = int(event["status"])
    if os.WIFEXITED(status):
        code = os.WEXITSTATUS(status)
        return ChildFailure("runtime_error", "exited", f"the process exited with {code}", phase, output=output)
    number = os.WTERMSIG(status)
    reason = SIGNALS.get(number, "killed")
    return ChildFailure("runtime_error", reason, f"the process died of {signal_name(number)}", phase, output=output)
