"""What crosses from the client to the judge: one candidate to judge, and how the judge is set up.

Nothing here imports torch, so the trainer's side stays light.
"""

import functools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self

from ..suites.errors import InputError
from .screen import ScreenPolicy

if TYPE_CHECKING:
    from ..suites.problem import Problem
    from ..suites.protocol import ProtocolSpec
    from ..suites.suite import Suite

DEFAULT_PROTOCOL = "kernelward"


@dataclass(frozen=True, slots=True)
class Task:
    """One candidate to judge.

    Attributes:
        candidate: source text that should define `ModelNew`.
        problem: the problem it claims to solve.
        protocol: a protocol's name, the path of its YAML file, or the loaded protocol.
        suite: the entries to use where the protocol says `suite`; None takes the problem's own (library or default).
        run_key: secret of the run; with the problem, the entry and the epoch it gives every seed.
        epoch: rotates the seeds during training.
        all_entries: judge every entry instead of stopping at the first failure.
        only_entry: id of the single entry to run (replaying a failure).
        seed: used for every entry in place of the derived one (replaying a failure).
        speed: also measure the speed-up of a correct candidate.
        audit: put the entries of an audit (`audit_entries`) in place of the suite's own.
        background: judged only while nothing else waits to be judged.
    """

    candidate: str
    problem: "Problem"
    protocol: "str | ProtocolSpec" = DEFAULT_PROTOCOL
    suite: "Suite | None" = None
    run_key: bytes = b""
    epoch: int = 0
    all_entries: bool = False
    only_entry: str | None = None
    seed: int | None = None
    speed: bool = False
    audit: bool = False
    background: bool = False

    def to_wire(self) -> dict[str, Any]:
        """JSON-able mapping.

        Raises:
            InputError: the protocol is neither a name nor a path (only a judge in the same process takes an object).
        """
        if not isinstance(self.protocol, str):
            raise InputError("a task for the judge process names its protocol; pass the name or the YAML file's path")
        return {
            "candidate": self.candidate,
            "problem": {"id": self.problem.id, "source": self.problem.source},
            "protocol": self.protocol,
            "suite": None if self.suite is None else self.suite.to_yaml(),
            "run_key": self.run_key.hex(),
            "epoch": self.epoch,
            "all_entries": self.all_entries,
            "only_entry": self.only_entry,
            "seed": self.seed,
            "speed": self.speed,
            "audit": self.audit,
            "background": self.background,
        }

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of `to_wire`.

        Raises:
            InputError: the problem or the suite cannot be read.
        """
        values = dict(data)
        problem = values.pop("problem")
        suite = values.pop("suite")
        return cls(
            problem=_problem(problem["source"], problem["id"]),
            suite=None if suite is None else _suite(suite),
            run_key=bytes.fromhex(values.pop("run_key")),
            **values,
        )


# A group's completions carry the same problem and suite: they are read once.


@functools.lru_cache(maxsize=256)
def _problem(source: str, id: str) -> "Problem":
    from ..suites.problem import problem_from_source

    return problem_from_source(source, id)


@functools.lru_cache(maxsize=256)
def _suite(text: str) -> "Suite":
    from ..suites.suite import Suite

    return Suite.from_yaml(text)


@dataclass(frozen=True, slots=True)
class JudgeConfig:
    """How one judge process is set up. Plain values only: it is pickled with the reward and sent as JSON.

    Attributes:
        device: `cpu`, or `cuda:N` where N counts the devices visible to the client's process, or the machine's own
            numbering where the client's process sees none.
        workers: candidates judged at the same time.
        threads: torch threads of the judge (0: the cores divided by the workers).
        precision: tolerance policy as `TolerancePolicy.parse` reads it (`fp32`, `tf32`, `fp16+fast_math`, ...).
        ties: `first` (argmax and argmin exactly as torch documents) or `value`.
        memory_bytes: bound on the state of the entries under way, in judge and children together (0: what is free now,
            on a CPU half of it). The judge's own process takes at most this, `truth_bytes` and 640 MiB of a GPU.
        truth_bytes: bound on cached inputs and truths.
        limits: overrides of `sandbox.limits.Limits` fields, sorted by name.
        screen: what the static screen rejects.
        suite_cache: folder for default suites that the judge builds (None: the user's cache folder).
        official: folder of a KernelBench checkout whose own evaluation must accept what is correct by the protocol, or
            `package` for the one in KERNELBENCH_DIR; GPU only, and up to a minute per candidate.
    """

    device: str = "cpu"
    workers: int = 2
    threads: int = 0
    precision: str = "fp32"
    ties: str = "first"
    memory_bytes: int = 0
    truth_bytes: int = 1 << 30
    limits: tuple[tuple[str, float], ...] = ()
    screen: ScreenPolicy = field(default_factory=ScreenPolicy)
    suite_cache: str | None = None
    official: str | None = None

    def to_wire(self) -> dict[str, Any]:
        """JSON-able mapping."""
        return asdict(self) | {"limits": dict(self.limits)}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of `to_wire`; also what a configuration file's `judge:` section goes through.

        Raises:
            InputError: an unknown key, or a value of the wrong kind.
        """
        values = dict(data)
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise InputError(f"unknown judge setting {unknown[0]!r}; known: {', '.join(sorted(known))}")
        if "limits" in values:
            values["limits"] = tuple(sorted(dict(values["limits"]).items()))
        if "screen" in values:
            values["screen"] = ScreenPolicy.from_dict(values["screen"])
        config = cls(**values)
        if config.workers < 1:
            raise InputError(f"judge setting workers must be at least 1, not {config.workers}")
        if config.device != "cpu" and not config.device.startswith("cuda"):
            raise InputError(f"judge setting device must be cpu or cuda:N, not {config.device!r}")
        if config.ties not in ("first", "value"):
            raise InputError(f"judge setting ties must be first or value, not {config.ties!r}")
        return config
