"""Running the host compiler: within limits, with a precompiled header, with the fixed part of the host API linked in.

What is prepared once (precompiled header, objects) is keyed by everything it depends on and written atomically, so
that any number of processes may prepare at the same time. Prepare before candidates run: the folder must not be
writable to them.
"""

import contextlib
import hashlib
import os
import re
import resource
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from ..sandbox import linux
from ..sandbox.engine import CompileFailure

MIB = 1 << 20
MESSAGE_LIMIT = 8000


@dataclass(frozen=True, slots=True)
class ToolLimits:
    """Limits of one compiler run: wall-clock seconds, address space and output file size in bytes."""

    seconds: float = 60.0
    memory: int = 4096 * MIB
    file: int = 256 * MIB


@dataclass(frozen=True, slots=True)
class ToolResult:
    """How a tool ended. `status` is None where it was stopped at the time limit; texts are bounded."""

    status: int | None
    output: str
    errors: str


def run_tool(
    command: Sequence[str],
    directory: Path,
    limits: ToolLimits = ToolLimits(),
    text: str = "",
    environment: Mapping[str, str] | None = None,
) -> ToolResult:
    """Run a compiler or preprocessor in its own process group and session, under `limits`.

    Args:
        command: program and arguments.
        directory: working directory, and where its output is collected.
        text: standard input.
        environment: default: PATH, TMPDIR (the directory) and LC_ALL=C alone.

    Raises:
        FileNotFoundError: the program does not exist.
    """

    def limit() -> None:
        linux.new_session()
        resource.setrlimit(resource.RLIMIT_AS, (limits.memory, limits.memory))
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits.file, limits.file))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        seconds = int(limits.seconds) + 5
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))

    if environment is None:
        environment = {"PATH": os.environ.get("PATH", os.defpath), "TMPDIR": str(directory), "LC_ALL": "C"}
    with (
        tempfile.TemporaryFile(dir=directory) as source,
        tempfile.TemporaryFile(dir=directory) as output,
        tempfile.TemporaryFile(dir=directory) as errors,
    ):
        source.write(text.encode())
        source.seek(0)
        process = subprocess.Popen(
            list(command), stdin=source, stdout=output, stderr=errors, cwd=directory, env=environment, preexec_fn=limit
        )
        status: int | None
        try:
            status = process.wait(limits.seconds)
        except subprocess.TimeoutExpired:
            status = None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        output.seek(0)
        errors.seek(0)
        return ToolResult(
            status,
            output.read(16 * MIB).decode("utf-8", "replace"),
            errors.read(MIB).decode("utf-8", "replace"),
        )


@lru_cache(maxsize=1)
def compiler() -> str:
    """The host compiler, `$CXX` or g++.

    Raises:
        CompileFailure: none is installed.
    """
    name = os.environ.get("CXX", "g++")
    found = shutil.which(name)
    if found is None:
        raise CompileFailure("no-compiler", f"the host compiler {name} was not found; install g++ or set CXX")
    return found


@lru_cache(maxsize=4)
def compiler_version(path: str) -> str:
    """First line of the compiler's `--version`, with its target."""
    done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=True)
    target = subprocess.run([path, "-dumpmachine"], capture_output=True, text=True, timeout=20, check=True)
    return f"{done.stdout.splitlines()[0]} {target.stdout.strip()}"


def tree_hash(folder: Path) -> str:
    """Hash of every file below a folder, names included, without Python's own caches."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.parent.name != "__pycache__"):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def preprocess(
    text: str, directory: Path, limits: ToolLimits = ToolLimits(seconds=10.0, memory=1024 * MIB, file=16 * MIB)
) -> str:
    """Expand macros in a text that includes nothing; for `lexical.expand_macros`.

    Raises:
        CompileFailure: the preprocessor refused the text, or its expansion is too large.
    """
    result = run_tool([compiler(), "-E", "-x", "c++", "-std=c++20", "-w", "-"], directory, limits, text)
    if result.status != 0:
        raise CompileFailure(_reason(result, "macro-expansion"), _message(result, limits))
    return result.output


def _reason(result: ToolResult, otherwise: str) -> str:
    """`compile-limit` where a limit ended the tool."""
    limited = result.status is None or result.status < 0 or "ended by signal" in _message(result, ToolLimits())
    return "compile-limit" if limited else otherwise


def _message(result: ToolResult, limits: ToolLimits) -> str:
    if result.status is None:
        return f"the compiler was stopped after {limits.seconds:g} s"
    text = result.errors or result.output
    if result.status < 0:
        text += f"\n(the compiler was ended by signal {-result.status}: a limit on its memory, time or output)"
    if re.search(r"memory exhausted|Cannot allocate memory|out of memory|Killed signal|File size limit", text):
        text += "\n(the compiler was ended by signal or reached its memory limit)"
    lines = [line for line in text.splitlines() if re.search(r"error|Error|limit|signal|undefined", line)]
    short = "\n".join(lines) if lines else text
    return (short or text)[:MESSAGE_LIMIT]


@dataclass(frozen=True, slots=True)
class HostCompiler:
    """Compiles candidates' host code against our `torch` header.

    Attributes:
        folder: where prepared files live, one subfolder per key.
        include: the folder with `kernelward/`.
        flags: for every compilation, the precompiled header's included (`-O1`, `-DKERNELWARD_GPU`, ...).
        system: further include folders, searched as system headers.
        parts: sources (relative to `include`) that are compiled once and linked into every extension.
    """

    folder: Path
    include: Path
    flags: tuple[str, ...]
    system: tuple[Path, ...] = ()
    parts: tuple[str, ...] = ("kernelward/host.cpp",)

    COMMON = ("-std=c++20", "-fPIC", "-w", "-fmax-errors=8", "-fno-gnu-unique", "-fdiagnostics-color=never")

    def key(self) -> str:
        """Hash of the compiler, the flags and every header of ours."""
        text = "\0".join((compiler_version(compiler()), *self.COMMON, *self.flags, *map(str, self.system), *self.parts))
        return hashlib.sha256(f"{text}\0{tree_hash(self.include)}".encode()).hexdigest()[:24]

    def base(self) -> list[str]:
        """The command without its inputs."""
        paths = [f"-I{self.include}"]
        for folder in self.system:
            paths += ["-isystem", str(folder)]
        return [compiler(), *self.COMMON, *self.flags, *paths]

    def prepare(self) -> "PreparedHost":
        """Build the precompiled header and the fixed objects, unless they are there.

        Raises:
            CompileFailure: our own headers do not compile here; a fault of the installation.
        """
        key = self.key()
        target = self.folder / key
        if (target / "ready").is_file():
            return PreparedHost(self, target, key)
        self.folder.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix="prepare-", dir=self.folder))
        try:
            (work / "pch.h").write_text('#include "kernelward/torch.h"\n')
            commands = [[*self.base(), "-x", "c++-header", str(work / "pch.h"), "-o", str(work / "pch.h.gch")]]
            for part in self.parts:
                output = work / (Path(part).stem + ".o")
                commands.append([*self.base(), "-c", str(self.include / part), "-o", str(output)])
            for command in commands:
                limits = ToolLimits(seconds=120.0)
                result = run_tool(command, work, limits)
                if result.status != 0:
                    raise CompileFailure("host-api", _message(result, limits))
            (work / "ready").touch()
            # Whoever comes second finds the folder there and keeps the first one's.
            with contextlib.suppress(OSError):
                work.rename(target)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        return PreparedHost(self, target, key)


@dataclass(frozen=True, slots=True)
class PreparedHost:
    """A host compiler whose precompiled header and objects are in `folder`; `key` names them."""

    compiler: HostCompiler
    folder: Path
    key: str

    def compile(
        self,
        units: Sequence[str],
        output: Path,
        directory: Path,
        defines: Mapping[str, str] = MappingProxyType({}),
        link: Sequence[str] = (),
        limits: ToolLimits = ToolLimits(),
    ) -> None:
        """Compile translation units (texts, the header is already included) to one shared library.

        Args:
            units: C++ texts.
            output: the shared library to write.
            directory: a scratch directory.
            defines: macros of this candidate. They stand in the text, behind our header: a macro on the command line
                would make the compiler ignore the precompiled one.
            link: linker options.

        Raises:
            CompileFailure: `host-compile`, with the compiler's errors; `compile-limit` where a limit ended it.
        """
        files = []
        head = "".join(f"#undef {name}\n#define {name} {value}\n" for name, value in defines.items())
        for index, text in enumerate(units):
            path = directory / f"unit{index}.cpp"
            path.write_text(head + text)
            files.append(str(path))
        objects = [str(self.folder / (Path(part).stem + ".o")) for part in self.compiler.parts]
        command = [*self.compiler.base(), "-include", str(self.folder / "pch.h"), *files, *objects, "-shared"]
        command += ["-Wl,-Bsymbolic", *link, "-o", str(output)]
        result = run_tool(command, directory, limits)
        if result.status != 0:
            raise CompileFailure(_reason(result, "host-compile"), _message(result, limits))
