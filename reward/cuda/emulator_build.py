"""Compiling translated candidates with g++: flags, the precompiled header, the runtime's object files.

A toolchain folder holds the precompiled header and the runtime's objects. It is made once per machine
(about 10 s) by a trusted process; candidates' processes only read it and write their libraries elsewhere.
"""

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..sandbox.engine import CompileFailure
from .emulator_translate import Unit

INCLUDE = Path(__file__).parent / "include"
_RUNTIME = (
    "host.cpp",
    "ops.cpp",
    "emu/runtime.cpp",
    "emu/api.cpp",
    "emu/accesses.cpp",
    "emu/races.cpp",
    "emu/timed.cpp",
    "emu/calls.cpp",
)
_HOOKED = "emu/accesses.cpp"
_HEADER = "kernelward/torch.h"
_PREFIX = "prefix.h"
_OBJECTS, _HEADERS = "objects", "headers"
BUILD_SECONDS = 60.0
MAX_MESSAGE = 6000


class ToolchainError(RuntimeError):
    """The machine cannot compile: no g++, no space, ... Not the candidate's fault."""


def compiler() -> str:
    """Path of the C++ compiler (`CXX` or g++).

    Raises:
        ToolchainError: there is none.
    """
    name = os.environ.get("KERNELWARD_CXX", "g++")
    path = shutil.which(name)
    if path is None:
        raise ToolchainError(f"no C++ compiler: {name} not found; install g++ (version 10 or newer)")
    return path


_UNALIGNED_MOVES = "-Wa,-muse-unaligned-vector-move"


def _assembles(flag: str) -> bool:
    command = [compiler(), flag, "-x", "assembler", "-c", os.devnull, "-o", os.devnull]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@cache
def _machine_flags() -> tuple[str, ...]:
    """Fused multiply-add where the processor has it, as on a GPU; signed char as CUDA has it."""
    machine = platform.machine()
    if machine in ("x86_64", "AMD64"):
        try:
            text = Path("/proc/cpuinfo").read_text()
        except OSError:
            text = ""
        match = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
        present = set(match.group(1).split()) if match else set()
        wanted = [flag for flag in ("avx2", "fma", "bmi2", "f16c") if flag in present]
        moves = _UNALIGNED_MOVES if "avx2" in present and _assembles(_UNALIGNED_MOVES) else "-DKW_PACKED_VECTORS"
        return (*(f"-m{flag}" for flag in wanted), "-fcf-protection=none", moves)
    return ("-fsigned-char",)


_WATCHED = (
    "-fsanitize=thread,alignment",
    "--param=tsan-instrument-func-entry-exit=0",
    "-fno-reorder-blocks",
    "-fno-guess-branch-probability",
    "-fno-thread-jumps",
)
"""Every access to memory calls our runtime (ThreadSanitizer's instrumentation): the race check and the schedule that
stands in for a GPU need to know; the latter also which code comes first. Costs less than a second compilation would."""

_HOOKS = ("-DKW_OWN_HOOKS", "-fipa-ra")
"""What is called is ours and changes no register, and the compiler is told so (`emu/hooks.h`)."""

_BOUND = ("-fPIE", "-mno-direct-extern-access")
"""Instead of `-fPIC`: what is called is for certain what is defined here, or its registers would not be looked at. Data
of other libraries is reached as in a library."""

_REGISTERS = ("-mgeneral-regs-only", "-fno-tree-loop-distribute-patterns")
"""For what the hooks jump to; the second keeps loops from becoming calls of the C library."""

_PROBE = """
extern "C" __attribute__((noinline, no_reorder, no_sanitize("thread"))) void __builtin___tsan_read4(void*) {
  asm volatile("jmp kw__tsan_read4");
}
asm(".globl kw__tsan_read4\\n.hidden kw__tsan_read4\\nkw__tsan_read4: ret");
extern "C" __attribute__((visibility("default"))) float kw_sum(const float* a, int n) {
  float sum = 0;
  for (int i = 0; i < n; i++) sum += a[i];
  return sum;
}
#include <stdexcept>
extern "C" __attribute__((visibility("default"))) void kw_throw() { throw std::runtime_error(""); }
"""


@cache
def _own_hooks() -> bool:
    """Whether this compiler lets us define what it calls before an access (seen: GCC 12 on x86-64).

    Tried once per machine and compiler: half a second.

    Raises:
        ToolchainError: it could not be tried.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    steps = (
        [*_flags(), *_WATCHED, *_HOOKS, *_BOUND, "-c", "probe.cpp", "-o", "probe.o"],
        [*_linker_flags(), "probe.o", "-o", "probe.so"],
    )
    kept = default_folder() / f"hooks-{hashlib.sha256(f'{_version()} {steps} {_PROBE}'.encode()).hexdigest()[:16]}"
    if kept.exists():
        return True
    try:
        with tempfile.TemporaryDirectory() as work:
            (Path(work) / "probe.cpp").write_text(_PROBE)
            environment = {**os.environ, "TMPDIR": work}
            for step in steps:
                command = [compiler(), *step]
                if subprocess.run(command, cwd=work, env=environment, capture_output=True, check=False).returncode:
                    return False  # not kept: it may have been a full disk
        with contextlib.suppress(OSError):
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.touch()
    except OSError as error:
        raise ToolchainError(f"the compiler could not be tried: {error}") from error
    return True


def _watched() -> tuple[str, ...]:
    """Flags of candidates' code beside those of all code."""
    return (*_WATCHED, *_HOOKS, *_BOUND) if _own_hooks() else _WATCHED


@cache
def _flags() -> tuple[str, ...]:
    return (
        "-std=gnu++17",
        "-O1",
        "-fcaller-saves",
        "-fexpensive-optimizations",
        "-g1",
        "-gdwarf-4",
        "-femit-struct-debug-baseonly",
        "-fPIC",
        "-fvisibility=hidden",
        "-fno-gnu-unique",
        "-fno-strict-aliasing",
        "-fwrapv",
        "-ffp-contract=fast",
        "-fno-math-errno",
        "-ftrivial-auto-var-init=pattern",
        "-fstack-clash-protection",
        "-U_FORTIFY_SOURCE",
        "-ftemplate-depth=256",
        "-fmax-errors=8",
        *_machine_flags(),
    )


def emulated_flags(flags: Iterable[str]) -> tuple[str, ...]:
    """What the emulator takes of a candidate's compiler flags: macros, and whether products and sums may be fused."""
    taken = [flag for flag in flags if flag.startswith("-D") and len(flag) < 200]
    fused = [flag for flag in flags if re.fullmatch(r"-?-fmad=(true|false)", flag)]
    return (*taken, "-ffp-contract=off") if fused and fused[-1].endswith("false") else tuple(taken)


@cache
def _linker_flags() -> tuple[str, ...]:
    faster = ("-fuse-ld=gold",) if shutil.which("ld.gold") else ()
    return (*faster, "-shared", "-Wl,-Bsymbolic", "-Wl,-z,now")


@cache
def _version() -> str:
    return subprocess.run([compiler(), "--version"], capture_output=True, text=True, check=False).stdout


@cache
def _fingerprint() -> str:
    """Hash of our headers and the compiler: names the toolchain's folder."""
    digest = hashlib.sha256()
    digest.update(_version().encode() + " ".join((*_flags(), *_watched(), *_REGISTERS)).encode())
    for path in sorted((INCLUDE / "kernelward").rglob("*")):
        if path.is_file():
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def default_folder() -> Path:
    """Where toolchains are kept: `$XDG_CACHE_HOME/kernelward/emulator`, by default below `~/.cache`; a folder of the
    user's own below the temporary directory where neither can be written.

    Raises:
        ToolchainError: no folder can be written that nobody else can.
    """
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    for folder in (Path(root) / "kernelward", Path(tempfile.gettempdir()) / f"kernelward-{os.getuid()}"):
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            status = folder.stat()
        except OSError:
            continue
        if status.st_uid == os.getuid() and not status.st_mode & 0o022 and os.access(folder, os.W_OK):
            return folder / "emulator"
    raise ToolchainError("no writable cache folder; set XDG_CACHE_HOME")


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A prepared folder.

    Attributes:
        folder: holds `headers/prefix.h.gch` and `objects/*.o`.
    """

    folder: Path

    @classmethod
    def prepare(cls, root: Path | None = None) -> "Toolchain":
        """Make what is missing and return the toolchain. Safe to call from several processes at once.

        Raises:
            ToolchainError: the compiler is missing or refuses our own code.
        """
        folder = (root or default_folder()) / _fingerprint()
        folder.mkdir(parents=True, exist_ok=True)
        for part in (_OBJECTS, _HEADERS):
            if (folder / part / "done").exists():
                continue
            with (folder / f"{part}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not (folder / part / "done").exists():
                    _make(folder, part)
        return cls(folder)

    def build(self, unit: Unit, directory: Path, defines: Sequence[str] = ()) -> Path:
        """Compile and link a unit into `directory`; returns the shared library.

        Raises:
            CompileFailure: the compiler refuses the code, or takes longer than `BUILD_SECONDS`.
            ToolchainError: the compiler could not be started.
        """
        with tempfile.TemporaryDirectory(dir=directory, prefix="unit-") as work:
            source, library = Path(work) / "extension.cpp", Path(work) / "extension.so"
            for name, text in unit.headers.items():
                path = Path(work) / "headers" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            source.write_text(unit.text, encoding="utf-8", errors="replace")
            command = [
                compiler(),
                *_flags(),
                *_watched(),
                *defines,
                "-include",
                str(self.folder / _HEADERS / _PREFIX),
                "-I",
                str(INCLUDE),
                "-I",
                str(Path(work) / "headers"),
                "-c",
                str(source),
                "-o",
                str(Path(work) / "extension.o"),
            ]
            _compile(command, Path(work))
            objects = sorted(str(path) for path in (self.folder / _OBJECTS).glob("*.o"))
            link = [compiler(), *_linker_flags(), "-o", str(library), str(Path(work) / "extension.o"), *objects]
            if not _own_hooks():
                _compile(link, Path(work))
            elif not _linked(link, library, Path(work)):
                _compile([*command, "-fPIC"], Path(work))
                _compile(link, Path(work))
            number = len(list(directory.glob("extension-*.so")))
            target = directory / f"extension-{number}-{os.getpid()}.so"
            library.replace(target)
        return target


def _linked(link: Sequence[str], library: Path, work: Path) -> bool:
    """Link what was compiled like a program's code; False where a library cannot hold it.

    That is so with variables of a thread: with its own the linker refuses, with those of another library (which
    `std::call_once` uses) the loader may find no room.
    """
    try:
        _compile(link, work)
    except CompileFailure as failure:
        if failure.reason != "compile":
            raise
        return False
    return (
        b"STATIC_TLS"
        not in subprocess.run(["readelf", "--dynamic", str(library)], capture_output=True, check=False).stdout
    )


def _compile(command: Sequence[str], work: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(work), "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=BUILD_SECONDS,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CompileFailure("compile-timeout", f"compiling took longer than {BUILD_SECONDS:.0f} s") from None
    except OSError as error:
        raise ToolchainError(f"the compiler could not be started: {error}") from error
    if done.returncode:
        message = _readable(done.stderr, work)
        if "Killed" in done.stderr or "out of memory" in done.stderr or "virtual memory exhausted" in done.stderr:
            raise CompileFailure("compile-memory", message)
        raise CompileFailure("compile", message)


def _readable(stderr: str, work: Path) -> str:
    """The compiler's errors without paths of ours, and without its warnings."""
    text = stderr.replace(str(work) + "/", "").replace(str(INCLUDE) + "/", "")
    lines: list[str] = []
    warns = False
    for line in text.split("\n"):
        if not line.startswith(" "):  # else it belongs to what stands above
            warns = ": warning: " in line
        if not warns and not line.startswith(("In file included from", "                 from", "cc1plus: ")):
            lines.append(line)
    return "\n".join(lines)[:MAX_MESSAGE] or "the compiler failed without a message"


def _make(folder: Path, part: str) -> None:
    """One part of a toolchain: the precompiled header, or the runtime's objects."""
    work = Path(tempfile.mkdtemp(dir=folder, prefix=f".{part}-"))
    try:
        jobs = []
        if part == _OBJECTS:
            for name in _RUNTIME:
                target, source = work / (Path(name).stem + ".o"), INCLUDE / "kernelward" / name
                # Without debug information of ours a library is linked in half the time.
                flags = [flag for flag in _flags() if flag != "-O1" and not flag.startswith("-g")]
                if _own_hooks():
                    flags += [*_HOOKS, *(_REGISTERS if name == _HOOKED else ())]
                jobs.append([*flags, "-O2", "-I", str(INCLUDE), "-c", str(source), "-o", str(target)])
        else:
            header = work / _PREFIX
            header.write_text(f'#include "{INCLUDE / _HEADER}"\n')
            jobs.append(
                [*_flags(), *_watched(), "-I", str(INCLUDE), "-x", "c++-header", str(header), "-o", f"{header}.gch"]
            )
        for job in jobs:
            done = subprocess.run([compiler(), *job], capture_output=True, text=True, check=False)
            if done.returncode:
                raise ToolchainError(f"our own runtime does not compile:\n{done.stderr[:MAX_MESSAGE]}")
        (work / "done").touch()
        work.chmod(0o755)
        work.rename(folder / part)
    except OSError as error:
        raise ToolchainError(f"{folder}: {error}") from error
    finally:
        if work.exists():
            shutil.rmtree(work, ignore_errors=True)
