"""A small calibration to watch: a tiny problem, one Triton kernel that runs without a compiler, a pool of few entries.

The pool is put where a first pass would have left it, which takes two seconds and not a minute.
"""

from pathlib import Path

import torch
from kernelward.mutants.calibrate import Calibrator
from kernelward.mutants.calibrate_plan import Target
from kernelward.mutants.calibrate_values import CalibrateOptions
from kernelward.mutants.matrix import Matrix
from kernelward.mutants.pool import asked_pool
from kernelward.suites.entry import Entry
from kernelward.suites.problem import Problem, find_problem
from kernelward.suites.suite import Suite, SuiteEntry
from kernelward.suites.validity import Admission

PROBLEM = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


ROWS = 8
COLUMNS = 32


def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return []
"""

KERNEL = '''"""ReLU, one block of elements a program.

problem: tiny_relu
style: naive
"""

import torch
import triton
import triton.language as tl


@triton.jit
def relu_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n
    x = tl.load(x_ptr + index, mask=mask)
    tl.store(out_ptr + index, tl.where(x > 0.0, x, 0.0), mask=mask)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        relu_kernel[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), BLOCK=64)
        return out
'''

DENSE = Entry.make("normal", constants={"ROWS": 7})
DECLARED = Entry.make("own")
NEW = Entry.make("normal", params={"sigma": 2.0}, constants={"ROWS": 7})


class Watched:
    """Folders to watch.

    Attributes:
        out, problems, substrates, suites: as in `WatchOptions`.
        problem: the problem.
        answers: what the gate says of DENSE, DECLARED and NEW.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.out, self.problems, self.substrates = root / "out", root / "problems", root / "substrates"
        self.suites = self.out / "suites"
        for folder in (self.problems, self.substrates, self.suites):
            folder.mkdir(parents=True)
        (self.problems / "tiny_relu.py").write_text(PROBLEM)
        (self.substrates / "relu.py").write_text(KERNEL)
        self.problem: Problem = find_problem("tiny_relu", self.problems)
        pool = asked_pool(self.problem, torch.device("cpu"), {e.id: e for e in (DENSE, DECLARED, NEW)})
        self.answers: dict[str, Admission] = {a.entry.id: a for a in pool.admissions}
        options = CalibrateOptions((Target(self.problem, ()),), self.out)
        with Matrix(options.matrix_path) as matrix:
            calibrator = Calibrator(options, matrix, lambda *_: None)
            calibrator.remember(asked_pool(self.problem, torch.device("cpu"), {DENSE.id: DENSE, DECLARED.id: DECLARED}))
        self.write_suite(DENSE, DECLARED)

    def suite(self, *entries: Entry, loosened: float = 1.0) -> Suite:
        """A suite of some entries, with their tolerances times a factor."""
        items = []
        for entry in entries:
            measured = self.answers[entry.id].measured
            assert measured is not None
            plain = measured.to_dict() | {"tolerance": [t * loosened for t in measured.tolerance]}
            items.append(SuiteEntry(entry, (type(measured).from_dict(plain),)))
        return Suite(self.problem.id, self.problem.hash, tuple(items))

    def write_suite(self, *entries: Entry, loosened: float = 1.0) -> Suite:
        """Put a suite of some entries into use."""
        suite = self.suite(*entries, loosened=loosened)
        (self.suites / "tiny_relu.yaml").write_text(suite.to_yaml())
        return suite
