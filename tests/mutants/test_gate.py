"""The gate of substrates: a wrong one is found, and nothing is judged twice."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from kernelward.mutants.calibrate_command import run_calibrate
from kernelward.mutants.gate import GateCache, GateCheck, GateResult, describe_gate, gate_substrates
from kernelward.mutants.mutant import Substrate
from kernelward.mutants.substrates import FOLDER, load_substrate
from kernelward.reward.client import JudgeClient
from kernelward.reward.task import JudgeConfig, Task
from kernelward.reward.verdict import Outcome, Verdict
from kernelward.suites.errors import InputError

TINY = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


ROWS = 4
COLUMNS = 33


def get_inputs():
    return [torch.rand(ROWS, COLUMNS)]


def get_init_inputs():
    return []
"""


class Interrupted(Exception):
    pass


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    folder = tmp_path / "problems"
    folder.mkdir()
    (folder / "tiny.py").write_text(TINY)
    return folder


@pytest.fixture(scope="module")
def right() -> Substrate:
    return replace(load_substrate(FOLDER / "cuda" / "relu__vec4.py"), problem="tiny", path=None)


@pytest.fixture
def wrong(right: Substrate) -> Substrate:
    """What unsigned inputs, and so the official protocol, never show."""
    source = right.source.replace("v.y = fmaxf(v.y, 0.0f);", "v.y = fabsf(v.y);")
    assert source != right.source
    return replace(right, name="cuda/relu__wrong", source=source)


def config(tmp_path: Path) -> JudgeConfig:
    return JudgeConfig(workers=1, threads=1, suite_cache=str(tmp_path / "suites"))


def test_a_planted_wrong_substrate_is_quarantined_and_an_interrupted_gate_goes_on(
    tmp_path: Path, problems: Path, right: Substrate, wrong: Substrate, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = replace(right, name="cuda/absent", problem="absent")
    substrates = [wrong, right, absent]
    cache = tmp_path / "gate.sqlite"
    seen: list[tuple[int, int, str]] = []

    def interrupt(done: int, total: int, result: GateResult) -> None:
        raise Interrupted(result.substrate)

    def progress(done: int, total: int, result: GateResult) -> None:
        seen.append((done, total, result.substrate))

    with pytest.raises(Interrupted, match="relu__wrong"):
        gate_substrates([wrong], "cpu", interrupt, problems=[problems], cache=cache, config=config(tmp_path))
    results = gate_substrates(substrates, "cpu", progress, problems=[problems], cache=cache, config=config(tmp_path))

    assert [r.state for r in results] == ["quarantined", "verified", "undecided"]
    assert [r.cached for r in results] == [True, False, False]
    assert sorted(seen) == [(i + 1, 3, seen[i][2]) for i in range(3)]
    first, second, third = results
    assert first.reason.startswith("kernelward: incorrect")
    assert [c.protocol for c in first.checks] == ["kernelward"]
    assert [(c.protocol, c.verdict) for c in second.checks] == [("kernelward", "correct"), ("kernelbench", "correct")]
    assert all(c.engine == "cpu-emulator" and c.seconds > 0 for c in second.checks)
    assert second.checks[1].entries == 5
    assert "no problem 'absent'" in third.reason

    def never(self: JudgeClient, *_: object) -> None:
        raise AssertionError("nothing is left to judge")

    monkeypatch.setattr(JudgeClient, "judge", never)
    monkeypatch.setattr(JudgeClient, "start", never)
    again = gate_substrates(substrates, "cpu", problems=[problems], cache=cache, config=config(tmp_path))
    assert [r.cached for r in again] == [True, True, False]
    assert [replace(r, cached=False) for r in again] == [replace(r, cached=False) for r in results]
    changed = replace(right, source=right.source + "\n")
    with pytest.raises(AssertionError, match="nothing is left"):
        gate_substrates([changed], "cpu", problems=[problems], cache=cache, config=config(tmp_path))


def test_a_fault_of_ours_is_neither_held_against_a_substrate_nor_kept(
    tmp_path: Path, problems: Path, right: Substrate, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = iter([Outcome.INFRA_ERROR, Outcome.UNREFEREEABLE, Outcome.CORRECT, Outcome.INCORRECT])

    def judge(self: JudgeClient, task: Task) -> Verdict:
        assert task.all_entries
        return Verdict(next(outcomes), "because", entry="dense", err=0.5, tolerance=0.25)

    monkeypatch.setattr(JudgeClient, "judge", judge)
    cache = tmp_path / "gate.sqlite"
    states = []
    for _ in range(3):
        (result,) = gate_substrates([right], "cpu", problems=[problems], cache=cache, config=config(tmp_path))
        states.append((result.state, result.reason, result.cached))
    assert states == [
        ("undecided", "kernelward: infra_error (because) at dense: error 0.5 of 0.25", False),
        ("undecided", "kernelward: unrefereeable (because) at dense: error 0.5 of 0.25", False),
        ("quarantined", "kernelbench: incorrect (because) at dense: error 0.5 of 0.25", False),
    ]


def test_a_file_that_is_no_cache_is_the_users_error(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("not a database, and longer than its header of a hundred bytes would be" * 3)
    with pytest.raises(InputError, match=r"notes\.txt"):
        GateCache(file)


def test_the_table_names_every_state_and_counts_them() -> None:
    check = GateCheck("kernelward", Outcome.CORRECT, "", "", "dense", 1e-6, 4e-6, 1, "cpu-emulator", 6, 12.34)
    fine = GateResult("cuda/a", "", "relu", "naive", "verified", "", (check,))
    bad = GateResult("cuda/longer", "", "relu", "naive", "quarantined", "kernelward: incorrect (value)")
    assert describe_gate([fine, bad]) == [
        "cuda/a       verified in 12.3 s, 0.25 of its tolerance at most",
        "cuda/longer  quarantined: kernelward: incorrect (value)",
        "1 verified, 1 quarantined, 0 undecided",
    ]
    assert describe_gate([]) == ["0 verified, 0 quarantined, 0 undecided"]


@pytest.mark.parametrize(
    ("outcomes", "code"), [("CORRECT CORRECT", 0), ("CORRECT INCORRECT", 1), ("INFRA_ERROR CORRECT", 3)]
)
def test_the_command_tells_a_wrong_substrate_from_a_missing_answer(
    tmp_path: Path,
    problems: Path,
    right: Substrate,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    outcomes: str,
    code: int,
) -> None:
    kernels = tmp_path / "kernels"
    kernels.mkdir()
    text = right.source.replace("problem: relu", "problem: tiny")
    (kernels / "a.py").write_text(text)
    (kernels / "b.py").write_text(text + "\n")
    said = dict(zip((text, text + "\n"), outcomes.split(), strict=True))

    def judge(self: JudgeClient, task: Task) -> Verdict:
        return Verdict(Outcome[said[task.candidate]], "because", err=float("inf"), tolerance=0.25)

    monkeypatch.setattr(JudgeClient, "judge", judge)
    named = [str(problems), str(kernels)]  # what the last folder lacks, the first has
    arguments = {"out": tmp_path / "out", "device": "cpu", "substrates": kernels, "gate": True}
    assert run_calibrate(named, as_json=True, **arguments) == code
    shown = json.loads(capsys.readouterr().out)
    found = {s["substrate"]: s["state"] for s in shown["substrates"]}
    assert set(found) == {"a", "b"}
    assert shown["verified"] == sum(state == "verified" for state in found.values())
    assert all(s["checks"][0]["err"] == "inf" for s in shown["substrates"])
    assert run_calibrate(named, **arguments) == code
    text = capsys.readouterr().out
    assert f"{shown['verified']} verified, {shown['quarantined']} quarantined" in text
    assert ("because" in text) == (code != 0)
    assert not (tmp_path / "out" / "matrix.sqlite").exists()
