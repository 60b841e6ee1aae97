"""Scoring: a kill loses and repeats nothing that was finished, bad rows say what is wrong, the summary adds up."""

import io
import json
import multiprocessing
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from kernelward.reward.score import load_protocols, pending, plan, resolve_problems, run_score, score
from kernelward.reward.score_rows import Recorded, Row, read_rows, recorded_outcome
from kernelward.reward.score_store import ScoreStore
from kernelward.reward.score_summary import Coverage, print_summary, summarise, wilson
from kernelward.reward.task import Task
from kernelward.reward.verdict import Outcome, Verdict
from kernelward.suites.errors import InputError
from kernelward.suites.hashing import sha256_text
from rich.console import Console

PROBLEM = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)

def get_inputs():
    return [torch.rand(5, 7)]

def get_init_inputs():
    return []
"""
HONEST = "import torch\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x.clamp(min=0)\n"
COPY = HONEST.replace("x.clamp(min=0)", "x.clone()")
WRONG = HONEST.replace("x.clamp(min=0)", "x + 1")


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def fake_judge(task: Task) -> Verdict:
    """A verdict that depends on the task alone."""
    time.sleep(0.002)
    good = int(sha256_text(task.candidate + str(task.protocol))[:2], 16) % 3 > 0
    return Verdict(Outcome.CORRECT if good else Outcome.INCORRECT, "" if good else "value", err=float("inf"))


def score_file(source: Path, out: Path, judge: Any = fake_judge, protocols: tuple[str, ...] = ("kernelbench",)) -> None:
    chosen = load_protocols(protocols)
    rows, problems = resolve_problems(read_rows(source), None)
    jobs, bad = plan(rows, problems, chosen, lambda problem, protocol: protocol.spec.hash)
    with ScoreStore(out) as store:
        score(jobs, bad, store, judge, 3, lambda n: None)


# ---------------------------------------------------------------- kills


def test_no_kill_loses_or_repeats_a_finished_row(tmp_path: Path) -> None:
    rows: list[Any] = [{"reference": PROBLEM, "code": f"{HONEST}# {i % 40}", "number": i} for i in range(60)]
    source = write(tmp_path / "in.jsonl", [*rows, "not json", rows[0]])
    out, once = tmp_path / "out.jsonl", tmp_path / "once.jsonl"
    score_file(source, once, protocols=("kernelbench", "fuzz"))
    fork = multiprocessing.get_context("fork")
    rng = random.Random(7)
    kills, before = 0, b""
    while True:
        child = fork.Process(target=score_file, args=(source, out, fake_judge, ("kernelbench", "fuzz")))
        child.start()
        more = len(before) + rng.randint(0, 9) * 350  # bytes of a line, about
        while child.is_alive() and not (out.exists() and out.stat().st_size > more):
            time.sleep(0.0005)
        time.sleep(rng.uniform(0.0, 0.004))
        child.kill()  # SIGKILL
        child.join()
        now = out.read_bytes()
        assert now.startswith(before[: before.rfind(b"\n") + 1])  # what was whole stays
        before = now
        if child.exitcode == 0:
            break
        kills += 1
    assert kills >= 8
    done, expected = lines(out), lines(once)
    assert Counter(r["id"] for r in done) == Counter(r["id"] for r in expected)
    assert max(Counter(r["id"] for r in done).values()) == 1
    assert len({r["run_key"] for r in done}) == 1

    def facts(records: list[dict[str, Any]]) -> dict[str, Any]:
        return {r["id"]: (r["row"], r["verdict"], r["error"], r["columns"]) for r in records}

    assert facts(done) == facts(expected)
    assert len(done) == 61 * 2 + 1


def test_a_last_line_torn_anywhere_is_cut_off_and_judged_again(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", [{"reference": PROBLEM, "code": f"# {i}"} for i in range(3)])
    out = tmp_path / "out.jsonl"
    score_file(source, out)
    whole = out.read_bytes()
    start = whole[:-1].rfind(b"\n") + 1
    for cut in (*range(start, start + 12), *range(start + 12, len(whole), 37), len(whole) - 1):
        out.write_bytes(whole[:cut])
        with ScoreStore(out) as store:
            assert store.repaired == (cut > start)
            assert len(store.records) == 2
        assert out.read_bytes() == whole[:start]
    score_file(source, out)
    assert sorted(r["row"] for r in lines(out)) == [1, 2, 3]


@pytest.mark.parametrize(
    "content", ["just notes", "just notes\n", '{"problem": "a", "code": "b"}\n', '{"id": "x"}\n{"other": 1}\n']
)
def test_a_file_that_is_something_else_is_left_as_it_is(content: str, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text(content)
    with pytest.raises(InputError, match="nothing was changed"):
        ScoreStore(out)
    assert out.read_text() == content


def test_two_runs_do_not_write_to_one_file(tmp_path: Path) -> None:
    with ScoreStore(tmp_path / "out.jsonl"), pytest.raises(InputError, match="another `kernelward score`"):
        ScoreStore(tmp_path / "out.jsonl")


def test_a_full_disk_is_an_error_and_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out.jsonl"
    with ScoreStore(out) as store:
        store.append({"id": "a", "text": "x" * 1000})
        real, calls = os.write, []

        def short(fd: int, data: Any) -> int:
            calls.append(1)
            if len(calls) == 2:
                raise OSError(28, "No space left on device")
            return real(fd, bytes(data)[:100])

        monkeypatch.setattr(os, "write", short)
        with pytest.raises(OSError, match="No space"):
            store.append({"id": "b", "text": "x" * 1000})
        monkeypatch.undo()
        assert "b" not in store.records
    assert [r["id"] for r in lines(out)] == ["a"]


def test_a_row_without_a_verdict_for_a_fault_of_ours_is_judged_again(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", [{"reference": PROBLEM, "code": code} for code in ("a", "b", "c")])
    out = tmp_path / "out.jsonl"
    outcomes = {"a": Outcome.CORRECT, "b": Outcome.INFRA_ERROR, "c": Outcome.UNREFEREEABLE}
    asked: list[str] = []

    def judge(task: Task) -> Verdict:
        asked.append(task.candidate)
        return Verdict(outcomes[task.candidate])

    score_file(source, out, judge)
    outcomes["b"] = Outcome.INCORRECT
    score_file(source, out, judge)
    assert sorted(asked) == ["a", "b", "b", "c"]
    with ScoreStore(out) as store:
        assert Counter(r["verdict"] for r in store.records.values()) == {
            "correct": 1,
            "incorrect": 1,
            "unrefereeable": 1,
        }


def test_equal_candidates_are_judged_once_and_every_row_gets_its_line(tmp_path: Path) -> None:
    row = {"reference": PROBLEM, "code": HONEST}
    source = write(tmp_path / "in.jsonl", [row, row, row | {"tag": "x"}, row | {"code": WRONG}])
    asked: list[str] = []

    def judge(task: Task) -> Verdict:
        asked.append(task.candidate)
        return Verdict(Outcome.CORRECT)

    score_file(source, tmp_path / "out.jsonl", judge)
    assert sorted(asked) == sorted([HONEST, WRONG])
    assert sorted(r["row"] for r in lines(tmp_path / "out.jsonl")) == [1, 2, 3, 4]


def test_a_bug_in_the_judge_stops_the_run_and_keeps_what_was_done(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", [{"reference": PROBLEM, "code": f"{i}"} for i in range(9)])

    def judge(task: Task) -> Verdict:
        if task.candidate == "5":
            raise RuntimeError("a bug")
        return Verdict(Outcome.CORRECT)

    with pytest.raises(RuntimeError, match="a bug"):
        score_file(source, tmp_path / "out.jsonl", judge)
    score_file(source, tmp_path / "out.jsonl", lambda task: Verdict(Outcome.CORRECT))
    assert sorted(r["row"] for r in lines(tmp_path / "out.jsonl")) == list(range(1, 10))


# ---------------------------------------------------------------- rows


def test_each_bad_row_says_what_is_wrong_and_the_others_are_read(tmp_path: Path) -> None:
    good = {"reference": PROBLEM, "completion": f"Sure:\n```python\n{HONEST}```\n", "tag": 3}
    path = tmp_path / "in.jsonl"
    rows = [
        json.dumps(good).encode(),
        b"{broken",
        b"[1, 2]",
        b'{"completion": "x"}',
        b'{"reference": "p"}',
        b'{"problem": 3, "code": "x"}',
        b'{"problem": "p", "code": 7}',
        b'{"problem": "p", "completion": {"role": "user"}}',
        b'{"problem": "caf\xe9", "code": "x"}',
        b"",
        json.dumps({"problem": "p", "completion": [{"role": "assistant", "content": HONEST}]}).encode(),
    ]
    path.write_bytes(b"\n".join(rows))
    read = read_rows(path)
    assert [row.number for row in read] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 11]
    errors = [row.error for row in read]
    assert errors[0] is errors[-1] is None
    for error, part in zip(
        errors[1:-1],
        ["not JSON", "found a list", "no `problem`", "no `completion`", "must be text", "found int", "chat", "UTF-8"],
        strict=True,
    ):
        assert part in (error or "")
    assert (read[0].code.strip(), read[0].columns, read[0].where) == (HONEST.strip(), {"tag": 3}, f"{path}:1")
    assert read[-1].code.strip() == HONEST.strip()


@pytest.mark.parametrize(
    ("rows", "part"),
    [
        (
            [{"question": "p", "answer": "x"}],
            "no row has a column `problem` or `reference`; columns found: answer, question",
        ),
        (
            [{"problem": "p", "answer": "x"}],
            "no row has a column `completion` or `code`; columns found: answer, problem",
        ),
        (["nonsense"], "no line is a JSON object"),
        ([], "the file is empty"),
        ([{"problem": "no/such", "code": "x"}], "none of the 1 rows can be judged"),
    ],
)
def test_a_file_without_the_columns_is_refused_before_anything_runs(rows: list[Any], part: str, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", rows)
    with pytest.raises(InputError, match=part):
        run_score(source, tmp_path / "out.jsonl", protocols=["kernelbench"], device="cpu", problems=tmp_path)
    assert not (tmp_path / "out.jsonl").exists()


def test_the_input_is_never_the_output(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", [{"reference": PROBLEM, "code": "x"}])
    with pytest.raises(InputError, match="is the input itself"):
        run_score(source, source, protocols=["kernelbench"], device="cpu")
    assert len(lines(source)) == 1


def test_identities_change_with_the_row_the_problem_the_protocol_and_the_device_only(tmp_path: Path) -> None:
    row = {"reference": PROBLEM, "code": HONEST}

    def identities(value: dict[str, Any], settings: str = "s") -> set[str]:
        rows, problems = resolve_problems(read_rows(write(tmp_path / "in.jsonl", [value])), None)
        jobs, _ = plan(rows, problems, load_protocols(["kernelbench"]), lambda problem, protocol: settings)
        return {identity for job in jobs for identity, _ in job.rows}

    base = identities(row)
    assert identities(row) == base
    assert identities(row, "other device") != base
    assert identities(row | {"code": WRONG}) != base
    assert identities(row | {"reference": PROBLEM + "#"}) != base
    assert identities(row | {"tag": 1}) != base


def test_two_protocols_with_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: kernelbench\nentries: suite\ncomparison: truth\n")
    with pytest.raises(InputError, match="two different protocols are called 'kernelbench'"):
        load_protocols(["kernelbench", str(path)])
    assert [p.spec.name for p in load_protocols(["fuzz", "kernelbench", "fuzz"])] == ["fuzz", "kernelbench"]


def test_pending_leaves_out_what_is_done(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", [{"reference": PROBLEM, "code": code} for code in ("a", "b", "a")])
    rows, problems = resolve_problems(read_rows(source), None)
    jobs, _ = plan(rows, problems, load_protocols(["kernelbench"]), lambda *_: "")
    with ScoreStore(tmp_path / "out.jsonl") as store:
        store.append({"id": jobs[0].rows[0][0], "verdict": "correct"})
        left = pending(jobs, store)
    assert [(job.code, [row.number for _, row in job.rows]) for job in left] == [("a", [3]), ("b", [2])]


# ---------------------------------------------------------------- runs folders


def runs_folder(root: Path, results: Any, names: tuple[str, ...]) -> Path:
    root.mkdir()
    for name in names:
        (root / name).write_text(HONEST)
    (root / "eval_results.json").write_text(json.dumps(results))
    return root


OOM = {"runtime_error": "CUDA out of memory. Tried to allocate 2.00 GiB", "hardware": "A100"}


@pytest.mark.parametrize(
    "wrap", [lambda sample: sample, lambda sample: [sample]], ids=["one result", "list of results"]
)
def test_both_formats_of_recorded_results_are_read(wrap: Any, tmp_path: Path) -> None:
    names = tuple(f"level_1_problem_{p}_sample_0_kernel.py" for p in (2, 10, 23, 24))
    results = {
        "2": wrap({"sample_id": 0, "compiled": True, "correctness": True, "metadata": {}}),
        "10": wrap({"sample_id": 0, "compiled": True, "correctness": False, "metadata": OOM}),
        "23": wrap({"sample_id": 0, "compiled": False, "correctness": False, "metadata": {"compilation_error": "x"}}),
    }
    rows = read_rows(runs_folder(tmp_path / "run", results, names))
    assert [row.problem for row in rows] == ["level1/2", "level1/10", "level1/23", "level1/24"]
    assert [row.recorded and row.recorded.outcome for row in rows] == [
        "correct",
        "out_of_memory",
        "compile_error",
        None,
    ]
    assert rows[0].columns == {"level": 1, "problem_id": 2, "sample_id": 0}


def test_several_samples_of_a_problem_keep_their_own_results(tmp_path: Path) -> None:
    names = tuple(f"level_2_problem_7_sample_{s}_kernel.py" for s in (0, 1, 11))
    results = {"7": [{"sample_id": s, "compiled": True, "correctness": s == 11, "metadata": {}} for s in (0, 1, 11)]}
    rows = read_rows(runs_folder(tmp_path / "run", results, names))
    assert [(row.columns["sample_id"], row.recorded and row.recorded.outcome) for row in rows] == [
        (0, "incorrect"),
        (1, "incorrect"),
        (11, "correct"),
    ]


def test_a_run_with_short_names_takes_its_level_from_its_details(tmp_path: Path) -> None:
    root = tmp_path / "some_run"
    root.mkdir()
    (root / "problem_12_kernel.py").write_text(HONEST)
    detail = {"problem_id": 12, "eval_result": {"compiled": True, "correctness": True, "metadata": {}}}
    (root / "detailed_results.json").write_text(json.dumps({"run_info": {"level": 3}, "results": [detail]}))
    (row,) = read_rows(root)
    assert (row.problem, row.recorded) == ("level3/12", Recorded("correct"))
    (root / "detailed_results.json").unlink()
    with pytest.raises(InputError, match="which level this run is"):
        read_rows(root)


def test_a_folder_of_runs_names_its_runs_and_broken_results_are_named(tmp_path: Path) -> None:
    run = runs_folder(tmp_path / "run_a", {}, ("level_1_problem_1_sample_0_kernel.py",))
    with pytest.raises(InputError, match="give one of its runs: run_a"):
        read_rows(tmp_path)
    (run / "eval_results.json").write_text("{")
    with pytest.raises(InputError, match=r"eval_results\.json: cannot read"):
        read_rows(run)


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        ({"correctness": True, "metadata": {"runtime_error": "late"}}, "correct"),
        (
            {"compiled": True, "metadata": {"runtime_error": "no kernel image is available for execution"}},
            "infrastructure",
        ),
        ({"compiled": True, "metadata": {"correctness_issue": "Output shape mismatch"}}, "incorrect"),
        ({"compiled": True, "metadata": {"max_difference": ["0.5"]}}, "incorrect"),
        ({"compiled": False, "metadata": {"error": "Evaluation timed out"}}, "timeout"),
        ({"compiled": False, "metadata": {"cuda_error": "CUDA Error: illegal memory access"}}, "runtime_error"),
        ({"compiled": False, "metadata": {"other_error": "error: x"}}, "runtime_error"),
        ({"compiled": False, "metadata": None}, "compile_error"),
        ({"compiled": False, "metadata": {"compilation_error": "nvcc: out of memory"}}, "out_of_memory"),
    ],
)
def test_recorded_results_are_told_apart(result: dict[str, Any], outcome: str) -> None:
    assert recorded_outcome(result).outcome == outcome


# ---------------------------------------------------------------- summary


def record(row: int, protocol: str, verdict: str, recorded: str | None = None) -> dict[str, Any]:
    outcome = None if recorded is None else {"outcome": recorded, "detail": ""}
    return {
        "row": row,
        "where": f"f:{row}",
        "error": None,
        "protocol": protocol,
        "verdict": verdict,
        "recorded": outcome,
    }


def test_the_summary_counts_accepted_undecided_and_disagreeing_rows() -> None:
    records = [
        record(1, "a", "correct", "correct"),
        record(2, "a", "correct", "incorrect"),
        record(3, "a", "incorrect", "out_of_memory"),
        record(4, "a", "infra_error", "correct"),
        record(1, "b", "correct", "correct"),
        record(2, "b", "incorrect", "incorrect"),
        record(3, "b", "correct", "out_of_memory"),
        record(4, "b", "correct", "correct"),
        {"row": 5, "where": "f:5", "error": "not JSON", "verdict": None},
    ]
    summary = summarise(records, ["a", "b"], {"a": Coverage(90, 100, 2, 4), "b": None})
    a, b = summary.protocols
    assert (a.accepted, a.judged, dict(a.no_verdict)) == (2, 3, {"infra_error": 1})
    assert (b.accepted, b.judged) == (3, 4)
    pairs = {(d.accepts, d.refuses): (d.rows, d.both_decided, d.examples) for d in summary.disagreements}
    assert pairs["a", "b"] == (1, 3, ("f:2",))
    assert pairs["b", "a"] == (1, 3, ("f:3",))
    assert pairs["a", "recorded"] == (1, 2, ("f:2",))
    assert pairs["recorded", "b"] == (0, 3, ())
    assert (summary.rows, summary.bad_rows) == (5, (("f:5", "not JSON"),))
    json.dumps(summary.to_json())
    console = Console(width=120, record=True, file=io.StringIO())
    print_summary(summary, console)
    text = console.export_text()
    assert "90.0% of 100 mutants (2 of 4 problems)" in text
    assert "uncalibrated" in text
    assert "not judged: f:5: not JSON" in text


def test_the_interval_is_wilsons() -> None:
    low, high = wilson(0, 300)
    assert low == 0.0
    assert high == pytest.approx(0.01264, abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-3)


# ---------------------------------------------------------------- the command, with a real judge


@pytest.mark.slow
def test_the_command_survives_a_kill_and_tells_protocols_apart(tmp_path: Path) -> None:
    (tmp_path / "relu.py").write_text(PROBLEM)
    sources = [HONEST, COPY, WRONG, HONEST, "def f(:", "", *(f"{HONEST}# {i}" for i in range(6))]
    rows: list[Any] = [{"problem": "relu", "code": code, "tag": i} for i, code in enumerate(sources)]
    source = write(tmp_path / "in.jsonl", [*rows, "not json"])
    out = tmp_path / "out.jsonl"
    command = [sys.executable, "-c", "from kernelward.mutants.cli import main; main()", "score", str(source)]
    command += [
        "--out",
        str(out),
        "--problems",
        str(tmp_path),
        "--protocol",
        "kernelbench",
        "--device",
        "cpu",
        "--json",
    ]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 120
    while not (out.exists() and out.read_bytes().count(b"\n") >= 3):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    first.kill()
    first.wait()
    kept = out.read_bytes()
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 2, done.stderr  # the row that is not JSON
    assert out.read_bytes().startswith(kept[: kept.rfind(b"\n") + 1])
    records = lines(out)
    assert sorted(r["row"] for r in records) == list(range(1, 14))
    verdicts = {r["row"]: r["verdict"] for r in records}
    assert [verdicts[i] for i in (1, 2, 3, 4, 5, 6)] == [
        "correct",
        "correct",  # the official inputs are never negative
        "incorrect",
        "correct",
        "compile_error",
        "compile_error",
    ]
    assert [r["columns"]["tag"] for r in records if r["row"] == 4] == [3]
    summary = json.loads(done.stdout)
    (line,) = summary["protocols"]
    assert (line["accepted"], line["judged"], line["coverage"]) == (9, 12, None)


def test_a_verdict_row_round_trips_to_a_verdict(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", [{"reference": PROBLEM, "code": "x"}])
    score_file(source, tmp_path / "out.jsonl", lambda task: Verdict(Outcome.INCORRECT, "value", err=float("inf")))
    (line,) = lines(tmp_path / "out.jsonl")
    assert (line["err"], line["protocol"]) == ("inf", "kernelbench")
    known = {k: line[k] for k in ("verdict", "reason", "err", "entries", "notes")}
    assert Verdict.from_json(known).err == float("inf")
    assert isinstance(Row(1, "w", "c"), Row)
