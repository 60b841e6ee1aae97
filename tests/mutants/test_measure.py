"""Which cells of a mutant's row are filled."""

from collections.abc import Iterator

import pytest
from kernelward.mutants.cell import SEEDS, Question
from kernelward.mutants.evaluate import Evaluator
from kernelward.mutants.measure import SAMPLE, WITNESSES, Asked, Known, Official, in_sample, measure_mutant
from kernelward.mutants.mutant import Mutant
from kernelward.suites.entry import Entry
from kernelward.suites.problem import Problem, problem_from_source
from kernelward.suites.validity import Measured, admit

PROBLEM = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)
rows = 8
def get_inputs():
    return [torch.randn(rows, 33)]
def get_init_inputs():
    return []
"""
KERNEL = """
import torch
class ModelNew(torch.nn.Module):
    def forward(self, x):
        return {}
"""
RIGHT, WRONG = "torch.relu(x)", "x"
SMALL, LARGE = Entry.make("normal", constants={"rows": 9}), Entry.make("normal")
OFFICIAL = tuple(Entry.make("own", draw=i) for i in range(2))
SAMPLED = next(str(i) for i in range(100) if in_sample(str(i)))
OTHER = next(str(i) for i in range(100) if not in_sample(str(i)))


@pytest.fixture(scope="module")
def running() -> Iterator[Evaluator]:
    """One evaluator for all tests."""
    with Evaluator() as made:
        yield made


@pytest.fixture(scope="module")
def problem() -> Problem:
    return problem_from_source(PROBLEM, "relu")


def asked_of(running: Evaluator, problem: Problem, id: str, answer: str, costly: bool = True) -> dict[int, int]:
    """Draws by the entry's row id: 1 small, 2 large, 10 and 11 official."""

    def measured(entry: Entry) -> Measured | None:
        return admit(problem, entry, seeds=2).measured

    pool = (Asked(2, Question(LARGE, measured(LARGE)), costly), Asked(1, Question(SMALL, measured(SMALL))))
    official = Official(tuple(Asked(10 + i, Question(e, None, "plain"), costly) for i, e in enumerate(OFFICIAL)), 1e-2)
    mutant = Mutant(id, "s", "h", "relu", "torch", "operator", "semantic", 1, "", KERNEL.format(answer))
    found = measure_mutant(running, problem, mutant, pool, (official,))
    assert not found.broken
    return {entry: cell.seeds for entry, cell in found.cells}


@pytest.mark.parametrize(
    ("id", "answer", "expected"),
    [
        (SAMPLED, WRONG, {1: SEEDS, 2: SEEDS, 10: 1}),
        (SAMPLED, RIGHT, {1: 1, 2: 1, 10: 1, 11: 1}),
        (OTHER, WRONG, {1: SEEDS}),
        (OTHER, RIGHT, {1: 1, 2: 1}),
    ],
)
def test_costly_entries_are_for_a_sample_and_for_what_nothing_cheaper_shows(
    running: Evaluator, problem: Problem, id: str, answer: str, expected: dict[int, int]
) -> None:
    assert asked_of(running, problem, id, answer) == expected


def test_what_a_stored_cell_shows_counts_as_well(running: Evaluator, problem: Problem) -> None:
    pool = (Asked(2, Question(LARGE, admit(problem, LARGE, seeds=2).measured), costly=True),)
    mutant = Mutant(OTHER, "s", "h", "relu", "torch", "operator", "semantic", 1, "", KERNEL.format(WRONG))
    assert measure_mutant(running, problem, mutant, pool, (), Known({(1, "strict")}, shown=True)).cells == ()
    assert len(measure_mutant(running, problem, mutant, pool, (), Known({(1, "strict")})).cells) == 1


def test_where_nothing_is_costly_every_mutant_is_put_to_everything(running: Evaluator, problem: Problem) -> None:
    assert asked_of(running, problem, OTHER, WRONG, costly=False) == {1: SEEDS, 2: SEEDS, 10: 1}


def test_the_sample_is_one_in_so_many() -> None:
    taken = sum(in_sample(f"{i:016x}") for i in range(4000))
    assert 4000 / SAMPLE * 0.9 < taken < 4000 / SAMPLE * 1.1


ENDS = "(__import__('os')._exit(7) if {} else torch.relu(x))"


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ("True", {"normal 9": 3, "normal": 1}),
        ("len(x) == 9", {"normal 9": 3, "normal": 1, "own": 1, "spiky": 1}),
        (
            "len(x) == 9 and x.abs().max() > 8",
            {"normal 9": 1, "own 9": 1, "spiky 9": 3, "negative 9": 1, "normal": 1, "own": 1, "spiky": 1},
        ),
    ],
    ids=["everywhere", "at one shape", "by its data"],
)
def test_a_kernel_that_ends_processes_is_put_to_a_dense_entry_of_a_shape_and_to_more_where_that_does_not_show_it(
    problem: Problem, monkeypatch: pytest.MonkeyPatch, when: str, expected: dict[str, int]
) -> None:
    recipes = [(name, rows) for rows in (9, 8) for name in ("spiky", "normal", "own", "negative")][:-1]
    names = [name if rows == 8 else f"{name} {rows}" for name, rows in recipes]
    entries = [Entry.make(name, constants={} if rows == 8 else {"rows": rows}) for name, rows in recipes]
    pool = [Asked(i, Question(e, admit(problem, e, seeds=2).measured)) for i, e in enumerate(entries)]
    mutant = Mutant("m", "s", "h", "relu", "torch", "operator", "semantic", 1, "", KERNEL.format(ENDS.format(when)))
    with Evaluator() as evaluator:
        everything = measure_mutant(evaluator, problem, mutant, pool, ()).cells
        monkeypatch.setattr(evaluator, "on_gpu", True)  # there a process that ends is costly
        found = measure_mutant(evaluator, problem, mutant, pool, ())
    assert not found.broken
    assert {names[i]: cell.seeds for i, cell in found.cells} == expected
    assert len(everything) == (len(pool) if "abs" in when else 3)  # elsewhere a row ends where it died too often


def test_of_a_mutant_that_many_entries_show_one_draw_decides_the_others(running: Evaluator, problem: Problem) -> None:
    entries = [Entry.make("normal", constants={"rows": rows}) for rows in range(2, 5 + WITNESSES)]
    pool = [Asked(i, Question(e, admit(problem, e, seeds=2).measured)) for i, e in enumerate(entries)]
    seeds = {}
    for answer in (WRONG, RIGHT, f"{WRONG} if len(x) % 2 else {RIGHT}", f"{RIGHT} * 1.0001"):
        mutant = Mutant("m", "s", "h", "relu", "torch", "operator", "semantic", 1, "", KERNEL.format(answer))
        seeds[answer] = [cell.seeds for _, cell in measure_mutant(running, problem, mutant, pool, ()).cells]
    everywhere, nowhere, odd, slight = seeds.values()
    assert everywhere == [SEEDS] * WITNESSES + [1] * (len(pool) - WITNESSES)
    assert nowhere == [1] * len(pool)
    assert odd == [SEEDS if e.constants[0][1] % 2 else 1 for e in entries]
    assert slight == [SEEDS] * len(pool)  # who counts at the official tolerance has no witness yet


@pytest.mark.parametrize(
    ("done", "crashes", "asked"),
    [
        ((), (), [0]),
        ((0,), (), [1, 2]),  # of what is there nothing is said
        ((0,), (0,), []),
        ((1,), (1,), [0]),  # not a dense one
        ((0, 1), (0,), [2]),  # one of the shape does not crash it
    ],
)
def test_entries_are_left_out_only_where_a_dense_one_is_known_to_crash_it(
    problem: Problem,
    monkeypatch: pytest.MonkeyPatch,
    done: tuple[int, ...],
    crashes: tuple[int, ...],
    asked: list[int],
) -> None:
    entries = [Entry.make(name) for name in ("normal", "spiky", "negative")]
    pool = [Asked(i, Question(e, admit(problem, e, seeds=2).measured)) for i, e in enumerate(entries)]
    mutant = Mutant("m", "s", "h", "relu", "torch", "operator", "semantic", 1, "", KERNEL.format(ENDS.format("True")))
    with Evaluator() as evaluator:
        monkeypatch.setattr(evaluator, "on_gpu", True)
        there = [(id, "strict") for id in done]
        found = measure_mutant(evaluator, problem, mutant, pool, (), Known(there, crashes=crashes))
    assert [i for i, _ in found.cells] == asked


ADDING = """
import torch
from torch.utils.cpp_extension import load_inline
cuda = r'''
#include <torch/extension.h>
__global__ void add_up(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) ADD
}
torch::Tensor total(torch::Tensor x) {
    auto y = torch::zeros({1}, x.options());
    int n = x.numel();
    add_up<<<(n + 63) / 64, 64>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
    return y;
}
'''
module = load_inline(name="adds", cpp_sources="torch::Tensor total(torch::Tensor x);", cuda_sources=cuda,
                     functions=["total"])
class ModelNew(torch.nn.Module):
    def forward(self, x):
        return module.total(x)
"""


JUMPING = "{ __shared__ float s[32]; float* volatile p = s; p[100 + threadIdx.x] = x[i]; atomicAdd(y, x[i]); }"


@pytest.mark.parametrize(
    ("add", "known", "expected"),
    [
        ("y[0] += x[i];", None, ["pass", "race", "race"]),
        ("y[0] += x[i];", Known(races=True), ["race", "race", "race"]),
        ("atomicAdd(y, x[i]);", None, ["pass", "pass", "pass"]),
        ("atomicAdd(y, x[i]);", Known(races=True), ["pass", "pass", "pass"]),
        (JUMPING, None, ["pass", "crash", "crash"]),  # the race check alone sees it
    ],
    ids=["racing", "racing, as is known", "atomic", "atomic, said to race", "writing beyond a guard zone"],
)
def test_once_a_race_is_seen_every_later_entry_is_asked_for_it(
    running: Evaluator, add: str, known: Known | None, expected: list[str]
) -> None:
    total = problem_from_source(PROBLEM.replace("torch.relu(x)", "x.sum().reshape(1)"), "total")
    asked = [(Entry.make("normal", constants={"rows": 5}), False), (Entry.make("normal"), True), (Entry(), False)]
    pool = [Asked(i, Question(e, admit(total, e, seeds=2).measured, races=r)) for i, (e, r) in enumerate(asked)]
    mutant = Mutant("m", "s", "h", "total", "cuda", "operator", "synchronization", 1, "", ADDING.replace("ADD", add))
    found = measure_mutant(running, total, mutant, pool, (), known)
    assert not found.broken
    assert [cell.cls for _, cell in found.cells] == expected


OVERRUN = """
ran = []
class Narrow(torch.nn.Module):
    def forward(self, x):
        if ran:
            raise RuntimeError("this process has overrun its memory before")
        ran.append(1)
        return module.total(x)
ModelNew = Narrow
"""


def test_a_process_that_overran_shared_memory_is_asked_nothing_more(running: Evaluator) -> None:
    total = problem_from_source(PROBLEM.replace("torch.relu(x)", "x.sum().reshape(1)"), "total")
    entries = [Entry.make("normal", constants={"rows": rows}) for rows in (5, 6)]
    pool = [Asked(i, Question(e, admit(total, e, seeds=2).measured)) for i, e in enumerate(entries)]
    add = "{ __shared__ float s[32]; s[threadIdx.x] = x[i]; atomicAdd(y, s[threadIdx.x]); }"
    mutant = Mutant("m", "s", "h", "total", "cuda", "o", "memory", 1, "", ADDING.replace("ADD", add) + OVERRUN)
    found = measure_mutant(running, total, mutant, pool, ())
    assert [(cell.cls, cell.seeds) for _, cell in found.cells] == [("crash", SEEDS)] * 2
    assert all("shared-out-of-bounds" in cell.detail for _, cell in found.cells)
