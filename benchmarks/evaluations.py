"""(mutant, entry) evaluations per second on this machine, and where the time of an evaluation goes.

    python benchmarks/evaluations.py [--device cpu] [--workers 2] [--problem ID ...] [--per-substrate 4] [--seconds N]
                                     [--out DIR] [--json FILE]

An evaluation is a cell of the kill matrix: one mutant on one entry, over as many draws as a calibration asks, at the
shapes that suites are made of. The mutants are the first of each substrate in a calibration's order, which is a fair
sample by family. Zygote and truths are warm, as they are for all but the first mutants of a problem: a kernel that
answers zero is put to every entry first. On a GPU each worker is a process that has its own substrates. Each mutant is
compiled anew (a mark in its source keeps caches out), and its row is written to a matrix. What the gate measures before
(`pools`) is no part of the figure; with --out, a later run of the same build does not ask it again.

Beside the figure for all cells of a calibration stand those of its parts, by the time that their own cells take without
compiling: entries at changed shapes (suites are mostly made of them), at declared ones, and official protocols' draws.

The figure is cells by the time that a worker needs for one, from the start to the end of its own last mutant; with
--seconds no mutant begins after so many. In a calibration a worker that ends takes another problem; here it has none.
"""

import argparse
import json
import os
import platform
import secrets
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from kernelward.mutants import cell, evaluate, kernel_run
from kernelward.mutants.calibrate_clean import questions_of
from kernelward.mutants.calibrate_plan import find_targets, ordered
from kernelward.mutants.calibrate_pools import Pools
from kernelward.mutants.calibrate_values import Budget, CalibrateOptions, Run, Work
from kernelward.mutants.clean_run import FORCED_FAILURE
from kernelward.mutants.lanes import Lanes
from kernelward.mutants.matrix import Matrix
from kernelward.mutants.matrix_schema import Cell, MutantRow, SubstrateRow
from kernelward.mutants.measure import measure_mutant
from kernelward.mutants.mutant import Mutant, Substrate, generate
from kernelward.reward.cuda.emulator import PLAIN_VARIANT
from kernelward.reward.sandbox.session import ChildSession, Zygote
from kernelward.suites.devices import resolve_device
from rich.console import Console
from rich.table import Table

PROBLEMS = Path(__file__).resolve().parents[1] / "examples" / "problems"
DEFAULT = ("relu", "softmax", "layernorm", "matmul", "sum_dim", "conv2d", "cumsum", "mse_loss")
SMALL = 1 << 18  # bytes of inputs
GOAL = {"cpu": 80, "cuda": 50}  # evaluations per second: two cores, or one H200


class Stopwatch:
    """Seconds by phase, summed over threads; what runs inside another phase counts for the inner one alone."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._open = threading.local()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        outer = getattr(self._open, "inside", None)
        inside: list[float] = [0.0]
        self._open.inside = inside
        started = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - started
            self._open.inside = outer
            if outer is not None:
                outer[0] += spent
            with self._lock:
                self.seconds[name] += spent - inside[0]
                self.calls[name] += 1

    def add(self, other: "Stopwatch") -> None:
        """Count what another one saw as well."""
        for name, spent in other.seconds.items():
            self.seconds[name] += spent
        self.calls.update(other.calls)

    def __getstate__(self) -> dict[str, Any]:
        """Of what was seen alone: it travels from a lane's process."""
        return {"seconds": self.seconds, "calls": self.calls}

    def wrap(self, owner: Any, attribute: str, name: str | Callable[..., str]) -> None:
        """Time every call of a function for as long as this process lives, under a name or what its arguments give."""
        original: Callable[..., Any] = getattr(owner, attribute)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.phase(name if isinstance(name, str) else name(*args, **kwargs)):
                return original(*args, **kwargs)

        setattr(owner, attribute, timed)


def watch() -> Stopwatch:
    """A stopwatch on the parts of an evaluation."""
    found = Stopwatch()
    found.wrap(evaluate.Evaluator, "draw", "draw and truth")
    found.wrap(Zygote, "spawn", "spawn")
    found.wrap(ChildSession, "load", "load (compile)")
    found.wrap(ChildSession, "build", "construct model")
    found.wrap(ChildSession, "run", _run_name)
    found.wrap(ChildSession, "close", "end child")
    found.wrap(kernel_run, "judged", "compare")
    found.wrap(Matrix, "put_row", "matrix write")
    return found


def watch_parts() -> Stopwatch:
    """A stopwatch on the cells, by what they are asked; what loads a kernel counts apart."""
    found = Stopwatch()
    found.wrap(kernel_run.KernelRun, "cell", _part_of)
    found.wrap(kernel_run.KernelRun, "_open", "load and construct")
    return found


PARTS = ("changed shapes", "declared shapes", "official protocols")


def _part_of(_: kernel_run.KernelRun, question: cell.Question, *rest: Any) -> str:
    if question.measured is None:
        return PARTS[2]
    return PARTS[1] if question.entry.declared_shape else PARTS[0]


def _run_name(
    _: ChildSession, inputs: Sequence[Any], specs: Any, seed: int, variant: dict[str, Any], *rest: Any, **more: Any
) -> str:
    """Which kind of run: the race check sees every access, the plain one stands in for a GPU and keeps time."""
    kind = "race check" if variant.get("races") else "plain" if variant in ({}, PLAIN_VARIANT.to_json()) else "strict"
    size = sum(t.numel() * t.element_size() for t in inputs if isinstance(t, torch.Tensor))
    return f"run, {kind}, {'small' if size <= SMALL else 'large'} inputs"


def prepare(run: Run, evaluator: evaluate.Evaluator) -> list[tuple[Work, Substrate, list[Mutant]]]:
    """Pools of all problems, the first mutants of every substrate, and warm truths."""
    pools = Pools(run)
    found = []
    for target, pool in pools.build():
        pools.remember(pool)
        id = run.matrix.add_problem(target.problem.id, target.problem.hash)
        work = Work(target, id, pool, questions_of(run, id, pool))
        used = run.options.used(target)
        if not evaluator.on_gpu:
            warm(evaluator, work, used[0])
        for substrate in used:
            made = ordered([m for m in generate(substrate) if m.family != "interaction"])
            found.append((work, substrate, made[: run.options.per_substrate]))
    return found


def warm(evaluator: evaluate.Evaluator, work: Work, substrate: Substrate) -> None:
    """Every draw and truth that a mutant of a problem may need."""
    questions = [a.question for a in work.questions.pool]
    questions += [a.question for group in work.questions.official for a in group.asked]
    with evaluator.open(substrate.source + FORCED_FAILURE, substrate.backend, work.target.problem) as kernel:
        for question in questions:
            kernel.cell(question, cell.SEEDS)


def unseen(source: str) -> str:
    """The same mutant in other words, so that no build of it is kept anywhere."""
    tag = secrets.token_hex(8)
    return source.replace("#include <torch/extension.h>", f"// {tag}\n#include <torch/extension.h>") + f"\n# {tag}\n"


def rows(run: Run, prepared: list[tuple[Work, Substrate, list[Mutant]]]) -> list[list[tuple[Work, int, Mutant]]]:
    """The mutants of each substrate with their ids in the matrix."""
    found: list[list[tuple[Work, int, Mutant]]] = []
    for work, s, mutants in prepared:
        row = SubstrateRow(s.hash, s.name, s.backend, s.style, work.problem_id, "admitted")
        substrate = run.matrix.add_substrate(row)
        ids = run.matrix.add_mutants(
            [MutantRow(m.id, substrate, m.operator, m.family, m.line, m.detail, "ready") for m in mutants]
        )
        found.append([(work, id, replace(m, source=unseen(m.source))) for id, m in zip(ids, mutants, strict=True)])
    return found


def in_turns(found: list[list[tuple[Work, int, Mutant]]]) -> list[tuple[Work, int, Mutant]]:
    """Substrates take turns."""
    return [own[i] for i in range(max(map(len, found), default=0)) for own in found if i < len(own)]


_watched: tuple[Stopwatch, Stopwatch] | None = None


def _begin(evaluator: evaluate.Evaluator, kernels: list[tuple[Work, Substrate]]) -> None:
    """In a lane's process: truths of what it is going to measure, and a stopwatch."""
    global _watched
    for work, substrate in kernels:
        warm(evaluator, work, substrate)
    _watched = watch(), watch_parts()


def _spent(_: evaluate.Evaluator) -> tuple[Stopwatch, Stopwatch]:
    assert _watched is not None
    return _watched


def measure(
    run: Run, evaluator: evaluate.Evaluator, prepared: list[tuple[Work, Substrate, list[Mutant]]], limit: float
) -> dict[str, Any]:
    """Fill the rows, and begin none after that many seconds; what was seen."""
    todo, workers, apart = rows(run, prepared), run.options.workers, evaluator.on_gpu
    environments = {
        backend: run.matrix.add_environment(evaluate.environment(evaluator, backend))
        for backend in {s.backend for _, s, _ in prepared}
    }
    own = [in_turns(todo[lane::workers]) if apart else [] for lane in range(workers)]
    everything = iter(in_turns(todo))
    classes: Counter[str] = Counter()
    draws = broken = begun = 0
    lock = threading.Lock()

    def one(lane: int, item: tuple[Work, int, Mutant]) -> None:
        nonlocal draws, broken, begun
        work, id, mutant = item
        asked, environment = work.questions, environments[mutant.backend]
        found = lanes.run(lane, measure_mutant, work.target.problem, mutant, asked.pool, asked.official)
        run.matrix.put_row(
            id,
            environment,
            "benchmark",
            [
                Cell(id, entry, environment, c.variant, c.seeds, c.cls, c.errs, c.margin, c.seconds)
                for entry, c in found.cells
            ],
        )
        with lock:
            classes.update(c.cls for _, c in found.cells)
            draws += sum(c.seeds for _, c in found.cells)
            broken += bool(found.broken)
            begun += 1

    def take() -> tuple[Work, int, Mutant] | None:
        with lock:
            return next(everything, None)

    def lane_of(lane: int) -> float:  # seconds
        # on a GPU what was drawn is kept in the lane that drew it
        for item in own[lane] if apart else iter(take, None):
            one(lane, item)
            if time.perf_counter() - started > limit:
                break
        return time.perf_counter() - started

    with Lanes(evaluator, workers, apart) as lanes, ThreadPoolExecutor(workers) as executor:
        if apart:
            kernels = [[(work, s) for work, s, _ in prepared[lane::workers]] for lane in range(workers)]
            list(executor.map(lambda lane: lanes.run(lane, _begin, kernels[lane]), range(workers)))
            say("lanes are warm")
        watched, parts, started = watch(), watch_parts(), time.perf_counter()
        busy = sum(executor.map(lane_of, range(workers)))
        seconds = time.perf_counter() - started
        say("measured")
        for lane in range(workers) if apart else ():
            for total, seen in zip((watched, parts), lanes.run(lane, _spent), strict=True):
                total.add(seen)
    cells = sum(classes.values())
    phases = dict(sorted(watched.seconds.items(), key=lambda item: -item[1]))
    compiling = watched.seconds["load (compile)"]
    return {
        "evaluations": cells,
        "seconds": round(seconds, 2),
        "per_second": round(workers * cells / busy, 1),
        "per_second_beside_compiling": round(workers * cells / max(1e-9, busy - compiling), 1),
        "draws": draws,
        "mutants": begun,
        "broken": broken,
        "classes": dict(classes.most_common()),
        "phases": {
            name: {"seconds": round(spent, 2), "calls": watched.calls[name], "share": round(spent / busy, 4)}
            for name, spent in phases.items()
        },
        "parts": {
            name: {
                "evaluations": parts.calls[name],
                "seconds": round(parts.seconds[name], 2),
                "per_second": round(workers * parts.calls[name] / parts.seconds[name], 1),
            }
            for name in PARTS
            if parts.calls[name]
        },
        "elsewhere": round(1 - sum(phases.values()) / busy, 4),
    }


_BEGAN = time.perf_counter()


def say(what: str) -> None:
    """Where a long run is."""
    print(f"{time.perf_counter() - _BEGAN:.0f} s: {what}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--problem", action="append", help="id of a problem; repeat")
    parser.add_argument("--problems", type=Path, default=PROBLEMS, help="folder of problems")
    parser.add_argument("--backend", action="append", help="cuda (the default) or triton; repeat")
    parser.add_argument("--per-substrate", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no mutant begins after so many")
    parser.add_argument("--out", type=Path, help="folder that keeps what the gate says; left out, nothing is kept")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = resolve_device(options.device)
    workers = options.workers or (8 if device.startswith("cuda") else 2)
    torch.set_num_threads(1)
    targets = tuple(find_targets([options.problems], options.problem or DEFAULT))
    with tempfile.TemporaryDirectory() as folder:
        how = CalibrateOptions(
            targets,
            options.out or Path(folder),
            device=device,
            workers=workers,
            backends=tuple(options.backend or ("cuda",)),
            per_substrate=options.per_substrate,
        )
        with Matrix(how.matrix_path) as matrix, evaluate.Evaluator(device) as evaluator:
            run = Run(how, matrix, lambda *_: None, Budget(how.budget_s))
            started = time.perf_counter()
            prepared = prepare(run, evaluator)
            ready = time.perf_counter() - started
            say("the gate has answered")
            found = measure(run, evaluator, prepared, options.seconds)
    name = torch.cuda.get_device_name(0) if evaluator.on_gpu else platform.machine()
    cores = len(os.sched_getaffinity(0))
    found |= {
        "device": name,
        "cores": cores,
        "workers": workers,
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "problems": [t.problem.id for t in targets],
        "substrates": len(prepared),
        "prepared_s": round(ready, 1),
        "goal": GOAL[how.device_class],
    }
    show(found)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def show(found: dict[str, Any]) -> None:
    """Print the figures."""
    console = Console(soft_wrap=True)
    console.print(
        f"{found['device']}, {found['cores']} cores (load {found['load']}), Python {found['python']}, torch "
        f"{found['torch']}; {found['workers']} workers; gate and truths took {found['prepared_s']} s",
        highlight=False,
    )
    console.print(
        f"{found['evaluations']} evaluations of {found['mutants']} mutants ({found['substrates']} substrates of "
        f"{len(found['problems'])} problems) in {found['seconds']} s: {found['per_second']} a second (goal "
        f"{found['goal']}), {found['per_second_beside_compiling']} beside compiling; "
        f"{found['draws']} draws; {', '.join(f'{n} {c}' for c, n in found['classes'].items())}; "
        f"{found['broken']} rows ended early",
        highlight=False,
    )
    table = Table("of these, with all workers at it", "evaluations", "a second")
    for name, part in found["parts"].items():
        table.add_row(name, str(part["evaluations"]), str(part["per_second"]))
    console.print(table)
    table = Table("where the workers' time goes", "share", "seconds", "calls", "ms a call")
    for name, phase in found["phases"].items():
        each = 1000 * phase["seconds"] / phase["calls"]
        table.add_row(name, f"{phase['share']:.1%}", f"{phase['seconds']:.1f}", str(phase["calls"]), f"{each:.1f}")
    table.add_row("elsewhere", f"{found['elsewhere']:.1%}", "", "", "")
    console.print(table)


if __name__ == "__main__":
    main()
