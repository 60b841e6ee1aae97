"""One judge for all tests that need one, and the problems they use."""

import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kernelward.reward.client import JudgeClient
from kernelward.reward.task import JudgeConfig, Task
from kernelward.suites.entry import Entry
from kernelward.suites.problem import Problem, find_problem, problem_from_source
from kernelward.suites.suite import Suite, SuiteEntry
from kernelward.suites.validity import admit

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"

TINY_RELU = """
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

CANDIDATE = """
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        {body}
"""


def pytest_configure() -> None:
    """An example's own time says nothing on a machine that does other work as well; a test as a whole has its limit."""
    if importlib.util.find_spec("hypothesis") is not None:  # GPU tests run without it
        from hypothesis import HealthCheck, settings

        settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
        settings.load_profile("tests")


@pytest.fixture(scope="session", autouse=True)
def _bank_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kernels that tests have accepted do not go into the user's bank."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELWARD_BANK", str(tmp_path_factory.mktemp("bank") / "bank.sqlite"))
        yield


@pytest.fixture(scope="session", autouse=True)
def _temporary_folder_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What lies there after a test is of this process alone: several processes test at once."""
    folder = str(tmp_path_factory.mktemp("tmp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(scope="session")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeClient]:
    """A judge with two workers and short limits."""
    limits = (("build_s", 20.0), ("load_s", 20.0), ("run_s", 10.0))
    cache = str(tmp_path_factory.mktemp("suites"))
    with JudgeClient(JudgeConfig(workers=2, threads=1, limits=limits, suite_cache=cache)) as client:
        yield client


@pytest.fixture(scope="session")
def tiny_relu() -> Problem:
    """ReLU on 8 x 32 signed numbers."""
    return problem_from_source(TINY_RELU, "tiny_relu")


@pytest.fixture(scope="session")
def example() -> Callable[[str], Problem]:
    """A problem of examples/problems by name."""
    return lambda name: find_problem(str(EXAMPLES / "problems" / f"{name}.py"))


@pytest.fixture(scope="session")
def candidate() -> Callable[[str], str]:
    """A torch candidate whose forward(x) has this body."""
    return lambda body: CANDIDATE.format(body=body.replace("\n", "\n        "))


@pytest.fixture(scope="session")
def quick(tiny_relu: Problem, candidate: Callable[[str], str]) -> Callable[..., Task]:
    """A task that takes a judge a few milliseconds: a forward on the tiny ReLU under the protocol `kernelbench`."""

    def make(body: str = "return torch.relu(x)", protocol: str = "kernelbench", **rest: object) -> Task:
        return Task(candidate(body), tiny_relu, protocol, run_key=b"tests", **rest)  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def small_suite() -> Callable[[Problem, dict[str, int]], Suite]:
    """A suite of two entries: the problem's own draw as declared, and with some constants changed."""
    made: dict[str, Suite] = {}

    def measured(problem: Problem, entry: Entry, twin: str | None = None) -> SuiteEntry:
        admission = admit(problem, entry, "cpu", seeds=2)
        assert admission.measured is not None, admission
        return SuiteEntry(entry, (admission.measured,), twin)

    def make(problem: Problem, constants: dict[str, int]) -> Suite:
        key = f"{problem.hash} {sorted(constants.items())}"
        if key not in made:
            declared = Entry.make("own")
            entries = [measured(problem, declared)]
            if constants:
                entries.append(measured(problem, Entry.make("own", constants=constants), declared.id))
            made[key] = Suite(problem.id, problem.hash, tuple(entries))
        return made[key]

    return make
