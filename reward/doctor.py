"""`kernelward doctor`: what works on this machine, and what does not."""

import importlib.util
import json
import os
import platform
import shutil
import tempfile
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from ..suites.devices import resolve_device
from ..suites.errors import InputError
from ..suites.problem import Problem, list_problems
from ..suites.suite import find_suite
from ..suites.suite_cache import cache_folder
from .client import JudgeClient
from .doctor_probes import CANDIDATES, BackendReport, probe_backend
from .sandbox import isolation
from .task import JudgeConfig

_PACKAGES = (
    *("kernelward", "torch", "triton", "numpy", "scipy", "tree-sitter-cuda"),
    *("trl", "transformers", "datasets", "accelerate", "cuda-bindings", "nvidia-cuda-nvrtc"),
)
_PROGRAMS = ("g++", "nvcc", "ninja")
_ENOUGH_BYTES = 2 << 30  # a judge, a zygote and a candidate hold about this much
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class GpuReport:
    """One GPU that torch sees; bytes of its memory."""

    name: str
    capability: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class ProblemsReport:
    """Which problems of a folder can be refereed.

    Attributes:
        refereeable: how many can; calibrated: how many of those have a calibrated suite in the library.
        unrefereeable: id -> why the gate admits no entry.
        broken: id -> what is wrong with the file.
    """

    refereeable: int
    calibrated: int
    unrefereeable: dict[str, str] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that `doctor` found; `--json` prints these fields.

    Attributes:
        ok: candidates can be judged on `device`.
        faults: what keeps judging from working; warnings: what works only in part.
        versions: package -> version, None where it is not installed.
        programs: compiler or build tool -> path, None where there is none.
        isolation: layers in force and missing (`IsolationReport.to_dict`).
        backends: backend -> whether its candidates can be judged.
        cache: folder of default suites, and whether it can be written.
    """

    ok: bool
    device: str
    faults: tuple[str, ...]
    warnings: tuple[str, ...]
    versions: dict[str, str | None]
    python: str
    system: str
    cores: int
    memory_bytes: int
    free_memory_bytes: int
    gpus: tuple[GpuReport, ...]
    programs: dict[str, str | None]
    nvrtc: str | None
    isolation: dict[str, Any]
    backends: dict[str, BackendReport]
    cache: dict[str, Any]
    problems: ProblemsReport | None

    def to_json(self) -> dict[str, Any]:
        """JSON-able mapping."""
        return asdict(self)


def run_doctor(*, problems: Path | None = None, device: str = "auto", as_json: bool = False) -> int:
    """The command `kernelward doctor`.

    Returns:
        0 where judging works on the device, else 3.

    Raises:
        InputError: no such device, or no such folder of problems.
    """
    console = Console(stderr=True)
    report = examine(resolve_device(device), problems, console)
    if as_json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        print_report(report, Console())
    return 0 if report.ok else 3


def examine(device: str, problems: Path | None, console: Console) -> Report:
    """Look at everything, judge the probes, and go through the problems of a folder."""
    found = list_problems(problems) if problems is not None else None
    layers = isolation.probe().to_dict()
    with JudgeClient(JudgeConfig(device=device, workers=1)) as client:
        backends = {name: _probe(client, name) for name in CANDIDATES}
    total, free = _memory()
    cache = _cache()
    programs = {name: shutil.which(name) for name in _PROGRAMS}
    faults, warnings = judgement(device, backends, layers, free, cache)
    return Report(
        ok=not faults,
        device=device,
        faults=tuple(faults),
        warnings=tuple(warnings),
        versions={name: _version(name) for name in _PACKAGES},
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=total,
        free_memory_bytes=free,
        gpus=tuple(_gpu(i) for i in range(torch.cuda.device_count())) if torch.cuda.is_available() else (),
        programs=programs,
        nvrtc=_version("nvidia-cuda-nvrtc") or _version("nvidia-cuda-nvrtc-cu12"),
        isolation=layers,
        backends=backends,
        cache=cache,
        problems=None if found is None else examine_problems(found, device, console),
    )


def _probe(client: JudgeClient, backend: str) -> BackendReport:
    if backend == "triton" and importlib.util.find_spec("triton") is None:
        return BackendReport(False, detail="triton is not installed (pip install kernelward[triton])")
    return probe_backend(client, backend)


def judgement(
    device: str, backends: dict[str, BackendReport], layers: dict[str, Any], free: int, cache: dict[str, Any]
) -> tuple[list[str], list[str]]:
    """What keeps judging from working, and what works only in part, in words."""
    faults = [] if backends["torch"].works else [f"torch candidates cannot be judged: {backends['torch'].detail}"]
    warnings = [
        f"{name} candidates cannot be judged on {device}: {report.detail}"
        for name, report in backends.items()
        if name != "torch" and not report.works
    ]
    if layers["missing"]:
        lacking = ", ".join(f"{name} ({why})" for name, why in layers["missing"].items())
        warnings.append(f"candidates run without these layers of isolation: {lacking}")
    if free < _ENOUGH_BYTES:
        warnings.append(
            f"{free / _GIB:.1f} GiB of memory are free; a judge and its candidates want {_ENOUGH_BYTES / _GIB:.0f}"
        )
    if not cache["writable"]:
        warnings.append(f"default suites are measured again by every process: {cache['folder']}: {cache['detail']}")
    return faults, warnings


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _memory() -> tuple[int, int]:
    """(total, available) bytes of main memory."""
    values = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        values[name] = int(rest.split()[0]) << 10
    return values["MemTotal"], values["MemAvailable"]


def _gpu(index: int) -> GpuReport:
    properties = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    return GpuReport(properties.name, f"{properties.major}.{properties.minor}", total, free)


def _cache() -> dict[str, Any]:
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return {"folder": str(folder), "writable": False, "detail": error.strerror or str(error)}
    suites = sum(1 for _ in folder.glob("suites/*/*.json"))
    return {"folder": str(folder), "writable": True, "detail": f"{suites} default suites"}


def examine_problems(problems: list[Problem], device: str, console: Console) -> ProblemsReport:
    """Go through problems: a library suite, or else a default one, which is built (and kept) for this."""
    from ..suites.defaults import cached_default_suite

    unrefereeable, broken, calibrated = {}, {}, 0
    with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
        for problem in progress.track(problems, description="problems"):
            library = find_suite(problem)
            calibrated += library is not None and library.calibrated
            if library is not None:
                continue
            try:
                suite, rejected = cached_default_suite(problem, device)
            except InputError as error:
                broken[problem.id] = str(error)
                continue
            if suite is None:
                reasons = dict.fromkeys(f"{r.reason}: {r.detail}" if r.detail else r.reason for r in rejected)
                unrefereeable[problem.id] = "; ".join(list(reasons)[:3]) or "no entry could be made"
    refereeable = len(problems) - len(unrefereeable) - len(broken)
    return ProblemsReport(refereeable, calibrated, unrefereeable, broken)


def print_report(report: Report, console: Console) -> None:
    """The report for people."""

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    say("judging works" if report.ok else "judging does NOT work")
    for fault in report.faults:
        say(f"  fault: {fault}")
    for warning in report.warnings:
        say(f"  warning: {warning}")
    say(f"\npython {report.python} on {report.system}, {report.cores} cores")
    say(f"memory {report.memory_bytes / _GIB:.1f} GiB, {report.free_memory_bytes / _GIB:.1f} GiB free")
    for gpu in report.gpus:
        say(
            f"gpu {gpu.name} ({gpu.capability}), {gpu.total_bytes / _GIB:.1f} GiB, {gpu.free_bytes / _GIB:.1f} GiB free"
        )
    if not report.gpus:
        say("gpu none: CUDA candidates run on the emulator, Triton candidates in its interpreter")
    say("packages " + ", ".join(f"{name} {version or '-'}" for name, version in report.versions.items()))
    say("programs " + ", ".join(f"{name} {path or '-'}" for name, path in report.programs.items()))
    say(f"nvrtc {report.nvrtc or '-'}")
    for name, backend in report.backends.items():
        state = "works" if backend.works else f"does not work: {backend.detail}"
        say(f"backend {name} on {backend.engine or report.device}: {state} ({backend.seconds:.1f} s for two verdicts)")
    say("isolation " + (", ".join(report.isolation["layers"]) or "none"))
    for note in report.isolation["notes"]:
        say(f"  note: {note}")
    say(f"cache {report.cache['folder']}: {report.cache['detail']}")
    if report.problems is not None:
        _say_problems(report.problems, say)


def _say_problems(report: ProblemsReport, say: Any) -> None:
    say(f"problems {report.refereeable} can be refereed, {report.calibrated} of them with a calibrated suite")
    for title, items in (("unrefereeable", report.unrefereeable), ("broken", report.broken)):
        for name, why in items.items():
            say(f"  {title}: {name}: {why}")
