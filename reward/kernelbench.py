"""The real checker: a KernelBench checkout's own `eval_kernel_against_ref`, in a process of its own.

A checkout asks for Python 3.10 and for model providers' packages; its evaluation needs neither. It needs a GPU.
`python -m kernelward.reward.kernelbench parity` holds it against our protocol of the same name.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ..suites.errors import InputError
from ..suites.hashing import sha256_text
from ..suites.problem import PROBLEMS_VARIABLE, Problem
from .sandbox.limits import GIB, Limits
from .sandbox.process import visible_device, wait_readable
from .score_rows import recorded_outcome
from .screen import detect_backend
from .verdict import Outcome, Verdict

PROTOCOL = "kernelbench-package"  # the name in verdicts
TIME_LIMIT_S = 300.0  # what KernelBench's single-sample script allows
_END_S = 10.0  # for the supervisor to kill and reap what it started

_OUTCOMES = {
    "correct": Outcome.CORRECT,
    "incorrect": Outcome.INCORRECT,
    "compile_error": Outcome.COMPILE_ERROR,
    "runtime_error": Outcome.RUNTIME_ERROR,
    "timeout": Outcome.TIMEOUT,
    "out_of_memory": Outcome.INFRA_ERROR,
    "infrastructure": Outcome.INFRA_ERROR,
}


def find_checkout(value: str) -> Path:
    """The checkout that a configuration names: a folder, or `package` for the one in KERNELBENCH_DIR.

    Raises:
        InputError: it is not set, or no folder.
    """
    text = os.environ.get(PROBLEMS_VARIABLE, "") if value == "package" else value
    if not text:
        raise InputError(
            f"judge setting official: package takes the KernelBench checkout from {PROBLEMS_VARIABLE}: set it"
        )
    path = Path(text).expanduser()
    if not path.is_dir():
        raise InputError(f"judge setting official: there is no folder {path}; give a KernelBench checkout")
    return path


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back from one child.

    Attributes:
        reply: its JSON, or None where it died or ran out of time.
        ended: how it ended, as its supervisor reports it: wait status, by whom it was ended, captured output.
        timed_out: the time limit was reached.
    """

    reply: Mapping[str, Any] | None
    ended: Mapping[str, Any]
    timed_out: bool


class OfficialChecker:
    """Judges candidates with a KernelBench checkout, one process per candidate.

    The candidate shares that process with the reference and the comparison, as KernelBench has it: a pass here is weak
    evidence, and as a first stage it may only refuse. Towards the machine it is confined: no network, writes to its own
    temporary directory only, no privileges, limits of time, memory and processes, as far as the machine offers them.

    Args:
        checkout: folder of the checkout.
        device: `cuda:N`, counted among the devices that this process sees.
        time_limit: wall-clock seconds for one candidate, its compilation included.
        trials: correctness trials (KernelBench's scripts use five).
        precision: fp32, fp16 or bf16.
        limits: memory and processes; its times are not used.
        confine: false runs the candidate with the user's rights, for machines where the checker fails otherwise.
    """

    def __init__(
        self,
        checkout: Path,
        device: str = "cuda:0",
        *,
        time_limit: float = TIME_LIMIT_S,
        trials: int = 5,
        precision: Literal["fp32", "fp16", "bf16"] = "fp32",
        limits: Limits | None = None,
        confine: bool = True,
    ) -> None:
        self.checkout = checkout.expanduser().resolve()
        self.device = device
        self.time_limit = time_limit
        self.trials = trials
        self.precision = precision
        self.confine = confine
        self.device_first = False
        self.limits = limits or Limits(memory_bytes=96 * GIB, tmp_bytes=8 * GIB, processes=4096)

    def probe(self) -> dict[str, Any]:
        """Import the checkout's evaluation: its parameters, and the modules that a stand-in was served for.

        Raises:
            InputError: no checkout, or it cannot be imported.
        """
        answer = self._ask({"op": "probe"})
        if answer.reply is None or answer.reply["status"] != "probe":
            why = answer.reply["error"] if answer.reply else f"it ended early: {answer.ended.get('output', '')[-500:]}"
            raise InputError(f"cannot import the evaluation of the KernelBench checkout {self.checkout}: {why}")
        return dict(answer.reply)

    def judge(self, problem: Problem, candidate: str) -> Verdict:
        """The checkout's finding, in the words of a verdict.

        Its result None (it takes any compiler message with `lock` in it for a lock file), memory that ran out and an
        import that fails are `infra_error`.
        """
        started = time.monotonic()
        backend = detect_backend(candidate)
        request = {
            "op": "evaluate",
            "reference": problem.source,
            "candidate": candidate,
            "trials": self.trials,
            "precision": self.precision,
            "backend": "triton" if backend == "triton" else "cuda",
        }
        outcome, reason, message = read_answer(self._ask(request), self.time_limit)
        return Verdict(
            outcome,
            reason,
            message[:2000],
            problem=problem.id,
            problem_hash=problem.hash,
            protocol=PROTOCOL,
            backend=backend,
            engine=PROTOCOL,
            device=self.device,
            candidate=sha256_text(candidate),
            seconds=time.monotonic() - started,
        )

    def _ask(self, request: Mapping[str, Any]) -> Answer:
        """One child's answer. Where CUDA does not start behind the confinement, it starts before it from now on."""
        answer = self._child(request)
        if answer.reply is not None and answer.reply["status"] == "no-device" and not self.device_first:
            self.device_first = True
            answer = self._child(request)
        return answer

    def _child(self, request: Mapping[str, Any]) -> Answer:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        lifeline, hold = os.pipe2(os.O_CLOEXEC)
        reply, reply_end = os.pipe2(os.O_CLOEXEC)
        passed = (theirs.fileno(), lifeline, reply_end)
        command = [sys.executable, "-P", "-m", f"{__package__}.kernelbench_child"]
        for name, fd in zip(("control", "lifeline", "reply"), passed, strict=True):
            command += [f"--{name}", str(fd)]
        environment = dict(os.environ) | {"CUDA_VISIBLE_DEVICES": visible_device(self.device)}
        settings = {"checkout": str(self.checkout), "device": self.device, "confine": self.confine}
        settings["device_first"] = self.device_first
        body = json.dumps({**request, **settings, "limits": self.limits.to_dict()}).encode()
        with ours, os.fdopen(reply, "rb") as pipe:
            try:
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=passed,
                    env=environment,
                    start_new_session=True,
                )
            finally:
                theirs.close()
                os.close(lifeline)
                os.close(reply_end)
            try:
                return self._watch(child, ours, pipe.fileno(), body)
            finally:
                os.close(hold)  # reaches the supervisor even where it no longer reads its socket
                _end(child)

    def _watch(self, child: "subprocess.Popen[bytes]", control: socket.socket, reply: int, body: bytes) -> Answer:
        assert child.stdin is not None
        deadline = time.monotonic() + self.time_limit
        with contextlib.suppress(BrokenPipeError), child.stdin:
            child.stdin.write(body)
        data = b""
        ended: Mapping[str, Any] | None = None
        waiting = [control.fileno(), reply]
        while waiting and (ready := wait_readable(waiting, deadline)):
            if reply in ready:
                part = os.read(reply, 1 << 16)
                data += part
                if not part:
                    waiting.remove(reply)
            if control.fileno() in ready:
                ended = _report(control)
                waiting.remove(control.fileno())
        timed_out = ended is None and time.monotonic() >= deadline
        if ended is None:
            control.shutdown(socket.SHUT_WR)
            late = wait_readable([control.fileno()], time.monotonic() + _END_S)
            ended = _report(control) if late else {}
        try:
            answer = json.loads(data) if data else None
        except json.JSONDecodeError:
            answer = None
        return Answer(answer, ended, timed_out)


def second_opinion(official: OfficialChecker, problem: Problem, candidate: str, verdict: Verdict) -> Verdict:
    """A verdict `correct` that the real checker has to share; where it gives none, ours stands and a note says so."""
    other = official.judge(problem, candidate)
    said = f"{other.verdict}{f' ({other.reason})' if other.reason else ''} in {other.seconds:.1f} s"
    noted = replace(verdict, notes=(*verdict.notes, f"KernelBench's own check: {said}"))
    if other.verdict is Outcome.CORRECT or not other.verdict.decided:
        return noted
    message = f"KernelBench's own check: {other.message}"
    return replace(noted, verdict=other.verdict, reason=f"official-{other.reason or other.verdict}", message=message)


def _report(control: socket.socket) -> Mapping[str, Any]:
    """The supervisor's last words; {} where it was killed."""
    data = control.recv(1 << 20)
    return json.loads(data) if data else {}


def _end(child: "subprocess.Popen[bytes]") -> None:
    try:
        child.wait(_END_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def read_answer(answer: Answer, time_limit: float) -> tuple[Outcome, str, str]:
    """(outcome, reason, message) of what came back."""
    reply = answer.reply
    if reply is None:
        return _without_reply(answer, time_limit)
    match reply["status"]:
        case "result":
            recorded = recorded_outcome(reply)
            outcome = _OUTCOMES[recorded.outcome]
            reason = "value" if outcome is Outcome.INCORRECT else recorded.outcome if not outcome.decided else ""
            return outcome, reason.replace("_", "-"), recorded.detail
        case "none":
            return Outcome.INFRA_ERROR, "no-result", "the checker returned None: it took an error for a lock file's"
        case _ if reply["stage"] == "import" or "CUDA is not available" in reply["error"]:
            return Outcome.INFRA_ERROR, "checker-unusable", reply["error"]
        case _ if "out of memory" in reply["error"].lower():
            return Outcome.INFRA_ERROR, "out-of-memory", reply["error"]
        case _:
            return Outcome.RUNTIME_ERROR, "escaped", f"this escaped from the checker: {reply['error']}"


def _without_reply(answer: Answer, time_limit: float) -> tuple[Outcome, str, str]:
    if answer.timed_out:
        return Outcome.TIMEOUT, "wall-clock", f"no result within {time_limit:.0f} s"
    by, status, output = answer.ended.get("by"), answer.ended.get("status"), answer.ended.get("output", "")[-1000:]
    if by in ("memory-limit", "processes"):
        return Outcome.RUNTIME_ERROR, str(by), f"over the limit of {by}; output: {output}"
    if status is None:
        return Outcome.INFRA_ERROR, "supervisor-lost", f"the process around the checker is gone; output: {output}"
    how = (
        f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit code {os.waitstatus_to_exitcode(status)}"
    )
    return Outcome.RUNTIME_ERROR, "crashed", f"the process ended with {how}; output: {output}"


if __name__ == "__main__":
    from .kernelbench_parity import main

    main()
