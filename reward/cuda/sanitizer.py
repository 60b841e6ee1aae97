"""`compute-sanitizer` as a deep check for offline scoring: memory errors and races that no comparison of outputs shows.

It slows a kernel down ten to a hundred times, so it is never part of a reward. The checked process runs in its own user
and network namespace where the machine allows, with a scrubbed environment and limits, but without the sandbox's
file-system rules: the tool must reach the process from outside. What it needs compiled is compiled by a process outside
the tool (`sanitizer_workshop.py`). Use it on candidates that have been through the judge.
"""

import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..sandbox import isolation, linux
from .cache import default_root

Tool = Literal["memcheck", "racecheck", "initcheck", "synccheck"]
_MAX_ERRORS = 50
_PREPARE_S = 300.0  # importing torch and, once per machine, preparing the host compiler
_TOOLKITS = Path("/usr/local")
_BAR = "========="
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:errors?|hazards?)")
_STARTS = re.compile(
    r"(?:Invalid|Misaligned|Out-of-range|Uninitialized|Barrier error|Divergent thread|Leaked|Program hit|Error:"
    r"|Warning:|ERROR:|Race reported|Potential \w+ hazard|Unused memory|Illegal)"
)
_KERNEL = re.compile(
    r"\bat (?:0x[0-9a-f]+ in )?(?P<kernel>[^\n]*?)(?:\+0x[0-9a-f]+|:0x[0-9a-f]+)?(?: in (?P<where>\S+:\d+))?\s*$"
)
_TOOL_TROUBLE = re.compile(
    r"Failed to initialize|Target application terminated before first instrumented|Unable to find injection library"
    r"|No CUDA-capable device|Device not supported|Internal Sanitizer Error"
)


@dataclass(frozen=True, slots=True)
class SanitizerError:
    """One complaint.

    Attributes:
        kind: first line of it, without addresses (`Invalid __global__ read of size 4 bytes`).
        kernel: the kernel's name where the report has one.
        where: `file:line` where the report has one.
        detail: the lines below, without the host's call stack; bounded.
    """

    kind: str
    kernel: str = ""
    where: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class SanitizerReport:
    """What one tool said.

    Attributes:
        errors: complaints about the candidate, in order, at most 50.
        total: how many the tool counted.
        trouble: why there is no finding, where the tool itself could not work; then `errors` says nothing.
    """

    tool: str
    errors: tuple[SanitizerError, ...] = ()
    total: int = 0
    trouble: str = ""

    @property
    def clean(self) -> bool:
        """Whether the tool worked and found nothing."""
        return not self.trouble and not self.errors and not self.total


def parse_report(text: str, tool: str) -> SanitizerReport:
    """Read a tool's log.

    An API error that follows a memory error (`Program hit ...`) is kept only where nothing else was found.
    """
    trouble = _TOOL_TROUBLE.search(text)
    summary = _SUMMARY.search(text)
    if trouble is not None:
        return SanitizerReport(tool, trouble=trouble.group())
    if summary is None:
        return SanitizerReport(tool, trouble="the log has no summary: the tool did not finish")
    blocks: list[list[str]] = []
    for line in text.splitlines():
        if not line.startswith(_BAR):
            continue
        content = line[len(_BAR) :]
        if content.startswith(" ") and not content.startswith("  ") and _STARTS.match(content.strip()):
            blocks.append([content.strip()])
        elif content.strip() and content.startswith("  ") and blocks:
            blocks[-1].append(content.strip())
    errors = [_error(block) for block in blocks]
    kernels = [error for error in errors if not error.kind.startswith("Program hit")]
    return SanitizerReport(tool, tuple((kernels or errors)[:_MAX_ERRORS]), int(summary.group(1)))


def _error(block: list[str]) -> SanitizerError:
    kind = re.sub(r"^(?:Error|ERROR|Warning): ", "", re.sub(r"\b0x[0-9a-f]{6,}\b", "ADDRESS", block[0]))
    kernel = where = ""
    for line in block:
        match = _KERNEL.search(line)
        if match is not None:
            kernel, where = match.group("kernel").strip(), match.group("where") or ""
            break
    detail = [line for line in block[1:] if not line.startswith(("Host Frame", "Saved host backtrace"))]
    return SanitizerError(kind[:300], kernel[:200], where[:200], "\n".join(detail)[:2000])


def find_sanitizer() -> Path | None:
    """The program: on PATH, or in a toolkit (of several, the one that is set, then `cuda`, then the newest)."""
    found = shutil.which("compute-sanitizer")
    if found:
        return Path(found)
    versions = sorted(_TOOLKITS.glob("cuda-*"), key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)])
    named = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    for root in (*named, _TOOLKITS / "cuda", *reversed(versions)):
        for place in ("bin", "compute-sanitizer"):
            path = root / place / "compute-sanitizer"
            if path.is_file():
                return path
    return None


def sanitize(
    candidate: str,
    problem: str,
    tool: Tool = "memcheck",
    *,
    constants: Mapping[str, Any] | None = None,
    seed: int = 0,
    device: int = 0,
    seconds: float = 300.0,
) -> SanitizerReport:
    """Run one forward call of a candidate under a tool of compute-sanitizer.

    Args:
        candidate: source that defines `ModelNew`.
        problem: source of the problem; its inputs are drawn on the GPU.
        constants: module constants of the problem to change (small shapes keep this short).
        seed: of the draw.
        device: CUDA device index.
        seconds: wall-clock limit.
    """
    program = find_sanitizer()
    if program is None:
        return SanitizerReport(tool, trouble="compute-sanitizer is not installed (it comes with the CUDA toolkit)")
    with tempfile.TemporaryDirectory(prefix="kernelward-sanitizer-") as folder:
        home = Path(folder)
        (home / "candidate.py").write_text(candidate)
        (home / "problem.py").write_text(problem)
        (home / "request.json").write_text(json.dumps({"constants": dict(constants or {}), "seed": seed}))
        log = home / "report.txt"
        command = [str(program), "--tool", tool, "--target-processes", "all", "--log-file", str(log)]
        if tool == "racecheck":
            command += ["--racecheck-report", "analysis"]
        command += [sys.executable, "-P", "-m", f"{__package__}.sanitizer_child", str(home)]
        environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": folder, "TMPDIR": folder}
        for name in ("LD_LIBRARY_PATH", "CUDA_HOME", "PYTHONPATH"):
            if name in os.environ:
                environment[name] = os.environ[name]
        watched = environment | {"CUDA_VISIBLE_DEVICES": str(device), "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        output = home / "output.txt"
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(_workshop(home, environment))
            except _NoWorkshop as error:
                return SanitizerReport(tool, trouble=str(error))
            sink = stack.enter_context(output.open("wb"))
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=watched,
                cwd=home,
                preexec_fn=_apart,
            )
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return SanitizerReport(tool, trouble=f"stopped after {seconds:g} s")
        text = log.read_text(errors="replace") if log.is_file() else ""
        report = parse_report(text, tool)
        said = output.read_text(errors="replace")[-2000:]
        if not report.errors and process.returncode:
            reason = report.trouble or f"the candidate ended with status {process.returncode}"
            return SanitizerReport(tool, trouble=f"{reason}: {said.strip()[-500:]}")
        return report


class _NoWorkshop(Exception):
    """The process that compiles did not come up."""


@contextlib.contextmanager
def _workshop(home: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """The process that compiles, while the context lasts.

    Raises:
        _NoWorkshop: it did not come up.
    """
    said = home / "workshop.txt"
    with said.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", f"{__package__}.sanitizer_workshop", str(home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=sink,
            env={**environment, "KERNELWARD_CACHE": str(default_root().parent.absolute())},
        )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        try:
            ready, _, _ = select.select([process.stdout], [], [], _PREPARE_S)
            if not ready:
                raise _NoWorkshop(f"the process that compiles was not ready after {_PREPARE_S:g} s")
            if not process.stdout.readline():
                words = said.read_text(errors="replace").strip()[-500:]
                raise _NoWorkshop(f"the process that compiles did not start: {words}")
            yield
        finally:
            process.stdin.close()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _apart() -> None:
    """In the new process: a session of its own, and namespaces where the machine offers them."""
    os.setsid()
    try:
        isolation.enter_user_namespace()
        linux.unshare(linux.CLONE_NEWNET | linux.CLONE_NEWIPC)
    except OSError:
        return  # without them the process still has its own session, environment and time limit
