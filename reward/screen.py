"""The static screen: what can be said about a candidate from its text alone.

A finding is a reason code. Most rules only log: text can be disguised, and a rule that rejects an honest kernel is as
wrong as one that lets a cheat pass. What the sandbox and the comparison decide is never decided here.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from ..suites.errors import InputError
from . import screen_rules
from .screen_source import ParsedSource
from .verdict import Outcome

Backend = Literal["cuda", "triton", "torch"]

#: Codes that say "there is no candidate here", whatever the policy.
STRUCTURAL: Mapping[str, Outcome] = {
    "empty": Outcome.COMPILE_ERROR,
    "not-utf8": Outcome.COMPILE_ERROR,
    "syntax": Outcome.COMPILE_ERROR,
    "no-model-new": Outcome.COMPILE_ERROR,
    "too-large": Outcome.REJECTED,
}

#: What `torch_ops: deny` makes hard: the candidate has to compute with its own kernel.
OWN_KERNEL_CODES = ("torch-compute", "torch-fallback", "no-kernel", "decoy-kernel")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that the screen saw.

    Attributes:
        code: reason code (`STRUCTURAL` and `screen_rules.RULES` list them all).
        line: line in the candidate, from 1; 0 where no single line is meant.
        message: one sentence for a person.
        hard: whether the candidate is refused for it.
    """

    code: str
    line: int
    message: str
    hard: bool

    @property
    def outcome(self) -> Outcome:
        """The verdict that a hard finding gives."""
        return STRUCTURAL.get(self.code, Outcome.REJECTED)

    def __str__(self) -> str:
        where = f" (line {self.line})" if self.line else ""
        return f"{self.code}{where}: {self.message}"


@dataclass(frozen=True, slots=True)
class ScreenPolicy:
    """What the screen refuses.

    Attributes:
        torch_ops: `allow` lets host code compute with torch; `deny` refuses it in CUDA and Triton candidates, and
            refuses candidates without a kernel of their own.
        hard: further codes that refuse a candidate instead of being logged.
        max_bytes: longest candidate, in UTF-8 bytes.
    """

    torch_ops: Literal["allow", "deny"] = "allow"
    hard: tuple[str, ...] = ()
    max_bytes: int = 256 * 1024

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read a configuration's `screen:` section.

        Raises:
            InputError: an unknown key, an unknown code, or a value of the wrong kind.
        """
        values = dict(data)
        unknown = sorted(set(values) - {"torch_ops", "hard", "max_bytes"})
        if unknown:
            raise InputError(f"unknown screen setting {unknown[0]!r}; known: hard, max_bytes, torch_ops")
        if "hard" in values:
            values["hard"] = tuple(values["hard"])
        policy = cls(**values)
        if policy.torch_ops not in ("allow", "deny"):
            raise InputError(f"screen setting torch_ops must be allow or deny, not {policy.torch_ops!r}")
        for code in policy.hard:
            if code not in screen_rules.RULES:
                raise InputError(f"unknown screen code {code!r}; known: {', '.join(sorted(screen_rules.RULES))}")
        return policy

    def to_dict(self) -> dict[str, Any]:
        """Plain values; also what a verdict cache keys the policy by."""
        return asdict(self) | {"hard": list(self.hard)}

    def is_hard(self, code: str, backend: Backend) -> bool:
        """Whether a finding with this code refuses the candidate."""
        if code in STRUCTURAL or code in self.hard:
            return True
        return self.torch_ops == "deny" and code in OWN_KERNEL_CODES


def detect_backend(source: str) -> Backend:
    """What the candidate's kernels are written in; `torch` where there are none or the text cannot be parsed."""
    parsed = _parse(source)
    return "torch" if isinstance(parsed, Finding) else backend_of(parsed)


def backend_of(parsed: ParsedSource) -> Backend:
    """`detect_backend` for a source that is parsed already."""
    if parsed.extension_calls:
        return "cuda"
    if parsed.jit_functions:
        return "triton"
    if parsed.cuda_texts:
        return "cuda"
    return "triton" if parsed.imports("triton") else "torch"


def screen(source: str, policy: ScreenPolicy | None = None) -> list[Finding]:
    """Every finding on a candidate, hard ones first, then by line. Runs nothing of it."""
    policy = policy or ScreenPolicy()
    early = _unreadable(source, policy)
    if early is not None:
        return [early]
    parsed = _parse(source)
    if isinstance(parsed, Finding):
        return [parsed]
    backend = backend_of(parsed)
    found: list[Finding] = []
    if not parsed.mentions("ModelNew"):
        found.append(Finding("no-model-new", 0, "the candidate does not define a class ModelNew", True))
    for code, line, message in screen_rules.apply(parsed, backend):
        found.append(Finding(code, line, message, policy.is_hard(code, backend)))
    return sorted(found, key=lambda f: (not f.hard, f.line, f.code))


def _unreadable(source: str, policy: ScreenPolicy) -> Finding | None:
    if not source.strip():
        return Finding("empty", 0, "the candidate is empty", True)
    if len(source) > policy.max_bytes:
        size = len(source)
    else:
        try:
            size = len(source.encode())
        except UnicodeEncodeError as error:
            line = source.count("\n", 0, error.start) + 1
            return Finding("not-utf8", line, "the candidate is not valid UTF-8 text", True)
    if size > policy.max_bytes:
        return Finding("too-large", 0, f"the candidate has {size} bytes; at most {policy.max_bytes} are judged", True)
    return None


def _parse(source: str) -> ParsedSource | Finding:
    try:
        return ParsedSource.parse(source)
    except SyntaxError as error:
        return Finding("syntax", error.lineno or 0, f"not valid Python: {error.msg}", True)
    except (ValueError, RecursionError, MemoryError) as error:
        reason = "nested too deeply" if isinstance(error, (RecursionError, MemoryError)) else str(error)
        return Finding("syntax", 0, f"not valid Python: {reason}", True)
