"""Before a mutant is judged: does it compile, and is its compiled code new?

A mutant that does not compile is no fault that a kernel can have. One whose compiled code is the substrate's is
equivalent, and one whose code is an earlier mutant's is a duplicate: both are proved, by nothing else than identical
code. A mutant that behaves as the substrate and compiles differently is not found here; it stays `ready` and ends as
unwitnessed, which is another word for another thing.

What is hashed: device code as NVRTC's cubin for one fixed architecture (sm_90), host code as g++'s library against the
header that candidates get on a GPU, and the syntax tree of the Python around them. Debug information, comments, layout
and names of local variables do not count. Extensions that this path cannot build count by the library that the CPU
emulator's translation compiles to. Triton's kernels count by the PTX that they compile to (sm_90) when the model is
called on inputs of the problem's shapes, if that code is the same for all shapes (`triton_code`); what is not so, and
whatever no compiler here takes, counts by its syntax tree.

All compiling happens in sandboxed children: a mutant is hostile code, and its module level has to run to know what it
would build.
"""

import contextlib
import hashlib
import importlib.util
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

from ..reward.cuda.engine_compile import prepare, python_hash
from ..reward.sandbox.failure import ChildFailure
from ..reward.sandbox.limits import Limits
from ..reward.sandbox.session import ChildSession, Zygote
from ..suites.errors import InputError
from ..suites.problem import Problem
from ..suites.python_syntax import parse
from .mutant import Backend, Mutant, Substrate
from .triton_code import call_of, compiled_functions

State = Literal["ready", "compile-error", "duplicate", "equivalent"]
How = Literal["nvrtc", "ptx", "emulator", "source"]

LOAD_S = 120.0
PER_CHILD = 100
"""Candidates that one child compiles before a fresh one takes over: compilers in a process keep memory."""
KNOWN_HOST_TEXTS = 200
"""Host texts of one substrate whose compiled code is remembered: the first few are those that come again."""
_ORDER: tuple[How, ...] = ("source", "emulator", "ptx", "nvrtc")


class ScreenError(RuntimeError):
    """The substrate itself does not compile, so nothing can be said about its mutants."""


@dataclass(frozen=True, slots=True)
class Screened:
    """What the screen says about one mutant.

    Attributes:
        state: `duplicate` and `equivalent` mean identical compiled code, of an earlier mutant or of the substrate.
        code_hash: of the compiled code, 64 hexadecimal digits; "" where it does not compile.
        how: the weakest means that the hash rests on: `nvrtc`, `ptx`, `emulator`, `source` (no compiler).
        detail: the compiler's first message, the id that a duplicate repeats, or why no compiler was used.
    """

    state: State
    code_hash: str = ""
    how: How = "source"
    detail: str = ""


class Screener:
    """Compiles candidates of one backend in sandboxed children; a context manager. Thread-safe: each call of `screen`
    has a child of its own."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        if backend == "cuda":
            prepare()  # here, where it may take its time: a zygote has to be ready within two minutes
        self._zygote: Zygote | None = None
        if backend == "cuda" or importlib.util.find_spec("triton") is not None:
            self._zygote = Zygote(f"{backend}-compile")
        self._host_code: dict[str, dict[str, str]] = {}
        self._calls: dict[tuple[str, str], tuple[dict[str, Any] | None, Screened | None]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._zygote is not None:
            self._zygote.close()

    def screen(
        self,
        mutants: Iterable[Mutant],
        substrate: Substrate,
        seen: dict[str, str] | None = None,
        problem: Problem | None = None,
    ) -> list[Screened]:
        """Screen the mutants of one substrate, in their order.

        Args:
            seen: hash of compiled code -> id of the mutant that had it first, "" for the substrate; from earlier
                mutants of this substrate, and extended. The substrate is compiled where its hash is not among them.
            problem: the substrate's; without it, Triton's kernels are not compiled.

        Raises:
            ScreenError: the substrate does not compile.
            ChildFailure: `infra_error`: the sandbox does not work.
        """
        # By substrate: what a child says of a host text is believed for that substrate's mutants alone.
        known = self._host_code.setdefault(substrate.hash, {})
        call, original = self._call(substrate, problem)
        with _Bench(self._zygote, known, call) as bench:
            first = {} if seen is None else seen
            if "" not in first.values():
                original = original or bench.compile(substrate.source)
                if original.state == "compile-error":
                    raise ScreenError(f"the substrate {substrate.name} does not compile: {original.detail}")
                first[original.code_hash] = ""
            return [_placed(bench.compile(mutant.source), mutant.id, first) for mutant in mutants]

    def _call(self, substrate: Substrate, problem: Problem | None) -> tuple[dict[str, Any] | None, Screened | None]:
        """What Triton's kernels are compiled for, and the substrate's code; None where they are not, or for CUDA."""
        if self.backend == "cuda" or self._zygote is None or problem is None:
            return None, None
        key = substrate.hash, problem.hash
        if key not in self._calls:
            self._calls[key] = None, None
            with contextlib.suppress(InputError, ValueError):
                call = call_of(problem)
                with _Bench(self._zygote, {}, call) as bench:
                    original = bench.compile(substrate.source)
                # What does not compile so may compile where it runs; its mutants count by their text.
                if original.state == "ready":
                    self._calls[key] = call, original
        return self._calls[key]


def screen(mutants: Sequence[Mutant], substrate: Substrate, problem: Problem | None = None) -> list[Screened]:
    """`Screener.screen` for one substrate alone; starting a screener takes seconds, so share one between substrates."""
    with Screener(substrate.backend) as screener:
        return screener.screen(mutants, substrate, problem=problem)


def _placed(compiled: Screened, name: str, first: dict[str, str]) -> Screened:
    """The final state, given which hashes were seen before; `first` maps a hash to its mutant, "" is the substrate."""
    if compiled.state == "compile-error":
        return compiled
    earlier = first.setdefault(compiled.code_hash, name)
    if earlier == name:
        return compiled
    if earlier == "":
        return Screened("equivalent", compiled.code_hash, compiled.how, compiled.detail)
    return Screened("duplicate", compiled.code_hash, compiled.how, earlier)


class _Bench:
    """A child that compiles one candidate after the other, replaced when it dies or has had enough.

    Args:
        zygote: where children come from; None where nothing is compiled.
        host_code: hash of compiled host code by its text's; extended, so that g++ compiles no text twice.
        call: what Triton's kernels are compiled for, see `triton_code.call_of`; None for CUDA, or to compile none.
    """

    def __init__(self, zygote: Zygote | None, host_code: dict[str, str], call: dict[str, Any] | None = None) -> None:
        self._zygote = zygote
        self._host_code = host_code
        self._call = call
        self._session: ChildSession | None = None
        self._loads = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session, self._loads = None, 0

    def compile(self, source: str) -> Screened:
        """`ready` with a hash, or `compile-error`.

        Raises:
            ChildFailure: `infra_error`.
        """
        try:
            parse(source)
        except (SyntaxError, ValueError, RecursionError) as error:
            return Screened("compile-error", detail=f"{type(error).__name__}: {error}")
        if self._zygote is None or (self._call is None and self._zygote.mode == "triton-compile"):
            return Screened("ready", python_hash(source))
        failure: ChildFailure | None = None
        for _ in range(2):
            try:
                if self._call is not None:
                    return _with_ptx(self._child(self._zygote).load(source, {"call": self._call}).compiled, source)
                found = self._child(self._zygote).load(source, {"host_code": dict(self._host_code)}).compiled
                return _summed(self._noted(found), source)
            except ChildFailure as caught:
                failure = caught
            if not failure.alive:
                self._end()
            # A child that died or took too long gets a second chance alone: the one before may have left it little.
            if failure.alive or failure.kind == "infra_error":
                break
        assert failure is not None
        if failure.kind in ("infra_error", "unrefereeable"):
            raise failure
        return Screened("compile-error", detail=_first_line(failure.message or str(failure)))

    def _noted(self, found: Sequence[dict[str, str]]) -> Sequence[dict[str, str]]:
        for item in found:
            if "host_code" in item and len(self._host_code) < KNOWN_HOST_TEXTS:
                self._host_code.setdefault(item["host_text"], item["host_code"])
        return found

    def _child(self, zygote: Zygote) -> ChildSession:
        if self._loads >= PER_CHILD:
            self._end()
        if self._session is None:
            self._session = zygote.spawn(Limits(load_s=LOAD_S))
        self._loads += 1
        return self._session


def _summed(found: Sequence[dict[str, str]], source: str) -> Screened:
    """One hash over all extensions and the Python part, and the weakest means among them."""
    kinds: tuple[How, ...] = tuple(how for how in _ORDER if any(item["code"] == how for item in found))
    if not kinds:  # it builds nothing while it is imported
        return Screened("ready", python_hash(source), "source", "nothing is compiled before the model is constructed")
    digest = hashlib.sha256("\n".join(f"{item['code']} {item['message']}" for item in found).encode())
    why = next((item["why"] for item in found if "why" in item), "")
    return Screened("ready", digest.hexdigest(), kinds[0], why)


def _with_ptx(found: Sequence[dict[str, str]], source: str) -> Screened:
    """One hash over PTX and the text of whatever it does not speak for."""
    why = next((item.get("why", "") for item in found if item["code"] == "source"), "")
    if why or not found:
        return Screened("ready", python_hash(source), "source", why or "no kernel is launched")
    varying = {item.get("kernel", "") for item in found if item.get("always") != "yes"}
    launched = {item.get("kernel", "") for item in found} - varying
    compiled = compiled_functions(source, launched)
    codes = sorted(f"{item.get('kernel', '')} {item['message']}" for item in found)
    digest = hashlib.sha256("\n".join((*codes, python_hash(source, compiled=compiled))).encode()).hexdigest()
    rest = launched - compiled | varying
    if rest:
        return Screened("ready", digest, "source", f"{', '.join(sorted(rest))}: other calls may be compiled otherwise")
    return Screened("ready", digest, "ptx")


def _first_line(message: str, limit: int = 300) -> str:
    """The first line that names an error, else the first line."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line.lower()), lines[0] if lines else "")[:limit]
