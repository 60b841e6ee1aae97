"""Speed: candidate against reference on unseen inputs, by the judge's clock, with every output verified.

Both run the same way, each in a child of its own: a batch of inputs that the process has never seen goes in, and the
clock stops when the judge has copied every output out. A third child does nothing but return memory; its time is what
the way itself costs, and is subtracted from both. So streams, threads, lazy tensors, patched timers and caches have
nothing to hide behind.
"""

import contextlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from ..suites.compare import Ties, allclose_pass, compare_outputs, is_exact, row_scale
from ..suites.draw import Drawn, draw_entry
from ..suites.entry import Entry
from ..suites.hashing import derive_seed
from ..suites.oracle import Truth, reference_outputs
from ..suites.problem import RNG_LOCK, Problem
from ..suites.protocol import AllClose, ProtocolSpec
from ..suites.validity import Measured
from .sandbox.buffers import OutputSpec
from .sandbox.limits import Limits
from .sandbox.session import ChildSession, Zygote

BATCH = 4  # inputs per batch
ROUNDS = 5  # batches that count; one more warms up and does not
SUSPICIOUS = 10.0  # a larger speed-up is flagged
CAP = 100.0  # and no larger one is reported
#: The reference's own answers stand in for truth here, so its own error, at most a quarter of the tolerance, is added.
SLACK = 1.25

_REFERENCE_AS_CANDIDATE = "\n\nModelNew = Model\n"


@dataclass(frozen=True, slots=True)
class Speed:
    """What was measured.

    Attributes:
        speedup: reference time / candidate time, at most `CAP`.
        candidate_s, reference_s: median seconds per call, the empty call's subtracted.
        baseline_s: median seconds of an empty call.
        spread: interquartile range of the candidate's batches over their median.
        suspicious: the speed-up is larger than `SUSPICIOUS`.
        wrong: why an output of the timed batches is wrong, "" where all are right.
    """

    speedup: float
    candidate_s: float
    reference_s: float
    baseline_s: float
    spread: float
    suspicious: bool
    wrong: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """For the verdict."""
        line = (
            f"speed: {self.candidate_s * 1e3:.3f} ms per call, reference {self.reference_s * 1e3:.3f} ms, "
            f"empty call {self.baseline_s * 1e3:.3f} ms, spread {100 * self.spread:.0f} %"
        )
        flag = f"implausible-speedup: more than {SUSPICIOUS:g} times as fast as the reference"
        return (line, flag) if self.suspicious else (line,)


@dataclass(frozen=True, slots=True)
class SpeedTask:
    """What is timed: one entry of a problem, at the declared shape as a rule.

    Attributes:
        key, epoch: give the seeds of the draws.
        measured: tolerances for the verification; None for the allclose protocols.
    """

    problem: Problem
    entry: Entry
    measured: Measured | None
    spec: ProtocolSpec
    key: bytes
    epoch: int
    ties: Ties = "first"

    def draw(self, number: int, device: str) -> Drawn:
        """The `number`-th draw; the parameters of all are those of the first."""
        seed = derive_seed(self.key, self.problem.hash, self.entry.id, self.epoch, "speed", number)
        entry = replace(self.entry, seed_policy="secret")
        return draw_entry(self.problem, entry, seed, device)


def measure_speed(task: SpeedTask, candidate: ChildSession, torch_zygote: Zygote, limits: Limits, device: str) -> Speed:
    """Time a candidate that was loaded and judged correct.

    Args:
        task: what to time.
        candidate: its session; `ModelNew` is built anew, with the parameters of the first draw.
        torch_zygote: where the reference and the empty candidate run.
        limits: theirs.
        device: the judge's device; nobody else may use it meanwhile.

    Raises:
        ChildFailure: the candidate failed while it was timed, or the infrastructure did.
        InputError, MemoryError: the problem cannot be drawn.
    """
    with RNG_LOCK:
        first = task.draw(0, device)
        model = first.build_model()
        state = {name: value.detach() for name, value in model.state_dict().items()}
        del model
    with contextlib.ExitStack() as stack:
        reference = stack.enter_context(torch_zygote.spawn(limits))
        empty = stack.enter_context(torch_zygote.spawn(limits))
        reference.load(task.problem.source + _REFERENCE_AS_CANDIDATE, task.spec.flags)
        for session in (reference, candidate):
            session.build(first.init_inputs, state, first.model_seed, dtype=first.dtype)
        specs = _output_specs(first)
        empty.load(_empty_source(specs, device))
        empty.build([])
        return _measure(task, candidate, reference, empty, specs, device)


def _measure(
    task: SpeedTask,
    candidate: ChildSession,
    reference: ChildSession,
    empty: ChildSession,
    specs: Sequence[OutputSpec],
    device: str,
) -> Speed:
    times: dict[str, list[float]] = {"candidate": [], "reference": [], "empty": []}
    wrong = ""
    for round_number in range(ROUNDS + 1):
        with RNG_LOCK:
            numbers = range(round_number * BATCH, (round_number + 1) * BATCH)
            batch = [task.draw(1 + n, device).inputs for n in numbers]
        replies = {
            "reference": reference.time(batch, specs),
            "empty": empty.time(batch, specs),
            "candidate": candidate.time(batch, specs),
        }
        for right, got in zip(replies["reference"].outputs, replies["candidate"].outputs, strict=True):
            wrong = wrong or _verify(task, right, got)
        if round_number:
            for name, reply in replies.items():
                times[name].append(reply.seconds / BATCH)
    return speed_of(times["candidate"], times["reference"], times["empty"], wrong)


def speed_of(candidate: Sequence[float], reference: Sequence[float], empty: Sequence[float], wrong: str = "") -> Speed:
    """From seconds per call and batch to a speed-up: medians, the empty call's subtracted.

    Where the candidate is not measurably slower than the empty call, its time is taken to be the scatter of the empty
    calls (at least a hundredth of one): a difference below that is not a measurement.
    """
    baseline = statistics.median(empty)
    floor = max(_interquartile(empty), baseline / 100)
    own = max(statistics.median(candidate) - baseline, floor)
    theirs = max(statistics.median(reference) - baseline, floor)
    ratio = theirs / own
    return Speed(
        speedup=min(ratio, CAP),
        candidate_s=own,
        reference_s=theirs,
        baseline_s=baseline,
        spread=_interquartile(candidate) / statistics.median(candidate),
        suspicious=ratio > SUSPICIOUS,
        wrong=wrong,
    )


def _interquartile(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return high - low


def _verify(task: SpeedTask, right: Sequence[Tensor], got: Sequence[Tensor]) -> str:
    """Why the outputs of one timed call are wrong, "" where they are right."""
    if isinstance(task.spec.comparison, AllClose) or task.measured is None:
        comparison = task.spec.comparison
        assert isinstance(comparison, AllClose)
        bounds = comparison.bounds(task.entry.dtype)
        wrong = any(not allclose_pass(r, g, *bounds) for r, g in zip(right, got, strict=True))
        return "an output of the timed calls fails allclose" if wrong else ""
    wide = tuple(t.double() if t.is_floating_point() else t for t in right)
    truth = Truth(
        outputs=wide,
        output_dtypes=tuple(t.dtype for t in right),
        scales=tuple(None if is_exact(t) else row_scale(t) for t in wide),
        reference_errors=(),
    ).with_scale_pool(task.measured.scale_pool)
    found = compare_outputs(got, truth, [SLACK * t for t in task.measured.tolerance])
    return "" if found.ok else f"output {found.output} of a timed call is wrong: error {found.err:.3g}"


def _output_specs(drawn: Drawn) -> list[OutputSpec]:
    """Shapes and dtypes of the outputs, from one forward of the reference in the judge."""
    return [OutputSpec(tuple(t.shape), t.dtype) for t in reference_outputs(drawn)]


def _empty_source(specs: Sequence[OutputSpec], device: str) -> str:
    """A candidate that does nothing: it returns memory of the right form."""
    kind = device.partition(":")[0]
    made = ", ".join(f"torch.zeros({list(s.shape)!r}, dtype={s.dtype}, device={kind!r})" for s in specs)
    return (
        "import torch\n\n\nclass ModelNew(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        f"        self.made = ({made},)\n\n"
        "    def forward(self, *inputs):\n        return self.made\n"
    )
