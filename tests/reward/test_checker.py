"""The judge in this process: order, seeds, budgets, refusals, faults of ours, through the real sandbox."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kernelward.reward.checker import Checker
from kernelward.reward.plan import STATE_FACTOR
from kernelward.reward.sandbox.failure import ChildFailure
from kernelward.reward.sandbox.session import Zygote
from kernelward.reward.task import JudgeConfig, Task
from kernelward.reward.truth_cache import Reference
from kernelward.reward.verdict import Outcome, Verdict
from kernelward.suites import validity
from kernelward.suites.entry import Entry
from kernelward.suites.errors import InputError
from kernelward.suites.hashing import derive_seed
from kernelward.suites.oracle import OracleError
from kernelward.suites.problem import Problem, problem_from_source
from kernelward.suites.suite import Suite, SuiteEntry
from kernelward.suites.validity import admit

RIGHT = "return torch.relu(x)"
RAGGED = {"ROWS": 5, "COLUMNS": 37}

LINEAR = """
import torch


class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc = torch.nn.Linear(width, 3)

    def forward(self, x):
        return self.fc(x)


WIDTH = 8


def get_inputs():
    return [torch.rand(4, WIDTH)]


def get_init_inputs():
    return [WIDTH]
"""


@pytest.fixture(scope="module")
def checker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checker]:
    cache = str(tmp_path_factory.mktemp("suites"))
    limits = (("build_s", 10.0), ("load_s", 10.0), ("run_s", 10.0))
    with Checker(JudgeConfig(threads=1, limits=limits, suite_cache=cache)) as running:
        yield running


@pytest.fixture
def ask(
    checker: Checker, tiny_relu: Problem, small_suite: Callable[..., Suite], candidate: Callable[[str], str]
) -> Callable[..., Verdict]:
    """Judge a forward on the tiny ReLU, by the suite of its declared and a ragged shape."""

    def judge(body: str = RIGHT, **rest: object) -> Verdict:
        values: dict[str, object] = {"suite": small_suite(tiny_relu, RAGGED), "run_key": b"key"} | rest
        return checker.judge(Task(candidate(body), tiny_relu, **values))  # type: ignore[arg-type]

    return judge


def test_a_verdict_says_what_was_judged_and_where_the_time_went(
    ask: Callable[..., Verdict], tiny_relu: Problem, small_suite: Callable[..., Suite]
) -> None:
    verdict = ask()
    assert verdict.verdict is Outcome.CORRECT
    assert (verdict.problem, verdict.problem_hash) == ("tiny_relu", tiny_relu.hash)
    assert (verdict.protocol, verdict.backend, verdict.engine, verdict.device) == (
        "kernelward",
        "torch",
        "torch",
        "cpu",
    )
    assert small_suite(tiny_relu, RAGGED).hash.startswith(verdict.suite)
    assert {"screen", "plan", "truth", "spawn", "load", "build", "run", "compare", "close"} == set(verdict.phases)
    beside_loading = {"truth"}
    assert sum(s for phase, s in verdict.phases.items() if phase not in beside_loading) <= verdict.seconds + 1e-3
    assert len(verdict.candidate) == 64
    json.dumps(verdict.to_json(), allow_nan=False)


def test_the_child_is_loaded_while_truth_is_computed(
    tiny_relu: Problem, small_suite: Callable[..., Suite], candidate: Callable[[str], str], tmp_path: Path
) -> None:
    begun = threading.Event()

    class Watched(Checker):
        def zygote(self, mode: str) -> Zygote:
            begun.set()
            return super().zygote(mode)

        def reference(self, *asked: Any, **how: Any) -> Reference:
            assert begun.wait(20), "no child is being made yet"
            return super().reference(*asked, **how)

    task = Task(candidate(RIGHT), tiny_relu, suite=small_suite(tiny_relu, RAGGED), run_key=b"key")
    with Watched(JudgeConfig(threads=1, suite_cache=str(tmp_path))) as judge:
        assert judge.judge(task).verdict is Outcome.CORRECT


def test_entries_run_cheapest_first(ask: Callable[..., Verdict]) -> None:
    ragged = Entry.make("own", constants=RAGGED).id
    assert [e.entry for e in ask().entries] == [ragged, Entry().id]


def test_judging_stops_at_the_first_failure_unless_all_entries_are_wanted(ask: Callable[..., Verdict]) -> None:
    assert len(ask("return x").entries) == 1
    verdict = ask("return x", all_entries=True)
    assert [e.outcome for e in verdict.entries] == [Outcome.INCORRECT] * 2
    assert verdict.entry == verdict.entries[0].entry


def test_all_entries_are_judged_even_behind_one_that_kills_the_child(ask: Callable[..., Verdict]) -> None:
    verdict = ask("if x.shape[0] == 5:\n    import os\n    os.abort()\nreturn torch.relu(x)", all_entries=True)
    assert (verdict.verdict, verdict.reason) == (Outcome.RUNTIME_ERROR, "abort")
    assert [e.outcome for e in verdict.entries] == [Outcome.RUNTIME_ERROR, Outcome.CORRECT]


def test_seeds_are_secret_rotate_with_the_epoch_and_are_recorded(
    ask: Callable[..., Verdict], tiny_relu: Problem
) -> None:
    first = ask().entries[0]
    assert first.seed == derive_seed(b"key", tiny_relu.hash, first.entry, 0)
    assert ask(epoch=1).entries[0].seed == derive_seed(b"key", tiny_relu.hash, first.entry, 1)
    assert ask(run_key=b"other").entries[0].seed not in (first.seed, None)


def test_a_seed_and_an_entry_replay_one_draw(ask: Callable[..., Verdict]) -> None:
    wrong = "return torch.relu(x).bfloat16().float()"
    verdict = ask(wrong)
    again = ask(wrong, run_key=b"other", only_entry=verdict.entry, seed=verdict.seed)
    assert again.err == verdict.err
    assert len(again.entries) == 1
    other = ask(wrong, only_entry=verdict.entry, seed=(verdict.seed or 0) + 1)
    assert other.err != verdict.err


def test_an_unknown_entry_and_a_foreign_suite_are_the_users_errors(
    ask: Callable[..., Verdict], tiny_relu: Problem, small_suite: Callable[..., Suite]
) -> None:
    with pytest.raises(InputError, match="no entry 'nope'"):
        ask(only_entry="nope")
    foreign = replace(small_suite(tiny_relu, RAGGED), problem_hash="0" * 64)
    with pytest.raises(InputError, match="build it again"):
        ask(suite=foreign)


def test_a_memory_budget_leaves_out_what_does_not_fit_and_says_what_is_missing(
    tiny_relu: Problem, small_suite: Callable[..., Suite], candidate: Callable[[str], str]
) -> None:
    suite = small_suite(tiny_relu, RAGGED)
    sizes = sorted(e.measured[0].bytes for e in suite.entries)
    task = Task(candidate(RIGHT), tiny_relu, "kernelward", suite)
    with Checker(JudgeConfig(memory_bytes=STATE_FACTOR * sizes[0] + 100)) as small:
        verdict = small.judge(task)
        assert verdict.verdict is Outcome.CORRECT
        assert len(verdict.entries) == 1
        assert any("left out" in note for note in verdict.notes)
    with Checker(JudgeConfig(memory_bytes=1000)) as tiny:
        verdict = tiny.judge(task)
        assert (verdict.verdict, verdict.reason) == (Outcome.INFRA_ERROR, "out-of-memory")
        assert "more memory is needed" in verdict.message


def test_parameters_come_from_the_reference_by_name(checker: Checker, small_suite: Callable[..., Suite]) -> None:
    problem = problem_from_source(LINEAR, "linear")
    by_name = LINEAR.replace("class Model(", "class ModelNew(")
    prepared = by_name.replace("return self.fc(x)", "return x @ self.t + self.fc.bias").replace(
        "self.fc = torch.nn.Linear(width, 3)",
        "self.fc = torch.nn.Linear(width, 3)\n        self.t = self.fc.weight.detach().t().contiguous()",
    )
    own = by_name.replace("self.fc", "self.other")
    reinitialised = by_name.replace(
        "Linear(width, 3)", "Linear(width, 3)\n        torch.nn.init.zeros_(self.fc.weight)"
    )
    for source in (by_name, prepared, own, reinitialised):
        verdict = checker.judge(Task(source, problem, "kernelward", small_suite(problem, {"WIDTH": 13}), b"key"))
        assert verdict.verdict is Outcome.CORRECT, (source, verdict)


def test_half_precision_entries_are_judged_in_half_precision(
    checker: Checker, tiny_relu: Problem, candidate: Callable[[str], str]
) -> None:
    entry = Entry.make(dtype="float16")
    measured = admit(tiny_relu, entry, "cpu", seeds=2).measured
    assert measured is not None
    suite = Suite("tiny_relu", tiny_relu.hash, (SuiteEntry(entry, (measured,)),))
    right, wrong = (
        checker.judge(Task(candidate(body), tiny_relu, "kernelward", suite))
        for body in ("assert x.dtype is torch.float16\nreturn torch.relu(x)", "return torch.relu(x).float()")
    )
    assert right.verdict is Outcome.CORRECT, right
    assert (wrong.verdict, wrong.reason) == (Outcome.INCORRECT, "dtype")


def test_draws_that_the_reference_itself_cannot_answer_are_not_held_against_a_candidate(
    checker: Checker, candidate: Callable[[str], str], small_suite: Callable[..., Suite]
) -> None:
    problem = problem_from_source(LINEAR, "linear")
    suite = small_suite(problem, {})
    strict = tuple(
        replace(e, measured=tuple(replace(m, tolerance=(1e-15,)) for m in e.measured)) for e in suite.entries
    )
    source = LINEAR.replace("class Model(", "class ModelNew(")
    verdict = checker.judge(Task(source, problem, "kernelward", replace(suite, entries=strict)))
    assert (verdict.verdict, verdict.reason) == (Outcome.UNREFEREEABLE, "unlucky-draw")


UNEVEN = """
import torch
class Model(torch.nn.Module):
    def forward(self, x, s):
        return (x + s) - s
def get_inputs():
    return [torch.rand(65, 33), torch.tensor(1e5 if torch.rand(()) < 0.3 else 1.0)]
def get_init_inputs():
    return []
"""


def test_a_draw_worse_conditioned_than_the_measured_ones_is_drawn_again(
    checker: Checker, small_suite: Callable[..., Suite]
) -> None:
    """Honest candidates differ by more than the tolerance where a draw cancels more than the gate has seen."""
    problem = problem_from_source(UNEVEN, "uneven")
    suite = small_suite(problem_from_source(UNEVEN.replace("1e5", "1.0"), "calm"), {})
    calm = tuple(replace(e, measured=tuple(replace(m, tolerance=(6e-3,)) for m in e.measured)) for e in suite.entries)
    suite = replace(suite, problem_id=problem.id, problem_hash=problem.hash)
    source = UNEVEN.replace("class Model(", "class ModelNew(").replace("(x + s) - s", "(x + 8 * s) - 8 * s")
    verdicts = [
        checker.judge(Task(source, problem, "kernelward", replace(suite, entries=calm), b"key", epoch=epoch))
        for epoch in range(8)
    ]
    assert {v.verdict for v in verdicts} == {Outcome.CORRECT}, [v.message for v in verdicts]


@pytest.mark.parametrize(
    ("broken", "message"),
    [(("torch.randn(", "torch.no_such("), "get_inputs"), (("torch.relu(x)", "x.no_such()"), "Model.forward")],
)
def test_a_broken_problem_is_the_users_error(
    checker: Checker, tiny_relu: Problem, candidate: Callable[[str], str], broken: tuple[str, str], message: str
) -> None:
    problem = problem_from_source(tiny_relu.source.replace(*broken), "broken")
    for protocol in ("kernelbench", "kernelward"):
        with pytest.raises(InputError, match=message):
            checker.judge(Task(candidate(RIGHT), problem, protocol))


def test_a_reference_that_raises_on_some_inputs_is_not_blamed_on_the_candidate(
    checker: Checker, tiny_relu: Problem, candidate: Callable[[str], str]
) -> None:
    raising = "torch.relu(x) if x.is_meta else x.no_such()"
    problem = problem_from_source(tiny_relu.source.replace("torch.relu(x)", raising), "raises")
    verdict = checker.judge(Task(candidate(RIGHT), problem, "kernelbench"))
    assert (verdict.verdict, verdict.reason) == (Outcome.UNREFEREEABLE, "reference-raises")


def test_a_problem_whose_inputs_cannot_be_sent_to_a_child_is_unrefereeable(
    checker: Checker, tiny_relu: Problem, candidate: Callable[[str], str]
) -> None:
    source = tiny_relu.source.replace("(self, x)", "(self, x, y)").replace("COLUMNS)]", "COLUMNS), object()]")
    verdict = checker.judge(Task(candidate(RIGHT), problem_from_source(source, "objects"), "kernelbench"))
    assert (verdict.verdict, verdict.reason) == (Outcome.UNREFEREEABLE, "unsupported-value")


DROPOUT = "torch.nn.functional.dropout(torch.relu(x), 0.5)"


def test_a_problem_whose_entries_found_no_memory_gets_no_verdict_and_no_blame(
    checker: Checker, tiny_relu: Problem, candidate: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OracleError("out-of-memory", "12 GiB")

    monkeypatch.setattr(validity, "compute_truth", full)
    problem = problem_from_source(tiny_relu.source + "\n# crowded\n", "crowded")
    verdict = checker.judge(Task(candidate("return x"), problem, "kernelward"))
    assert (verdict.verdict, verdict.reason) == (Outcome.INFRA_ERROR, "out-of-memory")


def test_a_problem_without_an_admissible_entry_is_unrefereeable(
    checker: Checker, tiny_relu: Problem, candidate: Callable[[str], str]
) -> None:
    problem = problem_from_source(tiny_relu.source.replace("torch.relu(x)", DROPOUT), "random")
    verdict = checker.judge(Task(candidate(RIGHT), problem, "kernelward"))
    assert (verdict.verdict, verdict.reason) == (Outcome.UNREFEREEABLE, "no-admissible-entry")
    assert "random" in verdict.message


def test_a_problem_without_a_suite_gets_the_default_one(
    checker: Checker, tiny_relu: Problem, candidate: Callable[[str], str]
) -> None:
    right = checker.judge(Task(candidate(RIGHT), tiny_relu, "kernelward", run_key=b"key"))
    assert right.verdict is Outcome.CORRECT, right
    assert len(right.entries) >= 2
    again = checker.judge(Task(candidate("return x"), tiny_relu, "kernelward", run_key=b"key"))
    assert again.verdict is Outcome.INCORRECT
    assert again.suite == right.suite
    assert again.phases["plan"] < 0.5


class Flaky(Checker):
    """A judge whose sandbox fails the first times."""

    failures = 0

    def zygote(self, mode: str) -> Zygote:
        if self.failures:
            self.failures -= 1
            raise ChildFailure("infra_error", "zygote", "no process could be made", "spawn")
        return super().zygote(mode)


@pytest.mark.parametrize(("failures", "outcome"), [(1, Outcome.CORRECT), (2, Outcome.INFRA_ERROR)])
def test_a_fault_of_ours_is_tried_once_more_and_never_scored(
    tiny_relu: Problem, candidate: Callable[[str], str], failures: int, outcome: Outcome
) -> None:
    with Flaky(JudgeConfig()) as flaky:
        flaky.failures = failures + 1  # the first request only warms it up
        verdict = flaky.judge(Task(candidate(RIGHT), tiny_relu, "kernelbench"))
    assert verdict.verdict is outcome
    assert verdict.reason == ("" if outcome is Outcome.CORRECT else "zygote")


@pytest.mark.parametrize(
    ("source", "outcome", "reason"),
    [
        ("", Outcome.COMPILE_ERROR, "empty"),
        ("class ModelNew(:", Outcome.COMPILE_ERROR, "syntax"),
        ("import torch", Outcome.COMPILE_ERROR, "no-model-new"),
        ("raise RuntimeError('x')\nclass ModelNew: pass", Outcome.COMPILE_ERROR, "exception"),
        ("class ModelNew:\n    def __init__(self): raise KeyError('x')", Outcome.RUNTIME_ERROR, "exception"),
        ("class ModelNew:\n    def __call__(self, x): raise ValueError('x')", Outcome.RUNTIME_ERROR, "exception"),
        ("class ModelNew:\n    def __call__(self, x): return None", Outcome.INCORRECT, "type"),
        ("class ModelNew:\n    def __call__(self, x): return x.relu()", Outcome.CORRECT, ""),
    ],
)
def test_what_goes_wrong_is_named(
    checker: Checker, tiny_relu: Problem, source: str, outcome: Outcome, reason: str
) -> None:
    verdict = checker.judge(Task(source, tiny_relu, "kernelbench"))
    assert (verdict.verdict, verdict.reason) == (outcome, reason), verdict


def test_the_allclose_protocols_follow_the_official_stream(
    checker: Checker, tiny_relu: Problem, candidate: Callable[[str], str]
) -> None:
    verdict = checker.judge(Task(candidate(RIGHT), tiny_relu, "kernelbench", all_entries=True))
    assert len(verdict.entries) == 5
    assert {e.tolerance for e in verdict.entries} == {0.01}
    in_place = checker.judge(Task(candidate("return x.relu_()"), tiny_relu, "kernelbench"))
    assert in_place.verdict is Outcome.CORRECT  # as there: inputs are not looked at afterwards


@pytest.mark.parametrize(("protocol", "cudnn"), [("kernelbench", True), ("kernelward", False)])
def test_a_candidate_runs_under_the_protocols_tf32_switches(
    checker: Checker,
    tiny_relu: Problem,
    candidate: Callable[[str], str],
    small_suite: Callable[..., Suite],
    protocol: str,
    cudnn: bool,
) -> None:
    body = f"assert torch.backends.cudnn.allow_tf32 is {cudnn}\nreturn torch.relu(x)"
    verdict = checker.judge(Task(candidate(body), tiny_relu, protocol, small_suite(tiny_relu, {})))
    assert verdict.verdict is Outcome.CORRECT, verdict


def test_wrong_limits_are_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="limits"):
        Checker(JudgeConfig(limits=(("no_such_limit", 1.0),)))


def test_a_gpu_that_is_not_there_is_the_users_error() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(InputError, match="no GPU"):
        Checker(JudgeConfig(device="cuda:0"))
