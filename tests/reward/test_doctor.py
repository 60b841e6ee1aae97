"""`kernelward doctor` judges for real, lists what cannot be refereed, and exits with 3 where judging does not work."""

import json
from io import StringIO
from pathlib import Path

import pytest
from kernelward.reward import doctor
from kernelward.reward.cli import app
from kernelward.reward.client import JudgeClient, JudgeLost
from kernelward.reward.doctor import Report, judgement, print_report
from kernelward.reward.doctor_probes import CANDIDATES, BackendReport, probe_backend
from kernelward.reward.verdict import Outcome, Verdict
from rich.console import Console
from typer.testing import CliRunner

FRAME = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return {expression}

dim = 24

def get_inputs():
    return [torch.rand(8, dim)]

def get_init_inputs():
    return []
"""
LAYERS = {"layers": ["landlock"], "missing": {}, "landlock_abi": 7, "notes": []}
CACHE = {"folder": "/c", "writable": True, "detail": ""}
WORKS = {name: BackendReport(True, name) for name in CANDIDATES}


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    folder = tmp_path / "problems"
    folder.mkdir()
    for name, expression in (("sums", "x.sum(1)"), ("zeros", "x * 0"), ("raises", "x @ x")):
        (folder / f"{name}.py").write_text(FRAME.format(expression=expression))
    return folder


def test_this_machine_judges_and_the_problems_are_listed(problems: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(
        doctor, "CANDIDATES", {"torch": CANDIDATES["torch"]}
    )  # the other engines have tests of their own
    done = CliRunner().invoke(app, ["doctor", "--problems", str(problems), "--device", "cpu", "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert set(report) == set(Report.__dataclass_fields__)
    assert report["ok"] is True
    assert report["faults"] == []
    assert report["backends"]["torch"] == report["backends"]["torch"] | {"works": True, "engine": "torch", "detail": ""}
    assert report["versions"]["torch"]
    assert report["memory_bytes"] > report["free_memory_bytes"] > 0
    assert set(report["isolation"]) >= {"layers", "missing"}
    assert report["cache"]["writable"] is True
    assert report["problems"]["refereeable"] == 1
    assert "all-zero" in report["problems"]["unrefereeable"]["zeros"]
    assert set(report["problems"]["unrefereeable"]) | set(report["problems"]["broken"]) == {"zeros", "raises"}


def test_a_machine_that_cannot_judge_is_exit_code_3(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(doctor, "probe_backend", lambda client, name: BackendReport(False, detail="no child starts"))
    done = CliRunner().invoke(app, ["doctor", "--device", "cpu"])
    assert done.exit_code == 3, done.output
    assert "judging does NOT work" in done.output
    assert "fault: torch candidates cannot be judged: no child starts" in done.output


def test_what_works_in_part_is_a_warning_and_not_a_fault() -> None:
    backends = WORKS | {"cuda": BackendReport(False, detail="no g++")}
    missing = LAYERS | {"missing": {"user-namespace": "not permitted"}}
    unwritable = {"folder": "/c", "writable": False, "detail": "read-only"}
    faults, warnings = judgement("cpu", backends, missing, 1 << 30, unwritable)
    assert faults == []
    text = "\n".join(warnings)
    for part in ("cuda candidates cannot be judged on cpu: no g++", "user-namespace", "1.0 GiB of memory", "read-only"):
        assert part in text
    assert judgement("cpu", WORKS, LAYERS, 8 << 30, CACHE) == ([], [])


class Answers:
    """A client that answers with what a test gives it."""

    def __init__(self, *verdicts: Verdict | Exception) -> None:
        self.verdicts = list(verdicts)

    def judge(self, task: object) -> Verdict:
        verdict = self.verdicts.pop(0)
        if isinstance(verdict, Exception):
            raise verdict
        return verdict


@pytest.mark.parametrize(
    ("verdicts", "detail"),
    [
        (
            (Verdict(Outcome.INFRA_ERROR, "spawn", "no fork"), Verdict(Outcome.INCORRECT)),
            "honest candidate is infra_error",
        ),
        ((Verdict(Outcome.INCORRECT), Verdict(Outcome.INCORRECT)), "honest candidate is incorrect"),
        ((Verdict(Outcome.CORRECT), Verdict(Outcome.CORRECT)), "wrong candidate is correct"),
        ((JudgeLost("it died"),), "it died"),
    ],
)
def test_a_backend_works_only_if_right_and_wrong_are_told_apart(verdicts: tuple, detail: str) -> None:
    client: JudgeClient = Answers(*verdicts)  # type: ignore[assignment]
    report = probe_backend(client, "torch")
    assert not report.works
    assert detail in report.detail


def test_every_probe_has_a_wrong_variant_that_differs() -> None:
    for honest, (old, new) in CANDIDATES.values():
        assert honest.count(old) == 1
        assert old != new


def test_the_report_for_people_names_what_is_not_refereed(monkeypatch, tmp_path: Path) -> None:
    report = Report(
        ok=True,
        device="cpu",
        faults=(),
        warnings=("something",),
        versions={"torch": "2", "trl": None},
        python="3.11",
        system="Linux",
        cores=2,
        memory_bytes=8 << 30,
        free_memory_bytes=4 << 30,
        gpus=(doctor.GpuReport("H200", "9.0", 140 << 30, 100 << 30),),
        programs={"g++": None},
        nvrtc=None,
        isolation=LAYERS | {"notes": ["mounts stay writable"]},
        backends=WORKS,
        cache=CACHE,
        problems=doctor.ProblemsReport(3, 1, {"level2/80": "all-zero"}, {"level9/1": "raises"}),
    )
    out = StringIO()
    print_report(report, Console(file=out, width=100))
    for part in (
        "judging works\n  warning: something",
        "gpu H200 (9.0), 140.0 GiB, 100.0 GiB free",
        "trl -",
        "note: mounts stay writable",
        "problems 3 can be refereed, 1 of them with a calibrated suite",
        "unrefereeable: level2/80: all-zero",
        "broken: level9/1: raises",
    ):
        assert part in out.getvalue()
